// Jobs: what the server does to all messages that fit a filter. It goes on when this page is closed.

import { can, get, post, remove } from "./api.js";
import { el } from "./dom.js";
import { told } from "./filters.js";
import { count, number, shown } from "./format.js";
import { follow } from "./live.js";
import { act, badge, button, empty, head, moment, named, progress, queueLink, swap, toast, trouble } from "./ui.js";

const DOING = { delete: "Delete", release: "Release", move: "Move", redrive: "Redrive" };
const DONE = { delete: "deleted", release: "released", move: "moved", redrive: "redriven" };
const KINDS = { running: "accent", completed: "good", cancelling: "warn", cancelled: "warn", failed: "bad" };

export async function show(root, { signal }) {
  head(root, { title: "Jobs" });
  const place = el("div", { class: "jobs" });
  root.append(place);
  await list(place, { signal, follow: true, nothing: () => empty("No jobs.", "Deleting, moving or redriving all messages that fit a filter is a job. It shows here, and goes on when this page is closed.") });
}

/** Keep the jobs, or those of one queue, in `place`. Returns what to call with changed jobs; `following` if the view has a stream. */
export async function list(place, { queue = null, signal, nothing = () => null, follow: follows = false }) {
  const known = new Map();
  const shownAs = new Map();
  const draw = () => {
    const jobs = [...known.values()].sort((a, b) => b.started_at - a.started_at);
    if (!jobs.length) return swap(place, nothing());
    for (const id of shownAs.keys()) if (!known.has(id)) shownAs.delete(id);
    const cards = jobs.map((job) => {
      if (!shownAs.has(job.id)) shownAs.set(job.id, line(job));
      shownAs.get(job.id).update(job);
      return shownAs.get(job.id).node;
    });
    if (cards.length !== place.childElementCount || cards.some((card, index) => place.children[index] !== card)) swap(place, cards);
    return undefined;
  };
  const changed = (jobs) => {
    for (const job of jobs) if (queue === null || job.queue === queue) known.set(job.id, job);
    draw();
  };
  const load = async () => {
    const { jobs } = await get("/penstock/jobs" + (queue === null ? "" : `?queue=${encodeURIComponent(queue)}`), { signal });
    known.clear();
    changed(jobs);
  };
  await load();
  // Whoever was away asks for all of them again: a job may have ended meanwhile.
  if (follows) follow({ signal, jobs: ({ jobs }) => changed(jobs), rows: ({ whole }) => whole && load().catch((error) => swap(place, trouble(error, load))) });
  return changed;
}

/** One job: what it does, how far it is, and a way to stop it. */
function line(first) {
  const state = badge("");
  const bar = progress(0, 1, `Progress: ${DOING[first.action]} in ${first.queue}`);
  const far = el("span", { class: "job-far" });
  const why = el("p", { class: "bad" });
  const stop = button("Cancel", () => act(stop, () => remove(`/penstock/jobs/${encodeURIComponent(first.id)}`)), { kind: "small" });
  const node = el("section", { class: "card job", data: { job: first.id }, "aria-label": `${DOING[first.action]} in ${shown(first.queue)}` },
    el("div", { class: "job-head" },
      el("b", {}, DOING[first.action] ?? shown(first.action)), el("span", {}, told(first.filter)),
      el("span", { class: "soft" }, "in"), queueLink(first.queue),
      first.to ? [el("span", { class: "soft" }, "to"), queueLink(first.to)] : null,
      el("span", { class: "spacer" }), state, stop),
    bar,
    el("div", { class: "job-foot" }, far,
      el("span", { class: "soft" }, "begun ", moment(first.started_at), first.by ? [" by ", named(first.by)] : null, first.rate ? `, at most ${number(first.rate)} a second` : null)),
    why);

  function update(job) {
    const over = !["running", "cancelling"].includes(job.status);
    state.className = `badge ${KINDS[job.status] ?? ""}`;
    state.textContent = job.status;
    const total = job.total ?? null;
    bar.max = Math.max(1, total ?? job.messages ?? 1);
    bar.value = job.status === "completed" ? bar.max : Math.min(bar.max, total === null ? job.scanned ?? 0 : job.done + (job.stayed ?? 0));
    far.textContent = `${number(job.done)} ${total === null ? "" : `of ${number(total)} `}${DONE[job.action] ?? "done"}${job.stayed ? `, ${count(job.stayed, "message")} stayed` : ""}`;
    why.textContent = job.reason ? shown(job.reason) : "";
    stop.hidden = over || job.status === "cancelling" || !can(job.action === "delete" || job.action === "release" ? "receive" : "admin");
  }

  return { node, update };
}

/** Begin a job; the answer is the job. */
export async function begin(job) {
  const begun = await post("/penstock/jobs", job);
  toast(`${DOING[job.action]}: ${told(job.filter)}. The job runs on the server.`);
  return begun.job ?? begun;
}
