// One message in full. Its body is text, JSON, bytes or an image: never a page.

import { actionButtons, allowed, sendDialog } from "./actions.js";
import { at, get, unpack } from "./api.js";
import { go, remember } from "./app.js";
import { el, replace, text } from "./dom.js";
import { bytes, count, number, shown, span } from "./format.js";
import { stateBadge } from "./messages.js";
import { badge, button, card, choices, empty, head, linkTo, moment, named, pairs, queueLink, table } from "./ui.js";

const IMAGES = [["image/png", /^\x89PNG\r\n\x1a\n/], ["image/jpeg", /^\xff\xd8\xff/], ["image/gif", /^GIF8[79]a/], ["image/webp", /^RIFF[^]{4}WEBP/]];
const PART = 1 << 15;
const HEX = 4096;

export async function show(root, { queue, id, query, signal }) {
  const [{ may, dead_letter_of: of = [], settings }, message] = await Promise.all([
    get(at(queue, "summary"), { signal }),
    get(at(queue, "messages", id), { signal }).then((answer) => answer.message, (error) => {
      if (error.status === 404 && error.kind !== "QueueNotFound") return null;
      throw error;
    }),
  ]);
  const crumbs = [["Queues", "/dashboard"], [queue, linkTo(queue)], ["Messages", linkTo(queue, "messages")]];
  if (message === null) {
    head(root, { title: "Message", crumbs });
    root.append(empty("This message is not in the queue any more.", "It was deleted, has expired, or was moved. ", el("a", { href: linkTo(queue, "messages") }, "The messages that are there")));
    return;
  }
  const body = unpack({ bytes: message.body });
  const over = message.settled_at !== null;
  const dead = message.death !== null && of.length > 0;
  head(root, { title: `Message #${message.number}`, crumbs, actions: [
    may.includes("send") ? button("Send a copy", () => sendDialog(queue, { draft: { ...message, body: decode(body) ?? "", attributes: message.attributes.filter(({ type }) => type === "text") }, groups: settings?.groups })) : null,
    over ? null : actionButtons(allowed(may, { dead }).filter((name) => name !== "release" || message.state !== "visible"), queue, () => [id],
      (name) => go(name === "release" ? location.pathname + location.search : linkTo(queue, "messages"), { replaced: true })),
  ] });
  root.append(el("div", { class: "cards" }, card("Facts", facts(message)), message.death ? card("Why it died", pairs([
    ["Reason", named(message.death.reason)], ["In the queue", queueLink(message.death.queue)], ["Received there", count(message.death.receives, "time")], ["Died", moment(message.death.died_at)]])) : null,
  card("Attributes", message.attributes.length ? table("Attributes", ["Name", "Value"], message.attributes.map(({ name, type, value }) => [named(name), [named(value), type === "text" ? null : [" ", badge(type === "bytes" ? "base64" : type)]]])) : el("p", { class: "soft" }, "None."))));
  root.append(bodyCard(body, message, query, signal));
}

function facts(message) {
  const { settled_at: over } = message;
  return pairs([
    ["Id", el("span", { class: "mono" }, message.id)],
    ["State", [stateBadge(message.state), message.lapsed ? [" ", badge("comes again: its receiver was too late", "warn")] : null]],
    ["Sent", moment(message.sent_at)],
    message.moved_at && ["Moved here", moment(message.moved_at)],
    over === null ? ["Visible", message.state === "blocked" ? "after those of its group" : moment(message.visible_at)] : ["Settled", moment(over)],
    over !== null && message.reason ? ["Outcome", named(message.reason)] : null,
    ["Expires", moment(message.expires_at)],
    message.deadline_at && ["Deadline", moment(message.deadline_at)],
    ["Received", message.receives ? [count(message.receives, "time"), ", last ", moment(message.received_at)] : "never"],
    message.error && ["Failed", [count(message.failures, "time"), ": ", named(message.error)]],
    message.retry && ["Retries", message.retry],
    message.holder && ["Held by", named(message.holder)],
    message.group && ["Group", named(message.group)],
    message.key === null ? null : ["Key", named(decode(unpack({ bytes: message.key })) ?? message.key)],
    message.visibility === null ? null : ["Visibility", span(message.visibility)],
    ["Content type", named(message.content_type)],
    ["Size", bytes(message.size)],
  ]);
}

