// Spark streams that report to this server.

import { get } from "./api.js";
import { el, patch } from "./dom.js";
import { ago, duration, hear, number, rate, shown } from "./format.js";
import { every } from "./live.js";
import { badge, card, empty, head, moment, named, queueLink, table } from "./ui.js";

const QUIET = 60; // Seconds without a word after which a stream counts as silent.

export async function show(root, { signal }) {
  head(root, { title: "Pipelines" });
  const place = el("div", { class: "stack" });
  root.append(place);
  await every(5, async () => draw(place, await get("/penstock/pipelines", { signal })), signal);
}

function draw(place, { at, pipelines }) {
  hear(at);
  if (!pipelines.length) {
    patch(place, el("div", { class: "card" }, empty("No pipeline has reported yet.", "A Spark stream on this server reports here by itself: ", el("code", {}, "penstock pipeline archive orders archive/"), ".")));
    return;
  }
  const heads = ["Pipeline", "Reads", "Writes", "State", "#Rows", "#Rows / s", "#Lag", "#Batch", "Failed checks", "Seen", "Report"];
  patch(place, el("section", { class: "card" }, table("Pipelines", heads, pipelines.map(row))),
    pipelines.filter((one) => one.last_error).map((one) => card(["Last error of ", named(one.name)], el("pre", { class: "code", tabindex: "0" }, shown(one.last_error)))));
}

function row(one) {
  const report = one.report ? el("a", { href: one.report, rel: "noopener noreferrer", target: "_blank" }, "Open") : "–";
  return [named(one.name), queues(one.reads), queues(one.writes), state(one), number(one.rows), rate(one.rate), number(one.lag), duration(one.batch_seconds), checks(one.checks), moment(one.seen_at), report];
}

function state({ last_error, finished, seen_at }) {
  if (last_error) return badge("failed", "bad");
  if (finished) return badge("finished");
  return ago(seen_at) > QUIET ? badge("silent", "warn") : badge("running", "good");
}

function checks(made) {
  return Object.entries(made).map(([name, { rows, failed }]) => el("div", {}, named(name), ` ${number(failed)} of ${number(rows)}`));
}

function queues(names) {
  return names.length ? names.map((name, place) => [place ? ", " : "", queueLink(name)]) : "–";
}
