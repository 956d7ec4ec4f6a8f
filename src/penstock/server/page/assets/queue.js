// One queue: how deep it is and was, how long messages wait, who holds them, what it promises.

import { at, call, callBroker, get } from "./api.js";
import { go, remember } from "./app.js";
import { curve } from "./charts.js";
import { el, patch, replace, text } from "./dom.js";
import { age, ago, count, duration, hear, number, rate, short } from "./format.js";
import { every, follow } from "./live.js";
import { editSettings, settingsPairs } from "./settings.js";
import { act, badge, button, card, choices, confirm, empty, head, linkTo, moment, named, queueLink, queueLinks, soft, table, tiles, toast } from "./ui.js";

const SPANS = [["minute", "Minute"], ["hour", "Hour"], ["day", "Day"]];
const TILES = [["messages", "messages", short], ["visible", "visible", short], ["in_flight", "in flight", short], ["delayed", "delayed", short], ["damaged", "damaged", short], ["oldest_age", "oldest", age], ["rate_in", "in / s", rate], ["rate_out", "out / s", rate]];
const CALM = 2000; // Milliseconds between two looks at the details of a busy queue.

export async function show(root, { queue, query, signal }) {
  const first = await get(at(queue, "summary"), { signal });
  const may = (scope) => first.may.includes(scope);
  const state = { summary: first };
  const pause = may("admin") ? button("", () => act(pause, async () => { await call(queue, "update", { paused: !state.summary.paused }); await look(); })) : null;
  head(root, { title: queue, name: true, crumbs: [["Queues", "/dashboard"]], actions: [
    may("read") ? el("a", { class: "btn primary", href: linkTo(queue, "messages") }, "Messages") : null,
    pause,
    may("admin") ? button("Edit settings", () => edit()) : null,
    may("admin") ? button("Delete queue", (event) => drop(event.target), { kind: "danger" }) : null,
  ] });
  const figures = tiles(TILES);
  const places = Object.fromEntries(["notes", "times", "settings", "holders", "readers"].map((name) => [name, el("div")]));
  const charts = chartCards(queue, query.get("span"), signal);
  root.append(
    figures.node, places.notes, charts.node,
    el("div", { class: "flow" }, card("How long messages take", places.times), may("read") ? [card("Consumers", places.holders), card("Readers", places.readers)] : null, card("Settings", places.settings)));

  function tell(row) {
    for (const [key, , say] of TILES) figures.tell(key, say(key === "oldest_age" ? ago(row.oldest_at) : row[key]));
  }

  function draw() {
    const { summary } = state;
    hear(summary.at);
    tell(summary);
    figures.values.get("damaged").classList.toggle("bad", summary.damaged > 0);
    if (pause) text(pause, summary.paused ? "Resume" : "Pause");
    patch(places.notes, notes(summary));
    patch(places.times, times(summary));
    patch(places.settings, settingsPairs(summary.settings));
    patch(places.holders, holders(summary));
    patch(places.readers, readers(summary.readers));
  }

  async function edit() {
    const { queues } = await get("/penstock/overview?limit=500", { signal });
    editSettings(queue, state.summary.settings, queues.map(({ name }) => name).filter((name) => name !== queue), look);
  }

  async function drop(pressed) {
    const content = el("p", {}, "This deletes the queue ", named(queue), ` and ${count(state.summary.messages, "message")} in it. It cannot be undone.`);
    if (!await confirm({ title: "Delete this queue?", content, action: "Delete queue", danger: true, typed: queue })) return;
    await act(pressed, async () => {
      await callBroker("delete", { name: queue });
      toast(`The queue ${queue} is deleted.`, "good");
      await go("/dashboard");
    });
  }

  async function look() {
    state.summary = await get(at(queue, "summary"), { signal });
    draw();
  }

  let timer = null;
  const clock = setInterval(() => tell(state.summary), 1000);
  signal.addEventListener("abort", () => { clearTimeout(timer); clearInterval(clock); });
  const gone_too = new AbortController();
  follow({ queue, signal: AbortSignal.any([signal, gone_too.signal]), rows({ rows, gone }) {
    if (gone.includes(queue)) {
      gone_too.abort();
      replace(root, empty("This queue is gone.", el("a", { href: "/dashboard" }, "All queues")));
      return;
    }
    const row = rows.find(({ name }) => name === queue);
    if (!row) return;
    tell(Object.assign(state.summary, { ...row, readers: state.summary.readers }));
    timer ??= setTimeout(() => {
      timer = null;
      look().catch(() => null);
    }, CALM);
  } });
  draw();
  await charts.open();
}

