// One stream of changes for the view in front: server-sent events while the tab is seen, nothing while it is hidden, and a
// word to the reader when the server is away and when it is back.

import { loadSession, session } from "./api.js";
import { text } from "./dom.js";
import { hear } from "./format.js";
import { toast } from "./ui.js";

const PATIENCE = [500, 1000, 2000, 5000];

/** Follow the changes until `signal` ends. `rows({at, rows, gone, whole, left})` and `jobs({jobs})` are called with what comes;
 * `queue`: of this queue only. After a gap the server tells everything again: `whole` begins it, and it ends when `left` is 0. */
export function follow({ queue = null, rows = null, jobs = null, signal }) {
  const address = queue === null ? "/penstock/changes" : `/penstock/changes?queue=${encodeURIComponent(queue)}`;
  let source = null;
  let lost = false;
  let tries = 0;
  let timer = 0;

  function open() {
    source = new EventSource(address);
    source.addEventListener("open", () => {
      tries = 0;
      if (lost) toast("Connected again. What you see is up to date.", "good");
      tell(false);
    });
    source.addEventListener("error", () => {
      tell(true);
      if (source.readyState === EventSource.CLOSED) again(); // The browser gives up on an answer that is no stream.
    });
    for (const [event, listener] of [["rows", rows], ["jobs", jobs]]) {
      if (listener) source.addEventListener(event, (message) => {
        const told = JSON.parse(message.data);
        if (told.at) hear(told.at);
        listener(told);
      });
    }
  }

  function again() {
    close();
    timer = setTimeout(async () => {
      await loadSession().catch(() => null);
      if (signal.aborted || document.hidden) return;
      if (session.signed_in) open();
      else dispatchEvent(new Event("penstock-signed-out"));
    }, PATIENCE[Math.min(tries++, PATIENCE.length - 1)]);
  }

  function close() {
    clearTimeout(timer);
    source?.close();
    source = null;
  }

  function tell(away) {
    lost = away;
    text(document.getElementById("banner"), away ? "The connection to the server is lost. Trying again…" : "");
    const sign = document.getElementById("live");
    if (!sign) return;
    sign.hidden = false;
    sign.classList.toggle("off", away);
    text(sign.lastChild, away ? "offline" : "live");
  }

  function look() {
    close();
    if (!document.hidden) open();
  }

  document.addEventListener("visibilitychange", look, { signal });
  addEventListener("pagehide", close, { signal });
  signal.addEventListener("abort", () => {
    close();
    text(document.getElementById("banner"), "");
  });
  look();
}

/** Do the work now, and again every so many seconds while the tab is seen, until `signal` ends. The first time throws what
 * goes wrong; later the banner tells it. */
export async function every(seconds, work, signal) {
  let running = false;
  const banner = document.getElementById("banner");
  async function again() {
    if (document.hidden || running || signal.aborted) return;
    running = true;
    try {
      await work();
      text(banner, "");
    } catch (error) {
      if (!signal.aborted) text(banner, `${error.message} Trying again…`);
    } finally {
      running = false;
    }
  }
  await work();
  if (signal.aborted) return;
  const timer = setInterval(again, seconds * 1000);
  document.addEventListener("visibilitychange", again, { signal });
  signal.addEventListener("abort", () => {
    clearInterval(timer);
    text(banner, "");
  });
}
