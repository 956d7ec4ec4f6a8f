// The frame of the page: which view an address means, who is signed in, light or dark.
//
// A view is a module with `show(root, place)`. It fills `root`, an empty element, and may be async. `place` has:
//   queue, id   from the address, decoded        query   URLSearchParams of it
//   signal      an AbortSignal that ends when the reader leaves: every fetch, listener and timer of the view must end with it
// What `show` throws is shown in words. A link to /dashboard… leads to a view without a reload.

import { Failure, loadSession, session, signOut } from "./api.js";
import { el, replace } from "./dom.js";
import { act, button, empty, head, toast, trouble, words } from "./ui.js";

const VIEWS = [
  [/^(?:\/|\/dashboard\/?)$/, "overview", "queues"],
  [/^\/dashboard\/queues\/(?<queue>[^/]+)$/, "queue", "queues"],
  [/^\/dashboard\/queues\/(?<queue>[^/]+)\/messages$/, "messages", "queues"],
  [/^\/dashboard\/queues\/(?<queue>[^/]+)\/messages\/(?<id>[^/]+)$/, "message", "queues"],
  [/^\/dashboard\/dead-letters(?:\/(?<queue>[^/]+))?$/, "dead_letters", "dead-letters"],
  [/^\/dashboard\/jobs$/, "jobs", "jobs"],
  [/^\/dashboard\/schedules$/, "schedules", "schedules"],
  [/^\/dashboard\/pipelines$/, "pipelines", "pipelines"],
  [/^\/dashboard\/server$/, "server", "server"],
  [/^\/dashboard\/sign-in$/, "signin", null],
];
const PLACES = [["queues", "Queues"], ["dead-letters", "Dead letters"], ["jobs", "Jobs"], ["schedules", "Schedules"], ["pipelines", "Pipelines"], ["server", "Server"]];

const RENEWAL = 5 * 60 * 1000; // The server ends a session that nobody used for half an hour.

const SIGN_IN = "/dashboard/sign-in";

let leave = new AbortController();

/** Show the view of an address. `replaced`: without a new entry in the browser's history. */
export function go(path, { replaced = false } = {}) {
  history.replaceState({ ...history.state, scroll: scrollY }, "");
  history[replaced ? "replaceState" : "pushState"]({}, "", path);
  return render();
}

/** Keep what the reader has chosen in the address, so that it can be shared; the view stays as it is. */
export function remember(chosen) {
  const query = new URLSearchParams(location.search);
  for (const [key, value] of Object.entries(chosen)) {
    if (value == null || value === "") query.delete(key);
    else query.set(key, value);
  }
  const told = query.toString();
  history.replaceState(history.state, "", location.pathname + (told ? `?${told}` : ""));
}

async function render({ scroll = 0, first = false } = {}) {
  leave.abort();
  leave = new AbortController();
  const { signal } = leave;
  const [name, place, here] = find();
  drawBar(here);
  const root = el("div", { class: `view view-${name}` });
  const view = document.getElementById("view");
  try {
    if (name === "nowhere") nowhere(root);
    else {
      const { show } = await import(`./${name}.js`);
      if (signal.aborted) return;
      replace(view, root);
      scrollTo(0, 0);
      await show(root, { ...place, signal });
    }
  } catch (error) {
    if (signal.aborted || error.name === "AbortError") return;
    if (error.kind === "QueueNotFound") nowhere(replace(root), words(error));
    else root.append(trouble(error, () => render()));
    if (!root.querySelector("h1")) root.prepend(el("h1", { tabindex: "-1" }, "Penstock"));
    if (!(error instanceof Failure)) console.error(error);
  }
  if (signal.aborted) return;
  if (!root.isConnected) replace(view, root);
  if (scroll && !scrollY) scrollTo(0, scroll); // A reader who has scrolled meanwhile is not thrown back.
  if (!first && !root.contains(document.activeElement)) root.querySelector("h1")?.focus({ preventScroll: true });
}

