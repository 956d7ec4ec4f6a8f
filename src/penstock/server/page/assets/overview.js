// All queues: a list that draws only the rows in sight, kept up to date by one stream of changes.

import { can, get } from "./api.js";
import { remember } from "./app.js";
import { spark } from "./charts.js";
import { el, patch, replace, text } from "./dom.js";
import { age, ago, count, hear, number, rate, short } from "./format.js";
import { follow } from "./live.js";
import { createQueue } from "./settings.js";
import { badge, button, empty, head, linkTo, named, tiles } from "./ui.js";

const PART = 500;
const POINTS = 30;
const SAMPLE = 10_000;
const SETTLE = 1000; // How often the order may change by itself.
const MORE = 6; // Rows drawn beyond the edges.

/** key, title, how it is told, and what it is called on a phone. */
const COLUMNS = [
  ["name", "Queue"],
  ["curve", "Last minutes"],
  ["messages", "Messages", short],
  ["in_flight", "In flight", short],
  ["delayed", "Delayed", short],
  ["dead_letters", "Dead letters", short],
  ["oldest_age", "Oldest", age],
  ["rate_in", "In / s", rate],
  ["rate_out", "Out / s", rate],
  ["consumers", "Consumers", number],
  ["readers", "Readers", number],
];

export async function show(root, { query, signal }) {
  const list = new List(query, signal);
  head(root, { title: "Queues", actions: [can("admin") ? button("New queue", () => createQueue([...list.rows.keys()]), { kind: "primary" }) : null] });
  root.append(list.tiles.node, list.toolbar, list.node);
  list.open();
  await list.load();
}

/** The rows of all queues, their order, and the elements of those in sight. */
class List {
  constructor(query, signal) {
    this.signal = signal;
    this.rows = new Map();
    this.order = [];
    this.drawn = new Map();
    this.loaded = false;
    this.waiting = false;
    this.sortedAt = 0;
    this.sort = COLUMNS.some(([key]) => key === query.get("sort") && key !== "curve") ? query.get("sort") : "name";
    this.down = query.get("order") === "down";
    this.filter = query.get("filter") ?? "";
    this.build();
  }

  build() {
    this.tiles = tiles(["queues", "messages", "in flight", "delayed", "dead letters", "in / s", "out / s"].map((told) => [told, told]));
    const search = el("input", { type: "search", class: "grow", placeholder: "Filter by name", "aria-label": "Filter by name", value: this.filter, "aria-keyshortcuts": "/" });
    search.addEventListener("input", () => {
      this.filter = search.value;
      remember({ filter: this.filter });
      this.arrange();
    });
    this.found = el("span", { class: "soft", role: "status" });
    const keys = COLUMNS.filter(([key]) => key !== "curve");
    this.chooser = el("select", { class: "sort-chooser", "aria-label": "Sort by" }, keys.flatMap(([key, told]) => ["", "down"].map((order) => el("option", { value: `${key} ${order}` }, `${told} ${order ? "↓" : "↑"}`))));
    this.chooser.addEventListener("change", () => this.sortBy(...this.chooser.value.split(" ")));
    this.toolbar = el("div", { class: "toolbar" }, search, this.chooser, this.found);
    this.heads = COLUMNS.map(([key, told, say]) => el("div", { role: "columnheader", class: `cell ${key}${say ? " num" : ""}`, data: { key } },
      key === "curve" ? told : button(told, () => this.sortBy(key), { kind: "quiet sorter" })));
    this.body = el("div", { role: "rowgroup", class: "rows", on: { keydown: (event) => this.move(event) } });
    this.table = el("div", { role: "table", class: "list", "aria-label": "Queues" }, el("div", { role: "rowgroup", class: "list-head" }, el("div", { role: "row", class: "row" }, this.heads)), this.body);
    this.nothing = el("div", { hidden: true });
    this.node = el("div", { class: "list-frame" }, this.table, this.nothing);
    this.markSort();
  }

