// Curves and bars in SVG: of the page, and of the report (spark/pipelines/page.py embeds this file). Times are seconds since 1970.

import { el, replace, svg } from "./dom.js";
import { number } from "./format.js";

const TOP = 8;
const BOTTOM = 22;
const RIGHT = 10;
const LETTER = 6.6; // The width of a digit at the size in which axes are written.
const STEPS = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000];
const DURATIONS = [1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3600, 36000, 864000, 8640000, 1e9];

/** A figure of curves. `lines`: [{name, colour: "a" | "b" | "c" | "d", points: [[at, value | null]…], area?}].
 * `say`: a value in words; `step`: seconds between points, so that no line crosses a gap; `log`: durations on a logarithmic
 * scale; `from`, `to`: the ends of the time axis; `utc`: not in the reader's zone. Returns {node, update}, where
 * `update({lines, …})` draws anew. */
export function curve(title, given) {
  let options = { lines: [], say: number, step: 60, log: false, utc: false, height: 180, from: null, to: null, none: "Nothing to show yet.", ...given };
  const key = el("div", { class: "key" });
  const picture = svg("svg", { class: "curve", role: "img" });
  const tip = el("div", { class: "tip", hidden: true, "aria-hidden": "true" });
  const frame = el("div", { class: "curve-frame" }, picture, tip);
  const node = el("figure", {}, key, frame);
  let scene = null;

  function draw() {
    const width = Math.floor(frame.clientWidth);
    if (!width) return;
    scene = plan(options, width);
    picture.setAttribute("viewBox", `0 0 ${width} ${options.height}`);
    picture.setAttribute("aria-label", `${title}. ${summary(options)}`);
    replace(key, options.lines.map(({ name, colour }) => el("span", {}, el("i", { class: colour }), name)));
    replace(picture, scene ? paint(scene, options) : svg("text", { class: "none", x: width / 2, y: options.height / 2, "text-anchor": "middle" }, options.none));
    tip.hidden = true;
  }

  function point(event) {
    const box = picture.getBoundingClientRect();
    const near = scene && nearest(scene, options, event.clientX - box.left);
    picture.querySelector(".cross")?.remove();
    tip.hidden = near === null;
    if (near === null) return;
    const x = scene.x(near.at);
    picture.append(svg("g", { class: "cross" }, svg("line", { x1: x, x2: x, y1: TOP, y2: options.height - BOTTOM }),
      near.values.map(({ colour, value }) => svg("circle", { class: `dot ${colour}`, cx: x, cy: scene.y(value), r: 3.5 }))));
    replace(tip, el("b", {}, clock(near.at, 0, options.utc)), near.values.map(({ name, colour, value }) => el("span", {}, el("i", { class: colour }), `${name} ${options.say(value)}`)));
    const half = x > scene.width / 2;
    tip.style.left = half ? "auto" : `${x + 12}px`;
    tip.style.right = half ? `${scene.width - x + 12}px` : "auto";
  }

  frame.addEventListener("pointermove", point);
  frame.addEventListener("pointerdown", point);
  frame.addEventListener("pointerleave", () => {
    tip.hidden = true;
    picture.querySelector(".cross")?.remove();
  });
  new ResizeObserver(draw).observe(frame);
  return { node, update: (more) => { options = { ...options, ...more }; draw(); } };
}

/** The scales of a drawing that is `width` pixels wide; null if there is nothing to draw. */
function plan({ lines, say, log, height, from, to }, width) {
  const known = lines.flatMap(({ points }) => points.filter(([, value]) => value !== null));
  if (!known.length) return null;
  const first = from ?? known.reduce((least, [at]) => Math.min(least, at), Infinity);
  const last = to ?? known.reduce((most, [at]) => Math.max(most, at), -Infinity);
  const most = known.reduce((found, [, value]) => Math.max(found, value), 0);
  const least = known.reduce((found, [, value]) => Math.min(found, value), Infinity);
  const ticks = log ? decades(least, most) : rounds(most);
  const [low, high] = [ticks[0], ticks.at(-1)];
  const left = 10 + LETTER * Math.max(...ticks.map((tick) => say(tick).length));
  const x = (at) => round(left + (width - left - RIGHT) * (last > first ? (at - first) / (last - first) : 0.5));
  const share = (value) => (log ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : value / high);
  const y = (value) => round(height - BOTTOM - (height - TOP - BOTTOM) * share(value));
  return { x, y, ticks, left, width, first, last };
}

function paint({ x, y, ticks, left, width, first, last }, { lines, say, step, height, utc }) {
  const labels = instants(first, last, Math.max(2, Math.floor((width - left) / 64)), utc);
  return [
    ticks.map((tick) => [
      svg("line", { class: "grid", x1: left, x2: width - RIGHT, y1: y(tick), y2: y(tick) }),
      svg("text", { x: left - 7, y: y(tick) + 4, "text-anchor": "end" }, say(tick)),
    ]),
    labels.map((at) => {
      const told = clock(at, last - first, utc);
      const half = (told.length * LETTER) / 2;
      return svg("text", { x: Math.min(Math.max(x(at), half), width - half), y: height - 5, "text-anchor": "middle" }, told);
    }),
    lines.map(({ colour, points, area }) => pieces(points, step).map((piece) => {
      const way = piece.map(([at, value], place) => `${place ? "L" : "M"}${x(at)} ${y(value)}`).join("");
      if (piece.length === 1) return svg("circle", { class: `dot ${colour}`, cx: x(piece[0][0]), cy: y(piece[0][1]), r: 2.5 });
      const ground = height - BOTTOM;
      return [
        area ? svg("path", { class: `area ${colour}`, d: `${way}L${x(piece.at(-1)[0])} ${ground}L${x(piece[0][0])} ${ground}Z` }) : null,
        svg("path", { class: `line ${colour}`, d: way }),
      ];
    })),
  ];
}

