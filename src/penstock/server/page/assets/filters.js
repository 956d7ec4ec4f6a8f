// Which messages are meant: a filter as the server takes it, in the address of a view, in words, and as a form.
//
// A filter has any of state, text, group, reason, source, older_than, younger_than (seconds), field and equals (JSON), ids.

import { el } from "./dom.js";
import { count, shown, span } from "./format.js";
import { button, input, field as labelled } from "./ui.js";

const TEXTS = ["state", "text", "group", "reason", "source", "field"];
const AGES = ["older_than", "younger_than"];
const STATES = [["", "Any state"], ["visible", "Visible"], ["in_flight", "In flight"], ["delayed", "Delayed"], ["damaged", "Damaged"]];
const SPANS = [60, 300, 3600, 86400, 604800];

export function fromQuery(query) {
  const filter = {};
  for (const name of TEXTS) if (query.get(name)) filter[name] = query.get(name);
  for (const name of AGES) if (Number(query.get(name)) > 0) filter[name] = Number(query.get(name));
  if (filter.field && query.has("equals")) filter.equals = value(query.get("equals"));
  return filter;
}

/** The same for the address; what the filter does not have is null. */
export function toQuery(filter) {
  const query = Object.fromEntries([...TEXTS, ...AGES].map((name) => [name, filter[name] ?? null]));
  return { ...query, equals: "equals" in filter ? written(filter.equals) : null };
}

/** What was typed for a field: JSON if it is JSON, else text. */
function value(typed) {
  try {
    return JSON.parse(typed);
  } catch {
    return typed;
  }
}

function written(equals) {
  return typeof equals === "string" && value(equals) === equals ? equals : JSON.stringify(equals);
}

export function isEmpty(filter) {
  return !Object.keys(filter).length;
}

/** A filter in words: "in flight, older than 1 hour". */
export function told(filter) {
  const { state, text, group, reason, source, older_than, younger_than, field, equals, ids } = filter ?? {};
  const parts = [
    state && state.replace("_", " "),
    ids && count(ids.length, "chosen message"),
    text && `with “${text}” in the body`,
    group && `of the group “${group}”`,
    reason && `that died of “${reason}”`,
    source && `from “${source}”`,
    older_than && `older than ${span(older_than)}`,
    younger_than && `younger than ${span(younger_than)}`,
    field && ("equals" in filter ? `where ${field} is ${JSON.stringify(equals)}` : `with a field ${field}`),
  ];
  return shown(parts.filter(Boolean).join(", ") || "all messages");
}

/** A form for the filter, which calls `chosen` with a new one. `dead`: also what only dead letters have. */
export function form(filter, chosen, { dead = false } = {}) {
  const text = (name, more = {}) => input({ name, value: filter[name] ?? "", ...more });
  const state = select("state", STATES, filter.state ?? "");
  const body = text("text", { type: "search", placeholder: "Text in the body", "aria-label": "Text in the body" });
  state.setAttribute("aria-label", "State");
  const equals = text("equals", { value: "equals" in filter ? written(filter.equals) : "" });
  const others = Object.fromEntries(Object.entries(filter).filter(([name]) => !["state", "text"].includes(name)));
  const rest = el("details", {}, el("summary", {}, isEmpty(others) ? "More filters" : `More filters: ${told(others)}`),
    el("div", { class: "fields" },
      dead ? labelled("Died of", text("reason"), "The reason in full") : null,
      dead ? labelled("Died in", text("source"), "The queue it comes from") : null,
      labelled("Older than", ages("older_than", filter)),
      labelled("Younger than", ages("younger_than", filter)),
      labelled("Group", text("group")),
      labelled("JSON field", text("field", { placeholder: "order.items.0.sku" }), "Keys and places with dots between them"),
      labelled("Equals", equals, "JSON, or a text; nothing: the field exists")));
  const made = el("form", { class: "filters", role: "search", on: { submit: apply, change: soon } },
    el("div", { class: "filter-line" }, body, state, el("button", { type: "submit", class: "btn" }, "Filter"),
      isEmpty(filter) ? null : button("Clear", () => chosen({}), { kind: "quiet" })), rest);
  return made;

  function soon(event) {
    if (event.target.tagName === "SELECT") apply(event);
  }

  function apply(event) {
    event.preventDefault();
    const typed = new URLSearchParams([...new FormData(made)].map(([name, told]) => [name, String(told)]));
    if (!typed.get("equals")) typed.delete("equals");
    chosen(fromQuery(typed));
  }
}

function ages(name, filter) {
  const known = SPANS.includes(filter[name]) || !filter[name] ? SPANS : [...SPANS, filter[name]].sort((a, b) => a - b);
  return select(name, [["", "any age"], ...known.map((seconds) => [String(seconds), span(seconds)])], String(filter[name] ?? ""));
}

function select(name, options, chosen) {
  return el("select", { name }, options.map(([given, told]) => el("option", { value: given, selected: given === chosen }, told)));
}
