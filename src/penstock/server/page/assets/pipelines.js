// Pipelines on Spark.

import { get } from "./api.js";
import { el, patch } from "./dom.js";
import { ago, duration, hear, number, rate, shown } from "./format.js";
import { every } from "./live.js";
import { badge, card, empty, head, moment, named, queueLink, table } from "./ui.js";

const QUIET = 60;
const FATES = { reject: "rejected", drop: "dropped" };

export async function show(root, { signal }) {
  head(root, { title: "Pipelines" });
  const place = el("div", { class: "stack" });
  root.append(place);
  await every(5, async () => draw(place, await get("/penstock/pipelines", { signal })), signal);
}

function draw(place, { at, pipelines }) {
  hear(at);
  if (!pipelines.length) {
    patch(place, el("div", { class: "card" }, empty("No pipeline has reported yet.", "Spark streams do so by themselves: ", el("code", {}, "penstock pipeline archive orders archive/"), ".")));
    return;
  }
  const heads = ["Pipeline", "Reads", "Writes", "State", "#Rows", "#Rows / s", "#Lag", "#Batch", "Checks", "Seen", "Report"];
  patch(place, el("section", { class: "card" }, table("Pipelines", heads, pipelines.map(row))),
    pipelines.filter((one) => one.last_error).map((one) => card(["Last error of ", named(one.name)], el("pre", { class: "code", tabindex: "0" }, shown(one.last_error)))));
}

function row(one) {
  const report = one.report ? el("a", { href: one.report, rel: "noopener noreferrer", target: "_blank" }, "Open") : "–";
  const lag = one.reads.length > 1 ? list(one.lags, number) : number(one.lags[one.source] ?? one.lag);
  const checks = list(one.checks, ({ action, rows, failed }) => el("span", { class: failed ? "warn" : "soft" }, `${number(failed)} of ${number(rows)} ${FATES[action] ?? "failed"}`));
  return [named(one.name), queues(one.reads), queues(one.writes), state(one), number(one.rows), rate(one.rate), lag, duration(one.batch_seconds), checks, moment(one.seen_at), report];
}

function state({ last_error, finished, seen_at }) {
  if (last_error) return badge("failed", "bad");
  if (finished) return badge("finished");
  return ago(seen_at) > QUIET ? badge("silent", "warn") : badge("running", "good");
}

function list(values, told) {
  const lines = Object.entries(values).map(([name, value]) => el("div", {}, named(name), " ", told(value)));
  return lines.length ? lines : "–";
}

function queues(names) {
  return names.length ? names.map((name) => el("div", {}, queueLink(name))) : "–";
}