  open() {
    const { signal } = this;
    follow({ rows: (change) => this.take(change), signal });
    addEventListener("scroll", () => this.later(), { signal, passive: true });
    addEventListener("resize", () => this.later(), { signal, passive: true });
    const timers = [setInterval(() => this.sample(), SAMPLE), setInterval(() => this.later(), 1000)];
    signal.addEventListener("abort", () => timers.forEach(clearInterval));
  }

  /** All queues with their curves so far, which the stream does not carry. */
  async load() {
    let after = null;
    do {
      const part = await get(`/penstock/overview?limit=${PART}${after === null ? "" : `&after=${encodeURIComponent(after)}`}`, { signal: this.signal });
      hear(part.at);
      for (const row of part.queues) this.keep(row);
      after = part.more;
      this.arrange();
    } while (after !== null);
    this.loaded = true;
    this.arrange();
    this.draw(); // Now, so that the page can scroll to where its reader was.
  }

  keep(row) {
    const known = this.rows.get(row.name);
    if (known) Object.assign(known, row);
    else this.rows.set(row.name, { curve: [], ...row });
    return !known;
  }

  take({ rows, gone, whole, left }) {
    if (whole) this.fresh = new Set();
    let different = false;
    for (const row of rows) {
      different = this.keep(row) || different;
      this.fresh?.add(row.name);
    }
    for (const name of gone) different = this.rows.delete(name) || different;
    if (this.fresh && !left) { // The picture is whole: what it lacks is gone since the last one.
      for (const name of this.rows.keys()) if (!this.fresh.has(name)) this.rows.delete(name);
      this.fresh = null;
      different = true;
    }
    if (different || performance.now() - this.sortedAt > SETTLE) this.arrange(!different);
    else this.later();
  }

  /** Time goes on for every queue, also for those where nothing happens. */
  sample() {
    for (const row of this.rows.values()) row.curve = [...(row.curve ?? []).slice(1 - POINTS), row.messages];
    this.later();
  }

  sortBy(key, order = null) {
    this.down = order === null ? (this.sort === key ? !this.down : key !== "name") : order === "down";
    this.sort = key;
    remember({ sort: key === "name" && !this.down ? null : key, order: this.down ? "down" : null });
    this.markSort();
    this.arrange();
  }

  markSort() {
    for (const cell of this.heads) {
      if (cell.dataset.key === this.sort) cell.setAttribute("aria-sort", this.down ? "descending" : "ascending");
      else cell.removeAttribute("aria-sort");
    }
    this.chooser.value = `${this.sort} ${this.down ? "down" : ""}`;
  }

  /** Choose and sort. By itself (`quietly`) the order does not change while someone points at a row or has the focus in one. */
  arrange(quietly = false) {
    if (quietly && (this.body.matches(":hover") || this.body.contains(document.activeElement))) return this.later();
    this.sortedAt = performance.now();
    const part = this.filter.toLowerCase();
    const { sort, down } = this;
    const fits = [...this.rows.values()].filter(({ name }) => !part || name.toLowerCase().includes(part));
    const compare = (one, other) => {
      if (sort === "name") return one.name < other.name ? -1 : 1;
      const [left, right] = [value(one, sort) ?? -1, value(other, sort) ?? -1];
      return left - right || (down ? -1 : 1) * (one.name < other.name ? -1 : 1);
    };
    this.order = fits.sort(down ? (one, other) => compare(other, one) : compare);
    return this.later();
  }

