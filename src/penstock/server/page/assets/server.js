// The server itself: how busy it is, what it stores where, what it did lately.

import { get } from "./api.js";
import { bars } from "./charts.js";
import { el, patch } from "./dom.js";
import { bytes, count, duration, number, shown, time } from "./format.js";
import { every } from "./live.js";
import { card, empty, head, moment, named, pairs, progress, table } from "./ui.js";

export async function show(root, { signal }) {
  head(root, { title: "Server" });
  const place = el("div", { class: "stack" });
  root.append(place);
  await every(5, async () => draw(place, await get("/penstock/server", { signal })), signal);
}

function draw(place, told) {
  patch(place,
    el("div", { class: "tiles" }, [[number(told.connections), "connections"], [number(told.resting_polls), "receivers waiting"], [number(told.pending_operations), "operations pending"], [number(told.workers), "workers"], [bytes(told.memory.used), "held for clients"], [moment(told.started_at), "started"]]
      .map(([value, name]) => el("div", { class: "tile" }, el("b", {}, value), el("span", {}, name)))),
    el("div", { class: "flow" }, about(told), latencies(told.latencies), nodes(told.nodes), memory(told.memory), commits(told.commit_sizes)),
    audit(told.audit));
}

function about({ version, python, store, started_at, pid }) {
  const traits = [store.durable ? "durable" : "not durable", store.ordered ? "in order" : null, store.groups ? "with groups" : null].filter(Boolean).join(", ");
  return card("About", pairs([["Penstock", version], ["Python", python], ["Store", `${store.kind}: ${traits}`], store.place ? ["Place", named(store.place)] : null, ["Started", time(started_at)], ["Process", String(pid)]]));
}

function memory({ used, max }) {
  return card("Memory held for clients", el("p", { class: "soft" }, `${bytes(used)} of ${bytes(max)}`), progress(used, max, "Memory held for clients"), el("p", { class: "soft small" }, "Requests wait, and then are refused, when this is full."));
}

function latencies(found) {
  const rows = Object.entries(found ?? {}).filter(([, one]) => one?.count);
  const heads = ["Dialect", { told: "Half", num: true }, { told: "90 %", num: true }, { told: "99 %", num: true }, { told: "Requests", num: true }];
  return card("Answer times", rows.length ? table("Answer times", heads, rows.map(([dialect, one]) => [shown(dialect), duration(one.p50), duration(one.p90), duration(one.p99), number(one.count)])) : empty("No request answered yet."));
}

function commits(found) {
  const buckets = Object.entries(found?.buckets ?? {}).filter(([, value]) => value > 0);
  return card("Operations in a commit", buckets.length ? bars("Operations in a commit", buckets.map(([most, value]) => ({ name: most === "+Inf" ? "more" : `up to ${most}`, value, told: count(value, "commit") }))) : empty("Nothing committed yet."));
}

function nodes(found) {
  if (!found?.length) return null;
  return card("Nodes on this store", table("Nodes", ["Node", "Address", "Version", "Seen"], found.map((one) => [named(one.name), one.address ? shown(one.address) : "–", shown(one.version), moment(one.seen_at)])));
}

function audit(lines) {
  if (!lines?.length) return card("Recent changes", empty("No change yet.", "Deletes, purges, settings and sign-ins are listed here."));
  const rows = [...lines].reverse();
  return card("Recent changes", el("ol", { class: "audit" }, rows.slice(0, 30).map(entry)), rows.length > 30 ? el("details", {}, el("summary", {}, `${rows.length - 30} more`), el("ol", { class: "audit" }, rows.slice(30).map(entry))) : null);
}

/** A line of the audit log, whatever its fields. */
function entry(line) {
  if (typeof line === "string") return el("li", { class: "mono" }, shown(line));
  const { at, ...rest } = line;
  return el("li", {}, el("time", { class: "soft" }, time(at)), Object.entries(rest).filter(([, value]) => value !== null && value !== "").map(([key, value]) => el("span", {}, el("span", { class: "soft" }, `${key} `), named(typeof value === "object" ? JSON.stringify(value) : value))));
}