function decode(body) {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(body);
  } catch {
    return null;
  }
}

function bodyCard(body, message, query, signal) {
  const words = decode(body);
  const json = words === null ? null : laidOut(words);
  const begins = String.fromCharCode(...body.subarray(0, 16));
  const image = IMAGES.find(([, magic]) => magic.test(begins))?.[0];
  const ways = [json && ["json", "JSON"], words !== null && ["text", "Text"], ["hex", "Hex"], image && ["image", "Image"]].filter(Boolean);
  const wanted = query.get("as");
  const way = ways.some(([name]) => name === wanted) ? wanted : image ? "image" : json ? "json" : words === null || message.state === "damaged" ? "hex" : "text";
  const place = el("div", { class: "stack" });
  const save = el("a", { class: "btn quiet", download: `message-${message.number}`, href: blob(body, "application/octet-stream", signal) }, "Download");
  signal.addEventListener("abort", () => CSS.highlights?.clear());
  draw(way);
  return el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", {}, "Body"), el("div", { class: "toolbar" }, save,
    choices("Show the body as", ways, way, (chosen) => { remember({ as: chosen }); draw(chosen); }))), place);

  function draw(chosen) {
    CSS.highlights?.clear();
    if (!body.length) replace(place, empty("The body is empty."));
    else if (chosen === "image") replace(place, el("img", { class: "body-image", alt: "The body, shown as an image", src: blob(body, image, signal) }));
    else if (chosen === "hex") replace(place, hexPages(body));
    else replace(place, searchable(shown(chosen === "json" ? json : words), chosen === "json"));
  }
}

/** An address for the bytes, which ends with the view. */
function blob(body, type, signal) {
  const address = URL.createObjectURL(new Blob([body], { type }));
  signal.addEventListener("abort", () => URL.revokeObjectURL(address));
  return address;
}

/** JSON laid out, with its own digits and letters; null if it is none. */
function laidOut(words) {
  try {
    JSON.parse(words);
  } catch {
    return null;
  }
  const parts = [];
  let depth = 0;
  const line = () => parts.push("\n", "  ".repeat(Math.min(depth, 40)));
  const tokens = words.match(/"(?:[^"\\]|\\[^])*"|[{}[\],:]|[^\s{}[\],:"]+/g);
  for (const [place, token] of tokens.entries()) {
    const opens = token === "{" || token === "[";
    const closes = token === "}" || token === "]";
    if (closes) depth--;
    if (closes && !/^[{[]$/.test(tokens[place - 1])) line();
    parts.push(token === ":" ? ": " : token);
    if (opens) depth++;
    if (token === "," || (opens && !/^[}\]]$/.test(tokens[place + 1]))) line();
  }
  return parts.join("");
}

/** Content in parts. `starts`: where each begins; `write(from, to)`: the text of one. */
function parted(code, starts, size, write, drawn = () => null) {
  const far = el("span", { class: "soft", role: "status" });
  const back = button("Earlier", () => draw(here - 1), { kind: "small" });
  const on = button("Later", () => draw(here + 1), { kind: "small" });
  let here = -1;

  function draw(place) {
    if (place === here) return;
    here = place;
    const [from, to] = [starts[here], starts[here + 1] ?? size];
    code.textContent = write(from, to);
    code.scrollTop = 0;
    text(far, `${number(from)} to ${number(to - 1)} of ${number(size)}`);
    back.disabled = here === 0;
    on.disabled = to === size;
    drawn(from, to);
  }

  return { draw, node: starts.length > 1 ? el("div", { class: "toolbar" }, far, el("span", { class: "spacer" }), back, on) : null, place: (where) => starts.findLastIndex((from) => from <= where) };
}

