// Schedules: messages that are sent again and again.

import { callBroker, can, get } from "./api.js";
import { el, patch } from "./dom.js";
import { hear, number, span } from "./format.js";
import { every } from "./live.js";
import { act, badge, button, confirm, empty, head, moment, named, queueLink, table } from "./ui.js";

export async function show(root, { signal }) {
  head(root, { title: "Schedules" });
  const place = el("section", { class: "card" });
  root.append(place);
  const heads = ["Name", "Queue", "When", "Next", "Last", "#Sent", ...(can("admin") ? ["Change"] : [])];
  const draw = async () => {
    const { at, schedules: found } = await get("/penstock/schedules", { signal });
    hear(at);
    patch(place, found.length ? table("Schedules", heads, found.map(row)) : empty("No schedules.", "A schedule sends a message again and again. Add one with ", el("code", {}, "penstock schedule add"), "."));
  };
  place.addEventListener("click", async ({ target }) => {
    const { name, deed } = target.dataset;
    if (!deed || (deed === "remove" && !(await confirm({ title: ["Remove ", named(name)], content: "It sends nothing any more.", action: "Remove", danger: true })))) return;
    await act(target, async () => {
      await (deed === "remove" ? callBroker("remove_schedule", { name }) : callBroker("change_schedule", { name, paused: deed === "pause" }));
      await draw();
    });
  });
  await every(5, draw, signal);
}

function row({ name, queue, cron, every, zone, paused, next_at, last_at, runs }) {
  const deed = (told) => button(told, null, { kind: "small", data: { name, deed: told.toLowerCase() }, "aria-label": `${told} ${name}` });
  return [named(name), queueLink(queue), cron === null ? `every ${span(every)}` : `${cron} (${zone})`, paused ? badge("paused", "warn") : moment(next_at), moment(last_at), number(runs), ...(can("admin") ? [[can("send") ? deed(paused ? "Resume" : "Pause") : null, " ", deed("Remove")]] : [])];
}
