// What every view uses: the head of a view, empty states, errors in words, toasts, dialogs, buttons that wait.

import { el, text } from "./dom.js";
import { shown, since, time } from "./format.js";

/** The head of a view: its title (also that of the window), where it is, and what can be done there. Returns the heading. */
export function head(root, { title, crumbs = [], actions = [], name = false }) {
  document.title = `${title} · Penstock`;
  const heading = el("h1", { tabindex: "-1" }, name ? named(title) : title);
  const way = crumbs.length ? el("nav", { class: "crumbs", "aria-label": "Where this is" }, crumbs.map(([told, href], place) => [place ? el("span", { "aria-hidden": "true" }, "/") : null, el("a", { href }, named(told))])) : null;
  root.append(el("div", { class: "head" }, el("div", { class: "head-title" }, way, heading), el("div", { class: "actions" }, actions)));
  return heading;
}

/** A name that others gave: set apart from the text around it, whatever the direction in which it runs. */
export function named(told) {
  return el("bdi", { class: "name" }, shown(told));
}

export function linkTo(queue, ...rest) {
  return ["/dashboard/queues", ...[queue, ...rest].map(encodeURIComponent)].join("/");
}

export function soft(...told) {
  return el("span", { class: "soft" }, ...told);
}

/** A link to a queue by its name. */
export function queueLink(queue, properties = {}) {
  return el("a", { href: linkTo(queue), title: queue, ...properties }, named(queue));
}

export function queueLinks(names) {
  return names.map((name, place) => [place ? ", " : "", queueLink(name)]);
}

/** An instant: how long ago, with the full time at hand. */
export function moment(at, properties = {}) {
  if (at == null) return el("span", properties, "–");
  return el("time", { title: time(at, true), ...properties }, since(at));
}

/** Nothing to show, and what to do about it. */
export function empty(title, ...more) {
  return el("div", { class: "empty" }, el("p", { class: "empty-title" }, title), more.length ? el("p", {}, ...more) : null);
}

/** An error in words, in the place of what it keeps from being seen. */
export function trouble(error, again = null) {
  return el("div", { class: "trouble", role: "alert" }, el("p", { class: "empty-title" }, "That did not work"), el("p", {}, words(error)), again ? button("Try again", again) : null);
}

export function words(error) {
  const told = shown(error?.message || String(error)).slice(0, 1000);
  return told.charAt(0).toUpperCase() + told.slice(1);
}

/** `kind`: "", "primary", "danger", "quiet"; a list of classes. */
export function button(told, listener, properties = {}) {
  const { kind = "", ...more } = properties;
  return el("button", { type: "button", class: `btn ${kind}`.trim(), on: { click: listener }, ...more }, told);
}

export function badge(told, kind = "", properties = {}) {
  return el("span", { class: `badge ${kind}`.trim(), ...properties }, told);
}

export function input(more) {
  return el("input", { type: "text", autocomplete: "off", spellcheck: "false", ...more });
}

/** A labelled control: `field("Rate", el("input", …), "messages a second")`. */
let labelled = 0;
export function field(told, control, hint = null) {
  control.id ||= `field-${++labelled}`;
  const told_by = hint ? `${control.id}-hint` : null;
  if (told_by) control.setAttribute("aria-describedby", told_by);
  return el("div", { class: "field" }, el("label", { for: control.id }, told), control, hint ? el("span", { class: "hint", id: told_by }, hint) : null);
}

/** A choice of one in a row: `choices("Span", [["hour", "Hour"], …], "hour", (value) => …)`. Arrow keys move, as in any radio group. */
export function choices(told, options, chosen, listener) {
  const group = `choices-${++labelled}`;
  return el("div", { class: "choices", role: "radiogroup", "aria-label": told },
    options.map(([value, label]) => el("label", {}, el("input", { type: "radio", name: group, value, checked: value === chosen, on: { change: () => listener(value) } }), el("span", {}, label))));
}

