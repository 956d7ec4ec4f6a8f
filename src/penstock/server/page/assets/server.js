// The server itself: how busy it is, what it stores where, what it did lately.

import { get } from "./api.js";
import { bars } from "./charts.js";
import { el, patch } from "./dom.js";
import { ago, bytes, count, duration, hear, number, shown, time } from "./format.js";
import { every } from "./live.js";
import { badge, card, empty, head, moment, named, pairs, progress, queueLink, table } from "./ui.js";

const SILENT = 60; // Seconds after which a node that says nothing is worth a look.
const FORGOTTEN = 3600;
const SHOWN = 20;

export async function show(root, { signal }) {
  head(root, { title: "Server" });
  const place = el("div", { class: "stack" });
  root.append(place);
  await every(5, async () => draw(place, await get("/penstock/server", { signal })), signal);
}

function draw(place, told) {
  hear(told.at);
  patch(place,
    el("div", { class: "tiles" }, [[number(told.connections), "connections"], [number(told.resting_polls), "receivers waiting"], [number(told.pending_operations), "operations pending"], [number(told.workers), "workers"], [bytes(told.memory.used), "held for clients"], [moment(told.started_at), "started"]]
      .map(([value, name]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name)))),
    el("div", { class: "flow" }, about(told), latencies(told.latencies), nodes(told.nodes), memory(told.memory), commits(told.commit_sizes, told.commit_seconds)),
    audit(told.audit));
}

function about({ version, python, store, started_at, pid }) {
  const traits = [store.durable ? "durable" : "not durable", store.ordered ? "in order" : null, store.groups ? "with groups" : null].filter(Boolean).join(", ");
  return card("About", pairs([["Penstock", version], ["Python", python], ["Store", `${store.kind}: ${traits}`], store.place ? ["Where", named(store.place)] : null, ["Started", time(started_at)], ["Process", String(pid)]]));
}

function memory({ used, max }) {
  return card("Memory held for clients", el("p", { class: "soft" }, `${bytes(used)} of ${bytes(max)}`), progress(used, max, "Memory held for clients"), el("p", { class: "soft small" }, "Requests wait, and then are refused, when this is full."));
}

function latencies(found) {
  const rows = Object.entries(found ?? {}).filter(([, one]) => one?.count);
  const heads = ["Dialect", "#Median", "#90 %", "#99 %", "#Requests"];
  return card("Answer times", rows.length ? table("Answer times", heads, rows.map(([dialect, one]) => [shown(dialect), duration(one.p50), duration(one.p90), duration(one.p99), number(one.count)])) : empty("No request answered yet."));
}

function commits(found, seconds) {
  const buckets = Object.entries(found?.buckets ?? {}).filter(([, value]) => value > 0);
  return card("Operations in a commit", buckets.length ? bars("Operations in a commit", buckets.map(([most, value]) => ({ name: most === "+Inf" ? "more" : `up to ${most}`, value, told: count(value, "commit") }))) : empty("Nothing committed yet."), seconds?.count ? el("p", { class: "soft small" }, `A commit takes ${duration(seconds.p50)}; 99 % take at most ${duration(seconds.p99)}.`) : null);
}

function nodes(found) {
  const rows = found.filter(({ here, seen_at }) => here || ago(seen_at) < FORGOTTEN).map(({ name, here, version, started_at, seen_at }) => [[named(name), here ? [" ", badge("this one", "accent")] : null], named(version), moment(started_at), here ? "now" : moment(seen_at, { class: ago(seen_at) > SILENT ? "warn" : null })]);
  return card("Nodes on this store", table("Nodes on this store", ["Node", "Version", "Started", "Seen"], rows));
}

function audit(lines) {
  if (!lines.length) return card("Recent changes", empty("No change yet.", "Deletes, purges, settings and sign-ins are listed here."));
  const rows = lines.toReversed().map(({ at, deed, token, queue, ...facts }) => [el("time", {}, time(at)), named(deed), queue ? queueLink(queue) : "–", token ? named(token) : "–", Object.entries(facts).map(([key, value]) => `${key} ${typeof value === "string" ? shown(value) : JSON.stringify(value)}`).join(", ")]);
  const heads = ["Time", "What", "Queue", "Token", "More"];
  return card("Recent changes", table("Recent changes", heads, rows.slice(0, SHOWN)), rows.length > SHOWN ? el("details", {}, el("summary", {}, `${rows.length - SHOWN} more`), table("Earlier changes", heads, rows.slice(SHOWN))) : null);
}
