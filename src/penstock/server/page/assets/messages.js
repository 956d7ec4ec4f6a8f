// The messages of a queue, as they would be delivered. Looking claims nothing.

import { actOnAll, actionButtons, allowed, purge, sendDialog } from "./actions.js";
import { at, get, post } from "./api.js";
import { remember } from "./app.js";
import { el, patch, replace, text } from "./dom.js";
import { form, fromQuery, isEmpty, toQuery } from "./filters.js";
import { bytes, count, number, shown } from "./format.js";
import { follow } from "./live.js";
import { act, badge, button, empty, head, linkTo, moment, named, soft, trouble, words } from "./ui.js";

const PAGE = 50;
const KINDS = { visible: "good", in_flight: "accent", delayed: "", blocked: "warn", damaged: "bad", processed: "good", failed: "bad" };

export function stateBadge(state) {
  return badge(state.replace("_", " "), KINDS[state] ?? "");
}

export async function show(root, { queue, query, signal }) {
  const { may, dead_letter_of: of = [], settings, messages } = await get(at(queue, "summary"), { signal });
  const actions = [
    may.includes("send") ? button("Send", () => sendDialog(queue, { groups: settings?.groups, sent: () => found.changed() }), { kind: "primary" }) : null,
    may.includes("admin") ? button("Purge", ({ target }) => purge(target, queue, () => found.load()), { kind: "danger" }) : null,
  ];
  head(root, { title: "Messages", crumbs: [["Queues", "/dashboard"], [queue, linkTo(queue)]], actions });
  if (!may.includes("read")) {
    root.append(empty("Your token may not read the messages of this queue."));
    return;
  }
  const place = el("div", { class: "stack" });
  root.append(place);
  const found = messageList(place, { queue, may, dead: of.length > 0, filter: fromQuery(query), signal, total: messages, send: may.includes("send") });
  follow({ queue, signal, rows: ({ rows }) => { for (const row of rows) if (row.name === queue) found.changed(row); } });
  await found.load();
}

/** Messages that fit a filter, with what can be done to them. `load()` shows them anew, `set(filter)` others; `changed(row)`:
 * the queue has changed. `filtered(filter)` is called with what the reader chooses, `started(job)` with a job. */