/** A bar of progress; `total` null: not known. */
export function progress(done, total, told) {
  return el("progress", { "aria-label": told, max: total === null ? null : Math.max(total, 1), value: total === null ? null : Math.min(done, Math.max(total, 1)) });
}

/** Tell something at the edge of the window. `kind`: "", "good", "bad". What is bad stays longer. */
export function toast(told, kind = "") {
  const close = button("×", () => note.remove(), { kind: "quiet small", "aria-label": "Dismiss" });
  const note = el("div", { class: `toast ${kind}`.trim() }, el("span", {}, shown(told)), close);
  const place = document.getElementById("toasts");
  place.append(note);
  while (place.childElementCount > 4) place.firstElementChild.remove();
  setTimeout(() => note.remove(), kind === "bad" ? 15000 : 5000);
}

/** Do the work while the button waits; tell what goes wrong. The answer of the work, or undefined if it failed. */
export async function act(waiting, work) {
  waiting.disabled = true;
  waiting.setAttribute("aria-busy", "true");
  try {
    return await work();
  } catch (error) {
    if (error.name !== "AbortError") toast(words(error), "bad");
    return undefined;
  } finally {
    waiting.disabled = false;
    waiting.removeAttribute("aria-busy");
  }
}

/** A dialog. `content`: nodes; `action`: the button beside Cancel. Escape, or a press beside it, closes it. Returns the element: `.close()` ends it. */
export function dialog(title, content, action, { wide = false, closed = null } = {}) {
  const heading = el("h2", { id: `dialog-${++labelled}` }, title);
  const box = el("dialog", { class: wide ? "wide" : null, "aria-labelledby": heading.id },
    el("form", { method: "dialog", novalidate: true, on: { submit: (event) => event.preventDefault() } }, heading, el("div", { class: "dialog-content" }, content), el("div", { class: "dialog-actions" }, button("Cancel", () => box.close("")), action)));
  box.addEventListener("close", () => { box.remove(); closed?.(box.returnValue); });
  box.addEventListener("pointerdown", (event) => { if (event.target === box) box.close(); });
  document.body.append(box);
  box.showModal();
  return box;
}

/** Ask first. `typed`: what must be typed before the button can be pressed. True if confirmed. */
export function confirm({ title, content, action, danger = false, typed = null }) {
  return new Promise((resolve) => {
    let box = null;
    const go = button(action, () => box.close("yes"), { type: "submit", kind: danger ? "danger" : "primary", disabled: typed !== null });
    const typing = input({ autofocus: true, on: { input: () => { go.disabled = typing.value !== typed; } } });
    const asked = typed === null ? null : field(["Type ", named(typed), " to confirm"], typing);
    box = dialog(title, [typeof content === "string" ? el("p", {}, content) : content, asked], go, { closed: (said) => resolve(said === "yes") });
  });
}

export function pairs(rows) {
  return el("dl", { class: "pairs" }, rows.filter(Boolean).map(([told, value]) => [el("dt", {}, told), el("dd", {}, value)]));
}

/** A table: `heads` are texts, with a # in front of those of numbers; `rows` are lists of cells. */
export function table(caption, heads, rows) {
  const kinds = heads.map((one) => (one[0] === "#" ? "num" : null));
  return el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    el("table", {}, el("caption", { class: "sr" }, caption),
      el("thead", {}, el("tr", {}, heads.map((one, place) => el("th", { scope: "col", class: kinds[place] }, one.replace("#", ""))))),
      el("tbody", {}, rows.map((row) => el("tr", {}, row.map((cell, place) => el("td", { class: kinds[place] }, cell)))))));
}

export function card(title, ...content) {
  return el("section", { class: "card" }, el("h2", {}, title), content);
}

/** Figures in a row, told by name. `figures`: [[key, told]…]; `tell(key, text)` changes one. */
export function tiles(figures) {
  const values = new Map(figures.map(([key]) => [key, el("b", {}, "–")]));
  const node = el("div", { class: "tiles" }, figures.map(([key, told]) => el("div", { class: "tile" }, values.get(key), el("span", {}, told))));
  return { node, values, tell: (key, told) => text(values.get(key), told) };
}
