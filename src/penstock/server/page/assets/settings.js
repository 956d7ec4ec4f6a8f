// The settings of a queue: shown, changed, given to a new one. The server checks them.

import { call, callBroker } from "./api.js";
import { go } from "./app.js";
import { el } from "./dom.js";
import { span } from "./format.js";
import { act, button, dialog, field, input, linkTo, named, pairs, queueLink, toast, words } from "./ui.js";

const UNITS = { s: 1, m: 60, h: 3600, d: 86400, w: 604800 };
const DEFAULTS = { visibility: 30, retention: 4 * 86400, delay: 0, history: 0, deduplicate: false, redrive: null, groups: false, mode: "at_least_once" };
const TIMES = [
  ["visibility", "Visibility", "how long a received message stays hidden"],
  ["retention", "Retention", "how long a message is kept"],
  ["delay", "Delay", "before a sent message can be received"],
  ["history", "History", "how long settled messages stay readable; 0: not at all"],
];

export function settingsPairs(settings) {
  const { redrive, deduplicate, mode, groups, retry, labels } = settings;
  const names = Object.keys(labels ?? {});
  return pairs([
    ...TIMES.map(([key, told]) => [told, key === "history" && !settings[key] ? "none" : span(settings[key])]),
    ["Equal messages", deduplicate === true ? "refused while one is in the queue" : deduplicate === false ? "taken" : `refused for ${span(deduplicate)}`],
    ["Dead letters", redrive ? ["to ", redrive.dead_letter_queue === ":hidden" ? "a queue that you may not see" : queueLink(redrive.dead_letter_queue), ` after ${redrive.max_receives === 1 ? "1 receive" : `${redrive.max_receives} receives`}`] : "none"],
    ["Delivery", mode === "at_most_once" ? "at most once" : "at least once"],
    ["Groups", groups ? "kept in order" : "no"],
    retry && ["Retries", retry],
    names.length ? ["Labels", names.map((name) => el("div", {}, named(name), ": ", named(labels[name])))] : null,
  ]);
}

/** "90", "90 s", "1.5 h", "4 days" as seconds. */
function seconds(told, label) {
  const found = /^\s*(\d+(?:\.\d+)?)\s*((s|m|h|d|w)|sec|min|(second|minute|hour|day|week)s?|)\s*$/i.exec(told);
  if (!found) throw new Error(`${label}: "${told}" is no duration. Write 30 s, 5 min, 12 h or 4 days.`);
  return Number(found[1]) * (UNITS[found[2].charAt(0).toLowerCase()] ?? 1);
}

function controls(settings, queues, fresh) {
  const choose = (options, chosen) => el("select", {}, options.map(([value, told]) => el("option", { value, selected: value === chosen }, told)));
  const times = Object.fromEntries(TIMES.map(([key]) => [key, input({ value: span(settings[key]) })]));
  const equal = choose([["no", "taken"], ["yes", "refused while one is in the queue"], ["window", "refused for some time"]], settings.deduplicate === false ? "no" : settings.deduplicate === true ? "yes" : "window");
  const span_of_equal = input({ value: typeof settings.deduplicate === "number" ? span(settings.deduplicate) : "5 minutes" });
  const known = el("datalist", { id: "known-queues" }, queues.slice(0, 500).map((name) => el("option", { value: name })));
  const dead = input({ value: settings.redrive?.dead_letter_queue ?? "", list: "known-queues", placeholder: "none" });
  const most = el("input", { type: "number", min: 1, value: settings.redrive?.max_receives ?? 5 });
  const mode = choose([["at_least_once", "at least once"], ["at_most_once", "at most once"]], settings.mode);
  const groups = el("input", { type: "checkbox", checked: settings.groups });
  const window_field = field("Refused for", span_of_equal);
  const most_field = field("Receives before that", most);
  const see = () => {
    window_field.hidden = equal.value !== "window";
    most_field.hidden = !dead.value;
  };
  equal.addEventListener("change", see);
  dead.addEventListener("input", see);
  see();
  const node = el("div", { class: "fields" }, TIMES.map(([key, told, hint]) => field(told, times[key], hint)),
    field("Delivery", mode), field("Equal messages", equal), window_field, field("Dead letter queue", dead), most_field, known,
    fresh ? el("label", { class: "check" }, groups, "Keep the order within groups") : null);

  function read() {
    const chosen = Object.fromEntries(TIMES.map(([key, told]) => [key, seconds(times[key].value, told)]));
    chosen.deduplicate = { no: false, yes: true }[equal.value] ?? seconds(span_of_equal.value, "Refused for");
    chosen.redrive = dead.value ? [dead.value, Number(most.value)] : null;
    chosen.mode = mode.value;
    if (fresh) chosen.groups = groups.checked;
    return chosen;
  }

  return { node, read };
}

function changes(chosen, settings) {
  const before = { ...settings, redrive: settings.redrive ? [settings.redrive.dead_letter_queue, settings.redrive.max_receives] : null };
  return Object.fromEntries(Object.entries(chosen).filter(([key, value]) => JSON.stringify(value) !== JSON.stringify(before[key])));
}

export function editSettings(queue, settings, queues, done) {
  const form = controls(settings, queues, false);
  ask(["Settings of ", named(queue)], form.node, "Save", async () => {
    const changed = changes(form.read(), settings);
    if (!Object.keys(changed).length) return;
    await call(queue, "update", changed);
    toast("Settings changed.", "good");
    done();
  });
}

export function createQueue(queues) {
  const form = controls(DEFAULTS, queues, true);
  const name = input({ required: true, autofocus: true });
  ask("New queue", [field("Name", name), form.node], "Create", async () => {
    await callBroker("create", { name: name.value, ...changes(form.read(), DEFAULTS) });
    await go(linkTo(name.value));
  });
}

/** Stays open until the work has succeeded. */
function ask(title, content, told, work) {
  const wrong = el("p", { class: "bad", role: "alert" });
  const submit = button(told, null, { type: "submit", kind: "primary" });
  const box = dialog(title, [content, wrong], submit, { wide: true });
  box.querySelector("form").addEventListener("submit", () => act(submit, async () => {
    wrong.textContent = "";
    try {
      await work();
      box.close();
    } catch (error) {
      wrong.textContent = words(error);
    }
  }));
}