/** The two curves of a queue, for the last minute, hour or day. */
function chartCards(queue, wanted, signal) {
  let span = SPANS.some(([value]) => value === wanted) ? wanted : "hour";
  const depth = curve("Messages", { say: short, none: "Nothing is known of this time yet." });
  const rates = curve("Messages a second", { say: rate, none: "Nothing is known of this time yet." });
  const chooser = choices("Time shown", SPANS, span, (value) => {
    span = value;
    remember({ span: value === "hour" ? null : value });
    look().catch((error) => toast(error.message, "bad"));
  });
  const node = el("section", { class: "card" }, el("div", { class: "card-head" }, el("h2", {}, "Over time"), chooser),
    el("div", { class: "two" }, el("div", {}, el("h3", {}, "Messages"), depth.node), el("div", {}, el("h3", {}, "Messages a second"), rates.node)));

  async function look() {
    const asked = span;
    const told = await get(at(queue, "curve") + `?span=${asked}`, { signal });
    if (asked !== span) return;
    const points = (values) => values.map((value, place) => [told.from_at / 1e6 + place * told.step, value]);
    const axis = { step: told.step, from: told.from_at / 1e6, to: told.from_at / 1e6 + (told.depth.length - 1) * told.step };
    depth.update({ ...axis, lines: [{ name: "in the queue", colour: "a", area: true, points: points(told.depth) }, { name: "in flight", colour: "b", points: points(told.in_flight) }] });
    rates.update({ ...axis, lines: [{ name: "in", colour: "a", points: points(told.rate_in) }, { name: "out", colour: "c", points: points(told.rate_out) }] });
  }

  return { node, open: () => every(5, look, signal) };
}

/** Whether it rests, where dead letters go, and whose dead letters these are. */
function notes({ name, paused, dead_letter_queue, dead_letters, dead_letter_of, settings }) {
  const lines = paused ? [el("p", { class: "warn" }, "This queue is paused: it takes messages, and nobody receives them until it is resumed.")] : [];
  if (dead_letter_queue) {
    const there = el("a", { href: `/dashboard/dead-letters/${encodeURIComponent(dead_letter_queue)}`, class: dead_letters > 0 ? "bad" : null }, dead_letters === null ? "its dead letters" : count(dead_letters, "dead letter"));
    lines.push(el("p", {}, `A message that was received ${settings.redrive ? count(settings.redrive.max_receives, "time") : "too often"} goes to `, queueLink(dead_letter_queue), ", which has ", there, "."));
  }
  if (dead_letter_of?.length) {
    lines.push(el("p", {}, "This queue has the dead letters of ", queueLinks(dead_letter_of), ". ", el("a", { href: `/dashboard/dead-letters/${encodeURIComponent(name)}` }, "Look at them by reason"), "."));
  }
  return lines.length ? el("div", { class: "card note" }, lines) : null;
}

function times({ waiting, handling }) {
  const rows = [["Waiting", "sent to first received", waiting], ["Handling", "received to settled", handling]].filter(([, , found]) => found?.count);
  if (!rows.length) return empty("Nothing measured yet.", "Times appear when messages are received.");
  return table("How long messages take", ["Time", "#Median", "#90 %", "#99 %", "#Messages"],
    rows.map(([told, hint, found]) => [[told, el("div", { class: "soft small" }, hint)], duration(found.p50), duration(found.p90), duration(found.p99), number(found.count)]));
}

function holders({ holders: found, holders_complete: complete }) {
  if (!found?.length) return empty("Nobody holds a message.", "A consumer appears here while it asks for messages or holds some.");
  const rows = found.map((one) => [one.holder === null ? soft("without a name") : named(one.holder), one.receives ? badge("asks for more", "good") : one.registered ? badge("alive") : "", number(one.messages), moment(one.oldest_claim_at), moment(one.next_expiry_at)]);
  return [table("Consumers", ["Consumer", "State", "#Holds", "Since", "Heartbeat due"], rows), complete ? null : el("p", { class: "soft small" }, "There are more: only a part of the messages in flight was looked at.")];
}

function readers(found) {
  if (!found?.length) return empty("No reader.", "A Spark stream appears here with its epoch and its lag.");
  return table("Readers", ["Reader", "#Epoch", "#Settled", "#Holds", "#Lag"],
    found.map((one) => [named(one.reader), number(one.epoch), number(one.settled_epoch), number(one.messages), number(one.lag)]));
}