export function messageList(place, { queue, may, dead, filter, signal, total = 0, send = false, started = () => null, filtered = () => null }) {
  const actions = allowed(may, { dead });
  const selected = new Set();
  const all = el("input", { type: "checkbox", "aria-label": "Choose all that are shown", on: { change: () => choose(heads.map(({ id }) => id), all.checked) } });
  const body = el("tbody", { on: { change: ({ target }) => choose([target.closest("tr").dataset.id], target.checked) } });
  const column = (told, kind = null) => el("th", { scope: "col", class: kind }, told);
  const table = el("table", { class: "messages" }, el("caption", { class: "sr" }, "Messages"), el("thead", {}, el("tr", {}, actions.length ? el("td", {}, all) : null,
    column("Message"), column("State"), column(dead ? "Died" : "Sent"), column("Receives", "num"), column("Size", "num wide-only"), column(dead ? "Reason" : "Held by", "wide-only"))), body);
  const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Messages" }, table);
  const far = el("span", { class: "soft", role: "status" });
  const fresh = button("Refresh", () => act(fresh, load));
  const chosen = el("div", { class: "toolbar chosen" });
  const more = button("Show more", () => act(more, () => next(cursor)), { kind: "wide" });
  const nothing = el("div");
  const filters = el("div");
  let heads = [];
  let cursor = null;
  let pending = 0;
  let turn = 0;
  drawFilter();
  replace(place, filters, el("div", { class: "toolbar" }, far, el("span", { class: "spacer" }), chosen, fresh), el("div", { class: "card flush" }, scroll, nothing, more));
  signal.addEventListener("abort", () => clearTimeout(pending));

  function drawFilter() {
    replace(filters, form(filter, (wanted) => {
      set(wanted);
      filters.querySelector("input").focus();
    }, { dead }));
  }

  function set(wanted) {
    filter = wanted;
    remember(toQuery(filter));
    drawFilter();
    filtered(filter);
    load().catch(fail);
  }

  async function load() {
    fresh.classList.remove("primary");
    await next(null);
  }

  /** The messages after a place; null: the first ones, in place of those that are shown. */
  async function next(after) {
    clearTimeout(pending);
    pending = 0;
    const mine = ++turn;
    const before = after === null ? [] : heads;
    let found = [];
    let looked = 0;
    do {
      const part = await post(at(queue, "select"), { filter, limit: PAGE, after }, { signal });
      if (mine !== turn) return;
      found = part.messages;
      looked += part.scanned;
      after = part.more;
      if (!found.length && after !== null) text(far, `Looking… ${count(looked, "message")}`);
    } while (!found.length && after !== null);
    const there = new Set(before.map(({ id }) => id));
    heads = [...before, ...found.filter(({ id }) => !there.has(id))];
    cursor = after;
    for (const id of selected) if (!heads.some((one) => one.id === id)) selected.delete(id);
    draw();
  }

  function draw() {
    const { length } = heads;
    const rest = cursor === null ? 0 : isEmpty(filter) ? total : 0;
    patch(body, heads.map((one) => line(queue, one, dead, actions.length > 0)));
    scroll.hidden = !length;
    more.hidden = cursor === null;
    text(far, !length ? "" : cursor === null ? count(length, "message") + (isEmpty(filter) ? "" : " that fit") : `The first ${number(length)}${rest > length ? ` of ${count(rest, "message")}` : ""}`);
    replace(nothing, length ? null : isEmpty(filter)
      ? empty("No messages.", send ? ["Send one with the button above, or with ", el("code", {}, "penstock send")] : "What is sent here shows up by itself.")
      : empty("No message fits.", button("Clear the filter", () => set({}), { kind: "small" })));
    drawChosen();
  }

  function choose(ids, wanted) {
    for (const id of ids) selected[wanted ? "add" : "delete"](id);
    drawChosen();
  }

  function drawChosen() {
    all.checked = selected.size > 0 && selected.size === heads.length;
    all.indeterminate = selected.size > 0 && !all.checked;
    for (const row of body.rows) if (actions.length) row.querySelector("input").checked = selected.has(row.dataset.id);
    if (!actions.length || !heads.length) replace(chosen);
    else if (!selected.size) replace(chosen, button(isEmpty(filter) ? "Act on all…" : "Act on all that fit…", () => actOnAll({ queue, filter, actions, started })));
    else replace(chosen, el("span", {}, `${number(selected.size)} chosen`), actionButtons(actions, queue, () => [...selected], () => {
      selected.clear();
      return load();
    }));
  }

  /** The list follows the queue while nobody works with it; else it says that it is old. */
  function changed(row) {
    total = row?.messages ?? total;
    if (selected.size || heads.length > PAGE || more.disabled || document.querySelector("dialog[open]")) fresh.classList.add("primary");
    else pending ||= setTimeout(() => load().catch(fail), 300);
  }

  function fail(error) {
    if (signal.aborted) return;
    if (heads.length) text(far, words(error));
    else replace(nothing, trouble(error, () => load().catch(fail)));
  }

  return { load, changed, set };
}

function line(queue, one, dead, choosable) {
  const { id, death, preview } = one;
  const told = preview === null ? soft(one.state === "damaged" ? "damaged" : shown(one.content_type)) : el("bdi", { class: "mono preview" }, preview ? shown(preview) : "(empty)");
  const last = dead ? death && named(death.reason) : one.holder ? named(one.holder) : one.group && [soft("group "), named(one.group)];
  return el("tr", { data: { id } }, choosable ? el("td", {}, el("input", { type: "checkbox", "aria-label": `Choose message ${one.number}` })) : null,
    el("td", { class: "first" }, el("a", { class: "what", href: linkTo(queue, "messages", id), title: id }, el("span", { class: "mono id" }, `#${one.number}`), told)),
    el("td", {}, stateBadge(one.state)), el("td", { class: "at" }, moment(dead && death ? death.died_at : one.sent_at)),
    el("td", { class: "num" }, number(dead && death ? death.receives : one.receives)), el("td", { class: "num wide-only" }, bytes(one.size)), el("td", { class: "wide-only last" }, last || "–"));
}
