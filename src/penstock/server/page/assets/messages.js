// The messages of a queue, as they would be delivered. Looking claims nothing.

import { actOn, actOnAll, actionName, allowed, purge, sendDialog } from "./actions.js";
import { at, get, post } from "./api.js";
import { remember } from "./app.js";
import { el, replace, text } from "./dom.js";
import { form, fromQuery, isEmpty, toQuery } from "./filters.js";
import { bytes, count, number, shown } from "./format.js";
import { follow } from "./live.js";
import { act, badge, button, empty, head, linkTo, moment, named, trouble, words } from "./ui.js";

const PAGE = 50;
const KINDS = { visible: "good", in_flight: "accent", delayed: "", blocked: "warn", damaged: "bad", processed: "good", failed: "bad" };

export function stateBadge(state) {
  return badge(state.replace("_", " "), KINDS[state] ?? "");
}

export async function show(root, { queue, query, signal }) {
  const { may, dead_letter_of: of = [], settings } = await get(at(queue, "summary"), { signal });
  const actions = [
    may.includes("send") ? button("Send", () => sendDialog(queue, { groups: settings?.groups, sent: () => found.changed() }), { kind: "primary" }) : null,
    may.includes("admin") ? button("Purge", (event) => act(event.target, async () => { if (await purge(queue)) found.load(); }), { kind: "danger" }) : null,
  ];
  head(root, { title: "Messages", crumbs: [["Queues", "/dashboard"], [queue, linkTo(queue)]], actions });
  if (!may.includes("read")) {
    root.append(empty("Your token may not read the messages of this queue."));
    return;
  }
  const place = el("div", { class: "stack" });
  root.append(place);
  const found = messageList(place, { queue, may, dead: of.length > 0, filter: fromQuery(query), signal, send: may.includes("send") });
  follow({ queue, signal, rows: ({ rows }) => { for (const row of rows) if (row.name === queue) found.changed(row); } });
  await found.load();
}

/** Messages that fit a filter, with what can be done to them. `load()` shows them anew, `set(filter)` others;
 * `changed()`: the queue has changed. `filtered(filter)` is called with what the reader chooses, `started(job)` with a job. */