/** The parts of a line between its gaps. */
function pieces(points, step) {
  const found = [];
  let before = null;
  for (const point of points) {
    if (point[1] === null) {
      before = null;
      continue;
    }
    if (before === null || point[0] - before > 3 * step) found.push([]);
    found.at(-1).push(point);
    before = point[0];
  }
  return found;
}

/** What the lines say at the instant under the pointer; null if that is far from all of them. */
function nearest({ x }, { lines }, where) {
  let at = null;
  for (const { points } of lines) {
    for (const [instant, value] of points) {
      if (value !== null && (at === null || Math.abs(x(instant) - where) < Math.abs(x(at) - where))) at = instant;
    }
  }
  if (at === null || Math.abs(x(at) - where) > 40) return null;
  const values = lines.map(({ name, colour, points }) => ({ name, colour, value: points.find(([instant]) => instant === at)?.[1] ?? null }));
  return { at, values: values.filter(({ value }) => value !== null) };
}

/** The lines in words, for those who do not see them. */
function summary({ lines, say, none }) {
  const told = lines.map(({ name, points }) => {
    const values = points.map(([, value]) => value).filter((value) => value !== null);
    if (!values.length) return null;
    return `${name}: last ${say(values.at(-1))}, from ${say(Math.min(...values))} to ${say(Math.max(...values))}`;
  }).filter(Boolean);
  return told.length ? told.join("; ") : none;
}

/** About four round steps from 0 to above the highest value. */
function rounds(most) {
  if (!(most > 0)) return [0, 1];
  const rough = most / 4;
  const size = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 2.5, 5, 10].map((times) => size * times).find((one) => one >= rough);
  return Array.from({ length: Math.ceil(most / step - 1e-9) + 1 }, (_, place) => Number((step * place).toPrecision(12)));
}

/** About five durations from below the smallest to above the largest. */
function decades(least, most) {
  let low = Math.max(0, DURATIONS.findLastIndex((tick) => tick <= least));
  let high = DURATIONS.findIndex((tick) => tick >= most);
  if (high < 0) high = DURATIONS.length - 1;
  if (low >= high) [low, high] = [Math.max(0, high - 1), Math.max(1, high)];
  const step = Math.ceil((high - low) / 5);
  return [...DURATIONS.slice(low, high).filter((_, place) => place % step === 0), DURATIONS[high]];
}

/** Round times of the day, at most `most`. */
function instants(first, last, most, utc) {
  const step = STEPS.find((one) => (last - first) / one <= most) ?? STEPS.at(-1);
  const zone = utc ? 0 : new Date(last * 1000).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((first - zone) / step) * step + zone; at <= last && found.length < 50; at += step) found.push(at);
  return found.length ? found : [first];
}

/** An instant on an axis that is `span` seconds long; 0: in full. */
function clock(at, span, utc) {
  const moment = new Date((at - (utc ? 0 : new Date(at * 1000).getTimezoneOffset() * 60)) * 1000).toISOString();
  const [day, hours] = [moment.slice(0, 10), moment.slice(11, 19)];
  if (!span) return `${day} ${hours}`;
  if (span > 10 * 86400) return day;
  if (span > 2 * 86400) return `${day.slice(5)} ${hours.slice(0, 5)}`;
  return span > 1200 ? hours.slice(0, 5) : hours;
}

/** A small curve without axes, for a row of a list. Returns {node, update(values)}. */
export function spark(width = 96, height = 22) {
  const area = svg("path", { class: "area a" });
  const line = svg("path", { class: "line a" });
  const node = svg("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, "aria-hidden": "true" }, area, line);
  let drawn = null;
  return { node, update(values) {
    const most = Math.max(1, ...values.map((value) => value ?? 0));
    const x = (place) => round((width * place) / Math.max(1, values.length - 1));
    const y = (value) => round(height - 2 - (height - 4) * (value / most));
    const found = pieces(values.map((value, place) => [place, value ?? null]), 1).filter((piece) => piece.length > 1);
    const ways = found.map((piece) => piece.map(([place, value], first) => `${first ? "L" : "M"}${x(place)} ${y(value)}`).join(""));
    if (ways.join() === drawn) return;
    drawn = ways.join();
    node.classList.toggle("flat", !values.some(Boolean));
    line.setAttribute("d", ways.join(""));
    area.setAttribute("d", ways.map((way, one) => `${way}L${x(found[one].at(-1)[0])} ${height}L${x(found[one][0][0])} ${height}Z`).join(""));
  } };
}

/** Bars with their names and values. `rows`: [{name, value, told?, href?}]; `name` may be a node. */
export function bars(title, rows, { colour = "a", say = number } = {}) {
  const most = rows.reduce((found, { value }) => Math.max(found, value), 0) || 1;
  return el("ul", { class: "bars", "aria-label": title }, rows.map(({ name, value, told, href }) => el("li", {},
    el("div", {}, href ? el("a", { href }, name) : el("span", { class: "name" }, name), el("span", { class: "num" }, told ?? say(value))),
    svg("svg", { class: "bar-line", height: 6, "aria-hidden": "true" }, svg("rect", { class: "track", width: "100%", height: 6, rx: 3 }), svg("rect", { class: `dot ${colour}`, width: `${Math.max(1, round((100 * value) / most))}%`, height: 6, rx: 3 })))));
}

function round(value) {
  return Math.round(value * 10) / 10;
}