/** Searchable text: what is found is marked, and Enter leads to the next. */
function searchable(told, json) {
  const code = el("pre", { class: "code", tabindex: "0", role: "region", "aria-label": "The body", dir: "auto" });
  const far = el("span", { class: "soft", role: "status" });
  const search = el("input", { type: "search", placeholder: "Find in the body", "aria-label": "Find in the body", class: "grow", on: { input: find, keydown: (event) => { if (event.key === "Enter") step(event.shiftKey ? -1 : 1); } } });
  const starts = [0];
  while (told.length - starts.at(-1) > PART) {
    const most = starts.at(-1) + PART;
    const line = told.lastIndexOf("\n", most - 1) + 1;
    starts.push(line > starts.at(-1) ? line : most);
  }
  let found = [];
  let here = -1;
  let width = 0;
  let shownFrom = 0;
  let shownTo = 0;
  const parts = parted(code, starts, told.length, (from, to) => told.slice(from, to), (from, to) => {
    [shownFrom, shownTo] = [from, to];
    if (json) colour();
    markFound();
  });
  parts.draw(0);
  return [el("div", { class: "toolbar" }, search, far), code, parts.node];

  function find() {
    const wanted = search.value.toLowerCase();
    const all = told.toLowerCase();
    found = [];
    here = -1;
    width = wanted.length;
    for (let from = width && all.length === told.length ? all.indexOf(wanted) : -1; from >= 0 && found.length < 10000; from = all.indexOf(wanted, from + width)) found.push(from);
    if (found.length) step(1);
    else markFound();
    text(far, width ? `${number(found.length)} found` : "");
  }

  function step(by) {
    if (!found.length) return;
    here = (here + by + found.length) % found.length;
    parts.draw(parts.place(found[here]));
    const [range] = markFound();
    const { top, bottom } = range.getBoundingClientRect();
    const frame = code.getBoundingClientRect();
    if (top < frame.top || bottom > frame.bottom) code.scrollTop += top - frame.top - frame.height / 3;
    text(far, `${number(here + 1)} of ${number(found.length)}`);
  }

  function markFound() {
    mark("found", found.filter((from) => from >= shownFrom && from < shownTo).map((from) => [from - shownFrom, from - shownFrom + width]));
    return mark("here", here < 0 ? [] : [[found[here] - shownFrom, found[here] - shownFrom + width]]);
  }

  function colour() {
    const marks = { key: [], string: [], number: [], word: [] };
    for (const { 0: token, 1: key, index } of code.textContent.matchAll(/"(?:[^"\\\n]|\\.)*"(:)?|-?\d[\d.eE+-]*|true|false|null/g)) {
      marks[key ? "key" : token[0] === '"' ? "string" : /[-\d]/.test(token[0]) ? "number" : "word"].push([index, index + token.length - (key ? 1 : 0)]);
    }
    for (const [kind, places] of Object.entries(marks)) mark(`json-${kind}`, places);
  }

  function mark(name, places) {
    const ranges = places.map(([from, to]) => {
      const range = new Range();
      range.setStart(code.firstChild, Math.max(0, from));
      range.setEnd(code.firstChild, Math.min(to, code.firstChild.length));
      return range;
    });
    if (globalThis.Highlight) CSS.highlights.set(name, new Highlight(...ranges));
    return ranges;
  }
}

/** Bytes, some thousands at a time. */
function hexPages(body) {
  const code = el("pre", { class: "code hex", tabindex: "0", role: "region", "aria-label": "The body in hexadecimal" });
  const parts = parted(code, Array.from({ length: Math.ceil(body.length / HEX) }, (_, place) => place * HEX), body.length, (from, to) => {
    const lines = [];
    for (let start = from; start < to; start += 16) {
      const part = [...body.subarray(start, Math.min(to, start + 16))];
      const digits = part.map((one) => one.toString(16).padStart(2, "0")).join(" ");
      lines.push(`${start.toString(16).padStart(8, "0")}  ${digits.padEnd(47)}  ${part.map((one) => (one > 31 && one < 127 ? String.fromCharCode(one) : ".")).join("")}`);
    }
    return lines.join("\n");
  });
  parts.draw(0);
  return [code, parts.node];
}
