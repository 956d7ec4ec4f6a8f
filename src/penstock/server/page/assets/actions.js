// What can be done to messages: to those that were chosen, or to all that fit a filter, which the server does as a job.

import { at, call, get, post, typed } from "./api.js";
import { el, replace } from "./dom.js";
import { told as inWords } from "./filters.js";
import { count, number } from "./format.js";
import { begin } from "./jobs.js";
import { act, button, confirm, dialog, field, input, named, toast, words } from "./ui.js";

/** What each needs a right to, and the words for it. */
const ACTIONS = {
  delete: { scope: "receive", told: "Delete", done: "deleted", danger: true, hint: "They are gone for good, also for a receiver that holds one." },
  release: { scope: "receive", told: "Release", done: "released", hint: "Messages in flight or delayed can be received at once." },
  move: { scope: "admin", told: "Move", done: "moved", hint: "They begin a new life in another queue." },
  redrive: { scope: "admin", told: "Redrive", done: "redriven", hint: "Dead letters go back to the queue where they died." },
};

/** The actions that this reader may take; redrive is for dead letters. */
export function allowed(may, { dead = false } = {}) {
  return Object.keys(ACTIONS).filter((name) => may.includes(ACTIONS[name].scope) && (name !== "redrive" || dead));
}

/** A button for each action on chosen messages; `done(action)` after one that changed something. */
export function actionButtons(actions, queue, ids, done) {
  return actions.map((name) => {
    const made = button(ACTIONS[name].told, () => actOn(made, queue, name, ids(), done), { kind: name === "delete" ? "danger" : "" });
    return made;
  });
}

async function actOn(pressed, queue, action, ids, done) {
  const { told, done: past, danger } = ACTIONS[action];
  const what = ids.length === 1 ? "this message" : count(ids.length, "message");
  const to = action === "move" ? await askTarget(queue, `Move ${what}`) : null;
  if (action === "move" ? to === null : danger && !(await confirm({ title: `${told} ${what}?`, content: `From ${queue}. This cannot be undone.`, action: told, danger }))) return;
  await act(pressed, async () => {
    const changed = await perform(queue, action, ids, to);
    toast(`${count(changed, "message")} ${past}.${changed < ids.length ? ` ${number(ids.length - changed)} stayed: held, gone, or not dead letters.` : ""}`, changed ? "good" : "bad");
    if (changed) await done(action);
  });
}

async function perform(queue, action, ids, to) {
  if (action === "delete") return (await call(queue, "delete_many", { messages: ids })).filter(Boolean).length;
  if (action === "release") {
    let released = 0;
    for (const id of ids) released += Number(await call(queue, "release", { message: id }));
    return released;
  }
  return (await call(queue, "redrive", to === null ? { ids } : { ids, to }))[0];
}

/** Count what fits in as many answers as it takes; `told({count, scanned, complete, groups})` after each. */
export async function countAll(queue, filter, { by = null, signal, told }) {
  const sum = { count: 0, scanned: 0, complete: false, groups: new Map() };
  let after = null;
  do {
    const part = await post(at(queue, "select"), { filter, by, after }, { signal });
    sum.count += part.count;
    sum.scanned += part.scanned;
    for (const group of part.groups ?? []) {
      const key = JSON.stringify([group.value, group.filter]);
      const known = sum.groups.get(key) ?? { ...group, count: 0 };
      sum.groups.set(key, { ...known, count: known.count + group.count, oldest_at: Math.min(known.oldest_at, group.oldest_at), newest_at: Math.max(known.newest_at, group.newest_at) });
    }
    after = part.more;
    sum.complete = after === null;
    told(sum);
  } while (after !== null);
  return sum;
}

/** Choose what happens to all that fit a filter; the count comes first. `started(job)` when the server has begun. */
export function actOnAll({ queue, filter, actions, chosen = actions[0], started = () => null }) {
  const leaving = new AbortController();
  const found = el("p", { role: "status" }, "Counting…");
  const hint = el("p", { class: "soft" });
  const target = input();
  const to = el("div", {}, field("To the queue", target), suggest(target, queue));
  const rate = field("At most so many a second", el("input", { type: "number", min: 1, inputmode: "numeric", placeholder: "as fast as it goes" }), "Consumers may need time for what comes back.");
  const choose = el("select", { on: { change: change } }, actions.map((name) => el("option", { value: name, selected: name === chosen }, ACTIONS[name].told)));
  let total = null;
  const go = button("…", () => act(go, start), { type: "submit", disabled: true });
  const box = dialog("All that fit", [
    el("p", {}, "In ", named(queue), `: ${inWords(filter)}.`), found, field("Do this", choose), hint, to, rate,
  ], go, { closed: () => leaving.abort() });
  change();
  countAll(queue, filter, { signal: leaving.signal, told: ({ count: fit, scanned, complete }) => {
    found.textContent = `${count(fit, "message")} ${fit === 1 ? "fits" : "fit"}${complete ? "" : "…"} (${number(scanned)} looked at)`;
    if (!complete) return;
    total = fit;
    change();
  } }).catch((error) => { if (!leaving.signal.aborted) found.textContent = words(error); });
  return box;

  function change() {
    const { told, hint: more, danger } = ACTIONS[choose.value];
    to.hidden = choose.value !== "move";
    rate.hidden = choose.value === "delete";
    hint.textContent = more;
    go.className = `btn ${danger ? "danger" : "primary"}`;
    go.textContent = total === null ? told : `${told} ${count(total, "message")}`;
    go.disabled = !total;
  }

  async function start() {
    const job = { queue, action: choose.value, filter, expect: total };
    if (choose.value === "move") job.to = target.value;
    const most = Number(rate.querySelector("input").value);
    if (!rate.hidden && most > 0) job.rate = most;
    const begun = await begin(job);
    box.close();
    started(begun);
  }
}