function find() {
  for (const [pattern, name, here] of VIEWS) {
    const found = pattern.exec(location.pathname);
    if (!found) continue;
    try {
      const named = Object.fromEntries(Object.entries(found.groups ?? {}).filter(([, value]) => value !== undefined).map(([key, value]) => [key, decodeURIComponent(value)]));
      return [name, { ...named, query: new URLSearchParams(location.search) }, here];
    } catch {
      break; // A % without two hexadecimal digits.
    }
  }
  return ["nowhere", {}, null];
}

function nowhere(root, why = "There is no such page") {
  head(root, { title: "Not here" });
  root.append(empty(`${why}.`, el("a", { href: "/dashboard" }, "All queues")));
}

function drawBar(here) {
  const bar = document.getElementById("bar");
  const known = session.signed_in ? PLACES.filter(([place]) => place !== "server" || session.queues.includes("*")) : [];
  const links = known.map(([place, told]) => el("a", { href: place === "queues" ? "/dashboard" : `/dashboard/${place}`, "aria-current": place === here ? "page" : null }, told));
  replace(bar, bar.querySelector(".brand"), el("nav", { "aria-label": "Views" }, links),
    el("div", { class: "bar-end" },
      el("span", { class: "live", id: "live", hidden: true }, el("span", { class: "live-dot", "aria-hidden": "true" }), el("span", {}, "live")),
      session.signed_in && session.read_only ? el("span", { class: "badge" }, "read-only") : null,
      session.signed_in && session.tokens ? button("Sign out", (event) => act(event.target, leaveSession), { kind: "quiet", title: `Signed in with the token ${session.name}` }) : null,
      el("a", { class: "btn quiet", href: "/dashboard/api", data: { outside: "" } }, "API"),
      button(themeIcon(), switchTheme, { kind: "quiet icon", "aria-label": "Switch between light and dark", title: "Light or dark" })));
}

async function leaveSession() {
  await signOut();
  await go(SIGN_IN);
}

function themeIcon() {
  return el("span", { class: "theme-icon", "aria-hidden": "true" });
}

function switchTheme() {
  const page = document.documentElement;
  const dark = page.dataset.theme ? page.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  page.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("penstock-theme", page.dataset.theme);
  } catch {
    // It holds until the page is left.
  }
}

function follow(event) {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  const to = new URL(link.href);
  const ours = to.origin === location.origin && /^\/(dashboard(\/(?!assets\/|api$|session$).*)?)?$/.test(to.pathname);
  if (!ours || link.target || link.hasAttribute("download") || "outside" in link.dataset) return;
  if (to.hash && to.pathname === location.pathname) return;
  event.preventDefault();
  go(to.pathname + to.search);
}

function keys(event) {
  if (event.metaKey || event.ctrlKey || event.altKey || event.target.closest("input, textarea, select, dialog, [contenteditable]")) return;
  if (event.key === "/") {
    const search = document.querySelector("#view input[type=search]");
    if (search) {
      event.preventDefault();
      search.focus();
    }
  }
}

/** A session that ended, or that never began, leads to the sign-in, and from there back. */
function signInFirst() {
  if (location.pathname === SIGN_IN) return;
  const back = location.pathname + location.search;
  go(`${SIGN_IN}?to=${encodeURIComponent(back)}`, { replaced: true });
}

async function start() {
  document.addEventListener("click", follow);
  document.addEventListener("keydown", keys);
  addEventListener("popstate", (event) => render({ scroll: event.state?.scroll ?? 0 }));
  addEventListener("penstock-signed-out", async () => {
    if (session.signed_in) toast("Your session has ended. Sign in again.");
    await loadSession().catch(() => null);
    if (!session.signed_in) signInFirst();
  });
  history.scrollRestoration = "manual";
  setInterval(() => { if (!document.hidden && session.signed_in) loadSession().catch(() => null); }, RENEWAL);
  import(`./${find()[0]}.js`).catch(() => null); // On its way while the session is asked for; `render` tells of failures.
  try {
    await loadSession();
  } catch (error) {
    const view = document.getElementById("view");
    const root = el("div", { class: "view" });
    head(root, { title: "Penstock" });
    root.append(trouble(error, () => location.reload()));
    replace(view, root);
    return;
  }
  if (session.signed_in || location.pathname === SIGN_IN) await render({ first: true });
  else signInFirst();
}

start();
