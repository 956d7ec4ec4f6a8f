// Jobs: what the server does to all messages that fit a filter. It goes on when this page is closed.

import { can, get, post, remove } from "./api.js";
import { el, patch } from "./dom.js";
import { told } from "./filters.js";
import { count, number, shown } from "./format.js";
import { follow } from "./live.js";
import { act, badge, button, empty, head, moment, named, progress, queueLink, soft, toast, words } from "./ui.js";

const DOING = { delete: "Delete", release: "Release", move: "Move", redrive: "Redrive" };
const DONE = { delete: "deleted", release: "released", move: "moved", redrive: "redriven" };
const KINDS = { running: "accent", completed: "good", cancelling: "warn", cancelled: "warn", failed: "bad" };

export async function show(root, { signal }) {
  head(root, { title: "Jobs" });
  const place = el("div", { class: "jobs" });
  root.append(place);
  await list(place, { signal, follows: true, nothing: () => empty("No jobs.", "Deleting, moving or redriving all messages that fit a filter is a job. It shows here, and goes on when this page is closed.") });
}

/** Keep the jobs, or those of one queue, in `place`. Returns what to call with changed jobs, unless it `follows` them itself. */
export async function list(place, { queue = null, signal, nothing = () => null, follows = false }) {
  const known = new Map();
  const changed = (jobs) => {
    for (const job of jobs) if (queue === null || job.queue === queue) known.set(job.id, job);
    patch(place, known.size ? [...known.values()].sort((a, b) => b.started_at - a.started_at).map(line) : nothing());
  };
  const load = async () => {
    const { jobs } = await get("/penstock/jobs" + (queue === null ? "" : `?queue=${encodeURIComponent(queue)}`), { signal });
    known.clear();
    changed(jobs);
  };
  place.addEventListener("click", ({ target }) => {
    const stop = target.closest("[data-stop]");
    if (stop) act(stop, async () => { await remove(`/penstock/jobs/${encodeURIComponent(stop.dataset.stop)}`); await load(); });
  });
  await load();
  // After a gap, a job may have ended without a word.
  if (follows) follow({ signal, jobs: ({ jobs }) => changed(jobs), rows: ({ whole }) => whole && load().catch((error) => toast(words(error), "bad")) });
  return changed;
}

/** One job: what it does, how far it is, and a way to stop it. */
function line(job) {
  const { id, action, status, done, total = null, stayed, scanned = 0, messages } = job;
  const all = Math.max(1, total ?? messages ?? 1);
  const bar = progress(status === "completed" ? all : total === null ? scanned : done + (stayed ?? 0), all, `Progress: ${DOING[action]} in ${shown(job.queue)}`);
  const may = status === "running" && can(["delete", "release"].includes(action) ? "receive" : "admin");
  return el("section", { class: "card job", "aria-label": `${DOING[action]} in ${shown(job.queue)}` },
    el("div", { class: "job-head" },
      el("b", {}, DOING[action]), el("span", {}, told(job.filter)), soft("in"), queueLink(job.queue),
      job.to ? [soft("to"), queueLink(job.to)] : null,
      el("span", { class: "spacer" }), badge(status, KINDS[status]), may ? button("Cancel", null, { kind: "small", data: { stop: id } }) : null),
    bar,
    el("div", { class: "job-foot" }, el("span", {}, `${number(done)} ${total === null ? "" : `of ${number(total)} `}${DONE[action]}${stayed ? `, ${count(stayed, "message")} stayed` : ""}`),
      soft("begun ", moment(job.started_at), job.by ? [" by ", named(job.by)] : null, job.rate ? `, at most ${number(job.rate)} a second` : null)),
    job.reason ? el("p", { class: status === "failed" ? "bad" : "soft" }, shown(job.reason)) : null);
}

export async function begin(job) {
  const begun = await post("/penstock/jobs", job);
  toast(`${DOING[job.action]}: ${told(job.filter)}. The job runs on the server.`);
  return begun;
}