function suggest(asking, without) {
  const list = el("datalist", { id: `queues-${Math.random().toString(36).slice(2)}` });
  asking.setAttribute("list", list.id);
  let asked = 0;
  const look = async () => {
    const turn = ++asked;
    const { queues } = await get(`/penstock/overview?limit=20&filter=${encodeURIComponent(asking.value)}`);
    if (turn === asked) replace(list, queues.filter(({ name }) => name !== without).map(({ name }) => el("option", { value: name })));
  };
  for (const event of ["focus", "input"]) asking.addEventListener(event, () => look().catch(() => null));
  return list;
}

function askTarget(queue, title) {
  return new Promise((resolve) => {
    const name = input({ autofocus: true });
    const go = button("Move", () => name.value && box.close("yes"), { type: "submit", kind: "primary" });
    const box = dialog(title, [field("To the queue", name), suggest(name, queue)], go,
      { closed: (said) => resolve(said === "yes" ? name.value : null) });
  });
}

const TYPES = ["application/json", "text/plain; charset=utf-8", "application/octet-stream"];

/** Write a message and send it. `draft`: {body, content_type, group, attributes}, to begin with; `sent()` afterwards. */
export function sendDialog(queue, { draft = {}, groups = false, sent = () => null } = {}) {
  const body = el("textarea", { rows: 8, spellcheck: "false", autofocus: true, props: { value: draft.body ?? "" } });
  const list = el("datalist", { id: "content-types" }, TYPES.map((value) => el("option", { value })));
  const type = input({ value: draft.content_type ?? TYPES[0], list: list.id });
  const delay = el("input", { type: "number", min: 0, step: "any", placeholder: "that of the queue" });
  const group = input({ value: draft.group ?? "" });
  const key = input();
  const attributes = el("textarea", { rows: 3, spellcheck: "false", class: "low", props: { value: (draft.attributes ?? []).map(({ name, value }) => `${name}=${value}`).join("\n") } });
  const wrong = el("p", { class: "wrong", role: "alert" });
  const go = button("Send", () => act(go, send), { type: "submit", kind: "primary" });
  const box = dialog(["Send to ", named(queue)], [
    field("Body", body), el("div", { class: "fields" }, field("Content type", type), field("Delay", delay, "Seconds"), groups || draft.group ? field("Group", group, "In order, one at a time") : null, field("Key", key, "Makes equal messages duplicates")),
    field("Attributes", attributes, "One in each line: name=value"), list, wrong,
  ], go, { wide: true });
  return box;

  async function send() {
    wrong.textContent = "";
    const given = { body: new TextEncoder().encode(body.value), content_type: type.value || TYPES[2], attributes: new Map() };
    if (delay.value !== "") given.delay = Number(delay.value);
    if (group.value) given.group = group.value;
    if (key.value) given.key = key.value;
    try {
      if (/^application\/json\b/.test(given.content_type)) check(body.value);
      for (const line of attributes.value.split("\n").filter((one) => one.trim())) {
        const cut = line.indexOf("=");
        if (cut < 1) throw new Error(`“${line}” is not name=value.`);
        given.attributes.set(line.slice(0, cut), line.slice(cut + 1));
      }
      const [answer] = await call(queue, "send_many", { drafts: [typed("Draft", given)] });
      box.close();
      toast(answer.duplicate ? "The queue has an equal message already, and took no second one." : "Sent: the message is safe.", answer.duplicate ? "" : "good");
      sent();
    } catch (error) {
      wrong.textContent = words(error);
    }
  }
}

function check(body) {
  try {
    JSON.parse(body);
  } catch (error) {
    throw new Error(`The body is not JSON: ${error.message}. Mend it, or change the content type.`);
  }
}

/** Remove every message, once the name of the queue was typed; `done()` after that. */
export async function purge(pressed, queue, done) {
  const content = "Every message is removed, received or not, except those of named claims. This cannot be undone.";
  if (!(await confirm({ title: "Purge this queue?", content, action: "Purge", danger: true, typed: queue }))) return;
  await act(pressed, async () => {
    toast(`${count(await call(queue, "purge"), "message")} removed.`, "good");
    await done();
  });
}
