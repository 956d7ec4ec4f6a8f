// Requests to the server: JSON in, JSON out, errors as `Failure` with words for people, and the values of Penstock's wire.

export class Failure extends Error {
  /** `status`: that of HTTP; 0 if there was no answer. `kind`: the name of the server's error, such as "QueueNotFound". */
  constructor(status, message, kind = null) {
    super(message);
    this.status = status;
    this.kind = kind;
  }
}

/** Who uses this page, as `GET /dashboard/session` tells. Never change it. */
export let session = { signed_in: false, tokens: true, name: null, scopes: [], queues: [], read_only: true, csrf: null };

export async function loadSession() {
  session = await get("/dashboard/session");
  return session;
}

export async function signIn(token) {
  session = await request("POST", "/dashboard/session", { body: { token } });
  return session;
}

export async function signOut() {
  await request("DELETE", "/dashboard/session");
  return loadSession();
}

/** May this session do such things to some queue? `may` in the summary of a queue tells about that one. */
export function can(scope) {
  return session.signed_in && session.scopes.includes(scope) && !(session.read_only && !["count", "read"].includes(scope));
}

export function get(path, options = {}) {
  return request("GET", path, options);
}

export function post(path, body, options = {}) {
  return request("POST", path, { ...options, body });
}

export function remove(path, options = {}) {
  return request("DELETE", path, options);
}

/** The address of a queue's data: `at("orders", "summary")`. */
export function at(queue, ...rest) {
  return ["/penstock/queues", ...[queue, ...rest].map(encodeURIComponent)].join("/");
}

/** One of the verbs of `Queue`: `await call("orders", "purge")` is the answer, unpacked. */
export function call(queue, verb, given = {}, options = {}) {
  return perform(at(queue, verb), given, options);
}

/** One of the verbs of `Broker`: create, delete, names. */
export function callBroker(verb, given = {}, options = {}) {
  return perform(`/penstock/broker/${verb}`, given, options);
}

async function perform(path, given, options) {
  return unpack((await post(path, { arguments: packAll(given) }, options)).answer);
}

async function request(method, path, { body, signal, again = true } = {}) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET" && session.csrf) headers["X-Penstock-CSRF"] = session.csrf;
  let answer, content;
  try {
    answer = await fetch(path, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body), cache: "no-store", redirect: "error" });
    content = await answer.text();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failure(0, "The server does not answer. It may be restarting, or the network is down.");
  }
  if (answer.ok) return content ? parse(content) : null;
  const failure = read(answer, content);
  if (path === "/dashboard/session") throw failure;
  if (failure.status === 401) dispatchEvent(new Event("penstock-signed-out"));
  if (failure.status === 403 && method !== "GET" && again && session.csrf) {
    const before = session.csrf; // The session was renewed, by another tab for example.
    await loadSession();
    if (session.csrf && session.csrf !== before) return request(method, path, { body, signal, again: false });
  }
  throw failure;
}

function read(answer, content) {
  let told = {};
  try {
    told = JSON.parse(content) ?? {};
  } catch {
    // Not JSON: the status must do.
  }
  const words = typeof told.error === "string" ? told.error : `The server answered ${answer.status} ${answer.statusText}.`;
  return new Failure(answer.status, words, typeof told.type === "string" ? told.type : null);
}

function parse(content) {
  try {
    return JSON.parse(content);
  } catch {
    throw new Failure(0, "The server's answer is not JSON. Is there something else at this address?");
  }
}

/** A value of a named type for `call`: `typed("Draft", { body: bytes })`. */
export function typed(kind, fields) {
  return { [kind]: packAll(fields) };
}

/** The inverse of `unpack`. Bytes are a Uint8Array, a mapping is a Map, a value with a name is `typed`. */
function pack(value) {
  if (value instanceof Uint8Array) return { bytes: encode64(value) };
  if (Array.isArray(value)) return value.map(pack);
  return value instanceof Map ? { map: packAll(Object.fromEntries(value)) } : value;
}

function packAll(fields) {
  return each(fields, pack);
}

function each(fields, change) {
  return Object.fromEntries(Object.entries(fields).map(([key, value]) => [key, change(value)]));
}

/** A value of the wire: {"bytes"} as Uint8Array, {"map"} as Map, {"time"} as text, {"Message": {…}} as {kind: "Message", …}. */
export function unpack(packed) {
  if (Array.isArray(packed)) return packed.map(unpack);
  if (packed === null || typeof packed !== "object") return packed;
  const [kind, value] = Object.entries(packed)[0] ?? ["map", {}];
  if (kind === "bytes") return decode64(value);
  if (kind === "map") return new Map(Object.entries(each(value, unpack)));
  if (value === null || typeof value !== "object" || Array.isArray(value)) return value;
  return { kind, ...each(value, unpack) };
}

function decode64(content) {
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(content);
  return Uint8Array.from(atob(content), (letter) => letter.charCodeAt(0));
}

function encode64(bytes) {
  if (bytes.toBase64) return bytes.toBase64();
  let letters = "";
  for (let from = 0; from < bytes.length; from += 8192) letters += String.fromCharCode(...bytes.subarray(from, from + 8192));
  return btoa(letters);
}