export function messageList(place, { queue, may, dead, filter, signal, send = false, started = () => null, filtered = () => null }) {
  const actions = allowed(may, { dead });
  const rows = new Map();
  const selected = new Set();
  const body = el("tbody");
  const all = el("input", { type: "checkbox", "aria-label": "Choose all that are shown", on: { change: chooseAll } });
  const table = el("table", { class: "messages" }, el("caption", { class: "sr" }, "Messages"),
    el("thead", {}, el("tr", {}, actions.length ? el("td", {}, all) : null, ["Message", "State"].map((told) => el("th", { scope: "col" }, told)),
      el("th", { scope: "col" }, dead ? "Died" : "Sent"), el("th", { scope: "col", class: "num" }, "Receives"), el("th", { scope: "col", class: "num wide-only" }, "Size"), el("th", { scope: "col", class: "wide-only" }, dead ? "Reason" : "Held by"))), body);
  const scroll = el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Messages" }, table);
  const far = el("span", { class: "soft", role: "status" });
  const fresh = button("Refresh", () => act(fresh, load));
  const chosen = el("div", { class: "toolbar chosen" });
  const more = button("Show more", () => act(more, () => next(cursor)), { kind: "wide" });
  const nothing = el("div");
  const filters = el("div");
  let cursor = null;
  let pending = 0;
  let turn = 0;
  let total = 0;
  drawFilter();
  replace(place, filters, el("div", { class: "toolbar" }, far, el("span", { class: "spacer" }), chosen, fresh), el("div", { class: "card flush" }, scroll, nothing, more));
  drawChosen();
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

  /** From the beginning. What stays keeps its place on the screen, and the focus. */
  async function load() {
    clearTimeout(pending);
    pending = 0;
    fresh.classList.remove("primary");
    await next(null);
  }

  async function next(after) {
    const mine = ++turn;
    const first = after === null;
    table.setAttribute("aria-busy", "true");
    const heads = [];
    let looked = 0;
    do {
      const part = await post(at(queue, "select"), { filter, limit: PAGE - heads.length, after }, { signal });
      if (mine !== turn) return;
      heads.push(...part.messages);
      looked += part.scanned;
      after = part.more;
      if (after !== null && heads.length < PAGE) text(far, `Looking… ${count(looked, "message")}`);
      if (heads.length) break;
    } while (after !== null);
    if (first) for (const id of [...rows.keys()]) if (!heads.some((one) => one.id === id)) forget(id);
    cursor = after;
    for (const [index, one] of heads.entries()) {
      const row = rows.get(one.id) ?? add(one.id);
      row.update(one);
      if (first && body.children[index] !== row.node) body.insertBefore(row.node, body.children[index] ?? null);
      else if (!row.node.isConnected) body.append(row.node);
    }
    table.removeAttribute("aria-busy");
    draw();
  }

  function draw() {
    scroll.hidden = !rows.size;
    more.hidden = cursor === null;
    text(far, !rows.size ? "" : cursor === null ? count(rows.size, "message") + (isEmpty(filter) ? "" : " that fit") : `The first ${number(rows.size)}${isEmpty(filter) && total > rows.size ? ` of ${count(total, "message")}` : ""}`);
    replace(nothing, rows.size ? null : isEmpty(filter)
      ? empty("No messages.", send ? ["Send one with the button above, or with ", el("code", {}, "penstock send")] : "What is sent here shows up by itself.")
      : empty("No message fits.", button("Clear the filter", () => filters.querySelector("form .quiet").click(), { kind: "small" })));
    drawChosen();
  }

  function add(id) {
    const made = line(queue, dead, actions.length ? (wanted) => { selected[wanted ? "add" : "delete"](id); drawChosen(); } : null);
    rows.set(id, made);
    return made;
  }

  function forget(id) {
    rows.get(id)?.node.remove();
    rows.delete(id);
    selected.delete(id);
  }

  function chooseAll() {
    for (const [id, row] of rows) {
      row.choose(all.checked);
      selected[all.checked ? "add" : "delete"](id);
    }
    drawChosen();
  }

  function drawChosen() {
    all.checked = selected.size > 0 && selected.size === rows.size;
    all.indeterminate = selected.size > 0 && selected.size < rows.size;
    if (!actions.length || !rows.size) return replace(chosen);
    if (!selected.size) {
      const fit = button(isEmpty(filter) ? "Act on all…" : "Act on all that fit…", () => actOnAll({ queue, filter, actions, started }));
      return replace(chosen, fit);
    }
    return replace(chosen, el("span", {}, `${number(selected.size)} chosen`), actions.map((name) => {
      const made = button(actionName(name), () => act(made, async () => {
        if ((await actOn(queue, name, [...selected])) === null) return;
        for (const id of selected) rows.get(id)?.choose(false);
        selected.clear();
        await load();
      }), { kind: name === "delete" ? "danger" : "" });
      return made;
    }));
  }

  /** The list follows the queue while nobody works with it; else it says that it is old. */
  function changed(row) {
    total = row?.messages ?? total;
    if (selected.size || rows.size > PAGE || document.querySelector("dialog[open]")) fresh.classList.add("primary");
    else if (!pending) pending = setTimeout(() => { pending = 0; load().catch(fail); }, 300);
  }

  function fail(error) {
    if (signal.aborted) return;
    table.removeAttribute("aria-busy");
    if (rows.size) text(far, words(error));
    else replace(nothing, trouble(error, () => load().catch(fail)));
  }

  return { load, changed, set };
}

/** One line of the list. */
function line(queue, dead, chosen) {
  const box = chosen && el("input", { type: "checkbox", on: { change: () => chosen(box.checked) } });
  const node = el("tr");
  let last = "";

  function update(one) {
    const now = JSON.stringify(one);
    if (now === last) return;
    last = now;
    const focused = node.contains(document.activeElement) && document.activeElement !== box;
    if (box) box.setAttribute("aria-label", `Choose message ${one.number}`);
    const link = el("a", { class: "what", href: linkTo(queue, "messages", one.id), title: one.id }, el("span", { class: "mono id" }, `#${one.number}`),
      one.preview === null ? el("span", { class: "soft" }, one.state === "damaged" ? "damaged" : shown(one.content_type)) : el("bdi", { class: "mono preview" }, one.preview ? shown(one.preview) : "(empty)"));
    replace(node, box ? el("td", {}, box) : null, el("td", { class: "first" }, link), el("td", {}, stateBadge(one.state)),
      el("td", { class: "at" }, moment(dead && one.death ? one.death.died_at : one.sent_at)), el("td", { class: "num" }, number(dead && one.death ? one.death.receives : one.receives)), el("td", { class: "num wide-only" }, bytes(one.size)),
      el("td", { class: "wide-only last" }, dead ? (one.death ? named(one.death.reason) : "–") : one.holder ? named(one.holder) : one.group ? [el("span", { class: "soft" }, "group "), named(one.group)] : "–"));
    if (focused) link.focus();
  }

  return { node, update, choose: (wanted) => { if (box) box.checked = wanted; } };
}
