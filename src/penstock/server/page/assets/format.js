// Numbers, sizes, durations and instants in words. Instants are microseconds since 1970, durations seconds; times are shown in
// the reader's zone. The report page shares this file, so it imports nothing.

const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const UNITS = [[86400, "d"], [3600, "h"], [60, "min"]];

/** 1,234,567 or 0.25; a dash for what is not known. */
export function number(value) {
  if (value == null) return "–";
  return Number.isInteger(value) || Math.abs(value) >= 100 ? WHOLE.format(value) : String(Number(value.toPrecision(2)));
}

/** In little room: 1,234 · 56.7 k · 1.2 M. */
export function short(value) {
  if (value == null) return "–";
  for (const [size, unit] of [[1e9, "G"], [1e6, "M"], [1e4, "k"]]) {
    const base = unit === "k" ? 1e3 : size;
    if (Math.abs(value) >= size) return `${Number((value / base).toPrecision(3))} ${unit}`;
  }
  return number(value);
}

/** Messages a second. */
export function rate(value) {
  if (value == null) return "–";
  return value === 0 ? "0" : value < 0.01 ? "< 0.01" : short(value < 10 ? Number(value.toPrecision(2)) : Math.round(value));
}

/** 12.3 s · 4.2 min · 3 d; three digits are enough. */
export function duration(seconds) {
  if (seconds == null) return "–";
  for (const [size, unit] of UNITS) if (seconds >= 2 * size) return `${digits(seconds / size)} ${unit}`;
  if (seconds >= 1) return `${digits(seconds)} s`;
  if (seconds <= 0) return "0 s";
  return seconds >= 0.001 ? `${digits(seconds * 1e3)} ms` : `${digits(seconds * 1e6)} µs`;
}

/** An age for people: 45 s · 12 min · 3 h · 5 d, without fractions that would flicker. */
export function age(seconds) {
  if (seconds == null) return "–";
  for (const [size, unit] of UNITS) if (seconds >= 2 * size) return `${Math.floor(seconds / size)} ${unit}`;
  return `${Math.max(0, Math.floor(seconds))} s`;
}

/** A duration that someone set: 4 days, 90 seconds; exact. */
export function span(seconds) {
  if (seconds == null) return "–";
  for (const [size, unit] of [[86400, "day"], [3600, "hour"], [60, "minute"], [1, "second"]]) {
    if (seconds >= size && seconds % size === 0) return `${WHOLE.format(seconds / size)} ${unit}${seconds === size ? "" : "s"}`;
  }
  return `${seconds} seconds`;
}

export function bytes(size) {
  if (size == null) return "–";
  for (const unit of ["B", "KB", "MB", "GB"]) {
    if (size < 1000) return `${digits(size)} ${unit}`;
    size /= 1000;
  }
  return `${digits(size)} TB`;
}

function digits(value) {
  return value >= 1000 ? WHOLE.format(value) : String(Number(value.toPrecision(3)));
}

const DAY = new Intl.DateTimeFormat("en-CA", { year: "numeric", month: "2-digit", day: "2-digit" });
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const FAR = 1e18; // Beyond it, an instant is one that never comes.

/** 2026-11-18 14:05:09 in the reader's zone; the milliseconds with `precise`. */
export function time(at, precise = false) {
  if (at == null) return "–";
  if (Math.abs(Number(at)) > FAR) return "never";
  const moment = new Date(Number(at) / 1000);
  const more = precise ? `.${String(moment.getMilliseconds()).padStart(3, "0")}` : "";
  return `${DAY.format(moment)} ${CLOCK.format(moment)}${more}`;
}

let ahead = 0;

/** The server told its time: ages are counted by its clock, not by the reader's. */
export function hear(at) {
  ahead = at - Date.now() * 1000;
}

/** Seconds since an instant. */
export function ago(at) {
  return at == null ? null : (Date.now() * 1000 + ahead - Number(at)) / 1e6;
}

/** "3 min ago" or "in 20 s". */
export function since(at) {
  if (at == null) return "–";
  if (Math.abs(Number(at)) > FAR) return "never";
  const seconds = ago(at);
  if (Math.abs(seconds) < 1) return "now";
  return seconds > 0 ? `${age(seconds)} ago` : `in ${age(-seconds)}`;
}

/** Text that looks like what it is: control characters and those that turn the direction are shown by their numbers. */
export function shown(told) {
  return String(told).replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g, (letter) => {
    const code = letter.codePointAt(0);
    return code < 32 ? String.fromCodePoint(0x2400 + code) : `⟨U+${code.toString(16).toUpperCase().padStart(4, "0")}⟩`;
  });
}

/** "1 message", "2 messages". */
export function count(value, one, many = `${one}s`) {
  return `${number(value)} ${value === 1 ? one : many}`;
}
