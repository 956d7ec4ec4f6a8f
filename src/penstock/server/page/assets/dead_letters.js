// Dead letters: which queues have them, what they have in common, and the way back.

import { actOnAll, allowed, countAll } from "./actions.js";
import { at, get } from "./api.js";
import { remember } from "./app.js";
import { el, patch, replace, text } from "./dom.js";
import { fromQuery, told } from "./filters.js";
import { age, ago, count, number, rate, shown } from "./format.js";
import { list as jobList } from "./jobs.js";
import { follow } from "./live.js";
import { messageList } from "./messages.js";
import { button, choices, empty, field, head, input, linkTo, moment, named, queueLinks, table, words } from "./ui.js";

const WAYS = [["reason", "Reason"], ["source", "Queue"], ["age", "Age"], ["field", "JSON field"]];
const KEYS = { reason: ["reason"], source: ["source"], age: ["older_than", "younger_than"], field: ["field", "equals"] };
const OFTEN = 10000;

export function show(root, place) {
  return place.queue === undefined ? showAll(root, place) : showOne(root, place);
}

/** Every queue to which others bury, the fullest first. */
function showAll(root, { signal }) {
  head(root, { title: "Dead letters" });
  const place = el("div", { class: "card flush" });
  const known = new Map();
  root.append(place);
  return new Promise((ready) => {
    follow({ signal, rows: ({ rows, gone, whole, left = 0 }) => {
      if (whole) known.clear();
      for (const name of gone ?? []) known.delete(name);
      for (const row of rows) known.set(row.name, { ...known.get(row.name), ...row });
      if (left) return;
      draw();
      ready();
    } });
    signal.addEventListener("abort", ready);
  });

  function draw() {
    const dead = [...known.values()].filter((row) => row.dead_letter_of?.length).sort((a, b) => b.messages - a.messages || (a.name < b.name ? -1 : 1));
    patch(place, dead.length ? table("Dead letter queues", ["Queue", "#Letters", "#Oldest", "#In / s", "From"], dead.map((row) => [
      el("a", { href: `/dashboard/dead-letters/${encodeURIComponent(row.name)}`, title: row.name }, named(row.name)), number(row.messages), age(ago(row.oldest_at)), rate(row.rate_in), queueLinks(row.dead_letter_of)]))
      : empty("No queue has a dead letter queue.", "Give a queue one in its settings: a message that is received too often then goes there, instead of coming again for ever."));
  }
}

async function showOne(root, { queue, query, signal }) {
  const { may, dead_letter_of: of = [] } = await get(at(queue, "summary"), { signal });
  const actions = allowed(may, { dead: true });
  let filter = fromQuery(query);
  let way = WAYS.some(([name]) => name === query.get("by")) ? query.get("by") : "reason";
  const all = actions.includes("redrive") ? button("Redrive…", () => actOnAll({ queue, filter, actions, chosen: "redrive", started }), { kind: "primary" }) : null;
  head(root, { title: queue, name: true, crumbs: [["Dead letters", "/dashboard/dead-letters"]], actions: [el("a", { class: "btn", href: linkTo(queue) }, "Queue"), all] });
  if (of.length) root.append(el("p", { class: "soft" }, "Dead letters of ", queueLinks(of)));
  if (!may.includes("read")) {
    root.append(empty("Your token may not read the messages of this queue."));
    return;
  }
  const path = input({ value: query.get("path") ?? filter.field ?? "", placeholder: "order.items.0.sku", on: { change: () => { remember({ path: path.value }); recount(); } } });
  const asked = field("Field", path, "Keys and places with dots between them");
  const groups = el("ul", { class: "groups", on: { click: ({ target }) => { const one = target.closest("button"); if (one) choose(JSON.parse(one.dataset.filter)); } } });
  const far = el("span", { class: "soft", role: "status" });
  const jobs = el("div", { class: "jobs" });
  const letters = el("div", { class: "stack" });
  root.append(jobs, el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", {}, "What they have in common"),
    el("div", { class: "toolbar" }, far, choices("Group by", WAYS, way, (chosen) => { way = chosen; remember({ by: way }); recount(); }))), asked, groups), letters);
  const found = messageList(letters, { queue, may, dead: true, filter, signal, started, filtered: (chosen) => { filter = chosen; mark(); } });
  let counting = new AbortController();
  let cheap = true;
  let later = 0;
  signal.addEventListener("abort", () => { counting.abort(); clearTimeout(later); });
  const [changed] = await Promise.all([jobList(jobs, { queue, signal }), recount(), found.load()]);
  follow({ queue, signal, jobs: (news) => changed(news.jobs), rows: ({ rows }) => {
    const row = rows.find((one) => one.name === queue);
    if (!row) return;
    found.changed(row);
    if (cheap) later ||= setTimeout(() => { later = 0; recount(); }, 1000);
  } });

  function started(job) {
    changed([job]);
    jobs.scrollIntoView({ block: "nearest" });
  }

  async function recount() {
    counting.abort();
    counting = new AbortController();
    asked.hidden = way !== "field";
    if (way === "field" && !path.value) {
      text(far, "");
      replace(groups, el("li", {}, empty("Name a field of the letters' bodies.")));
      return;
    }
    try {
      const { signal: mine } = counting;
      await countAll(queue, {}, { by: way === "field" ? `field:${path.value}` : way, signal: mine, told: (sum) => { if (!mine.aborted) draw(sum); } });
    } catch (error) {
      if (error.name !== "AbortError") text(far, words(error));
    }
  }

  function draw({ count: total, scanned, complete, groups: found_ }) {
    cheap = complete && scanned <= OFTEN;
    text(far, `${count(total, "letter")}${complete ? "" : "…"}`);
    const sorted = [...found_.values()].sort(way === "age" ? (a, b) => b.newest_at - a.newest_at : (a, b) => b.count - a.count).slice(0, 50);
    const rest = total - sorted.reduce((sum, group) => sum + group.count, 0);
    patch(groups, sorted.map((group) => groupLine(group)), rest ? el("li", { class: "soft" }, `and ${number(rest)} others`) : null, total || !complete ? null : el("li", {}, empty("No dead letters.", "Whatever dies shows up here by itself.")));
    for (const [place, { count: some }] of sorted.entries()) groups.children[place].querySelector(".group-bar").style.width = `${Math.max(0.5, (100 * some) / total)}%`;
    mark();
  }

  function groupLine(group) {
    const name = group.value === null ? (way === "field" ? "no such field" : "not a dead letter") : way === "age" ? told(group.filter) : shown(group.value);
    return el("li", {}, el("button", { type: "button", class: "group", disabled: group.filter === null, data: { filter: JSON.stringify(group.filter) } },
      el("span", { class: "group-bar", "aria-hidden": "true" }), el("bdi", { class: "group-name" }, name), el("span", { class: "soft group-age" }, "oldest ", moment(group.oldest_at)), el("span", { class: "num" }, number(group.count))));
  }

  function isChosen(group) {
    return group !== null && Object.entries(group).every(([key, value]) => JSON.stringify(filter[key]) === JSON.stringify(value)) && KEYS[way].every((key) => key in filter === key in group);
  }

  function choose(group) {
    const rest = Object.fromEntries(Object.entries(filter).filter(([key]) => !KEYS[way].includes(key)));
    found.set(isChosen(group) ? rest : { ...rest, ...group });
  }

  function mark() {
    for (const one of groups.querySelectorAll("button")) one.setAttribute("aria-pressed", String(isChosen(JSON.parse(one.dataset.filter))));
    if (all) text(all, Object.keys(filter).length ? "Redrive those that fit…" : "Redrive…");
  }
}