  later() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      if (!this.signal.aborted) this.draw();
    });
  }

  draw() {
    const total = this.order.length;
    this.table.setAttribute("aria-rowcount", total + 1);
    this.table.hidden = !total && this.loaded;
    text(this.found, this.filter ? `${number(total)} of ${count(this.rows.size, "queue")}` : "");
    this.drawTiles();
    this.drawNothing(total);
    const height = this.rowHeight();
    this.body.style.height = `${total * height}px`;
    const top = -this.body.getBoundingClientRect().top;
    const first = Math.max(0, Math.min(total - 1, Math.floor(top / height) - MORE));
    const last = Math.min(total, Math.ceil((top + innerHeight) / height) + MORE);
    const wanted = this.order.slice(first, Math.max(first, last));
    const names = new Set(wanted.map(({ name }) => name));
    for (const [name, one] of this.drawn) {
      if (names.has(name) || one.node.contains(document.activeElement)) continue;
      one.node.remove();
      this.drawn.delete(name);
    }
    wanted.forEach((row, place) => {
      let one = this.drawn.get(row.name);
      if (!one) this.drawn.set(row.name, (one = line(row.name)));
      if (this.body.children[place] !== one.node) this.body.insertBefore(one.node, this.body.children[place] ?? null);
      one.node.style.transform = `translateY(${(first + place) * height}px)`;
      one.node.setAttribute("aria-rowindex", first + place + 2);
      one.update(row);
    });
  }

  rowHeight() {
    return matchMedia("(max-width: 720px)").matches ? 68 : 34;
  }

  drawTiles() {
    const sum = (key) => this.order.reduce((total, row) => total + (row[key] ?? 0), 0);
    const letters = this.order.reduce((total, row) => total + (row.dead_letter_of?.length ? row.messages : 0), 0);
    const told = { queues: number(this.order.length), messages: short(sum("messages")), "in flight": short(sum("in_flight")), delayed: short(sum("delayed")), "dead letters": short(letters), "in / s": rate(sum("rate_in")), "out / s": rate(sum("rate_out")) };
    for (const [name, sums] of Object.entries(told)) this.tiles.tell(name, sums);
  }

  drawNothing(total) {
    this.nothing.hidden = total > 0;
    if (total) return;
    if (!this.loaded) patch(this.nothing, empty("Looking…"));
    else if (this.filter) patch(this.nothing, empty("No queue has such a name.", "The filter looks for a part of the name, in any case of letters."));
    else patch(this.nothing, empty("No queues yet.", can("admin") ? ["Create one here, or with ", el("code", {}, "penstock create orders"), "."] : "Your token may see none of this server's queues."));
  }

  /** Arrows walk from row to row, beyond those drawn too. */
  move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    const row = event.target.closest("[role=row]");
    if (!step || !row) return;
    event.preventDefault();
    const next = step > 0 ? row.nextElementSibling : row.previousElementSibling;
    const link = next?.querySelector("a");
    link?.focus({ preventScroll: true });
    next?.scrollIntoView({ block: "nearest" });
  }
}

function value(row, key) {
  return key === "oldest_age" ? ago(row.oldest_at) : row[key];
}

function line(name) {
  const small = spark();
  const marks = el("span", { class: "marks" });
  const cells = new Map(COLUMNS.map(([key, told, say]) => [key, el("div", { role: "cell", class: `cell ${key}${say ? " num" : ""}`, data: { told } })]));
  cells.get("name").append(el("a", { href: linkTo(name), title: name }, named(name)), marks);
  cells.get("curve").append(small.node);
  const node = el("div", { role: "row", class: "row" }, [...cells.values()]);
  let marked = null;

  function update(row) {
    for (const [key, , say] of COLUMNS) {
      if (!say) continue;
      const cell = cells.get(key);
      text(cell, say(value(row, key)));
      cell.classList.toggle("zero", !row[key]);
    }
    cells.get("dead_letters").classList.toggle("bad", row.dead_letters > 0);
    small.update(row.curve ?? []);
    const told = JSON.stringify([row.dead_letter_of?.length > 0, row.damaged, row.paused]);
    if (told === marked) return;
    marked = told;
    replace(marks, row.paused ? badge("paused", "warn") : null, row.dead_letter_of?.length ? badge("dead letters", "", { title: `of ${row.dead_letter_of.join(", ")}` }) : null, row.damaged ? badge(`${number(row.damaged)} damaged`, "bad") : null);
  }

  return { node, update };
}
