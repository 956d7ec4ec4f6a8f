// Schedules: messages that are sent again and again.

import { callBroker, can } from "./api.js";
import { el, patch } from "./dom.js";
import { number, span } from "./format.js";
import { every } from "./live.js";
import { act, badge, confirm, empty, head, moment, named, queueLink, table } from "./ui.js";

export async function show(root, { signal }) {
  head(root, { title: "Schedules" });
  const place = el("section", { class: "card" });
  root.append(place);
  const draw = async () => {
    const found = await callBroker("schedules", {}, { signal });
    patch(place, found.length ? table("Schedules", ["Name", "Queue", "When", "Next", "Last", "#Sent", "Change"], found.map(row)) : empty("No schedules.", el("code", {}, "penstock schedule add …")));
  };
  place.addEventListener("click", async ({ target }) => {
    const { name, deed } = target.dataset;
    if (!deed || (deed === "remove" && !(await confirm({ title: ["Remove ", named(name)], content: "It sends nothing any more.", action: "Remove", danger: true })))) return;
    await act(target, () => (deed === "remove" ? callBroker("remove_schedule", { name }) : callBroker("change_schedule", { name, paused: deed === "pause" })));
    await draw();
  });
  await every(5, draw, signal);
}

function row({ name, queue, cron, every, zone, paused, next_at, last_at, runs }) {
  const deed = (told) => el("button", { type: "button", class: "btn small", data: { name, deed: told.toLowerCase() }, "aria-label": `${told} ${name}` }, told);
  return [named(name), queueLink(queue), cron === null ? `every ${span(every)}` : `${cron} (${zone})`, paused ? badge("paused", "warn") : moment(next_at), moment(last_at), number(runs), can("admin") ? [deed(paused ? "Resume" : "Pause"), " ", deed("Remove")] : null];
}
