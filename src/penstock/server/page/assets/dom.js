// Elements from data that nobody trusts: text becomes text nodes, and a link leads nowhere but to a web address.

const SVG = new DOMParser().parseFromString("<svg></svg>", "text/html").body.firstChild.namespaceURI;

/** An element. `properties`: `class`, `on: {event: listener}`, `data: {key: value}`, `props: {property: value}`, else
 * attributes (true: present; false, null and undefined: left out). `children`: nodes, texts, numbers, lists; null is skipped. */
export function el(tag, properties = {}, ...children) {
  return fill(document.createElement(tag), properties, children);
}

export function svg(tag, properties = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

function fill(node, properties, children) {
  for (const [key, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (key === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (key === "data") Object.assign(node.dataset, value);
    else if (key === "props") Object.assign(node, value);
    else if (/^(on|style$|srcdoc$)/i.test(key)) throw new Error(`no ${key} attributes here`);
    else if (key === "href") node.setAttribute(key, safe(value));
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** An address of the web or of this server; anything else (javascript:, data:, …) becomes "#". */
function safe(address) {
  try {
    return ["http:", "https:", "blob:"].includes(new URL(address, location.href).protocol) ? String(address) : "#";
  } catch {
    return "#";
  }
}

/** Give the node these children instead of those it has. */
export function replace(node, ...children) {
  node.replaceChildren(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

/** Change the text of a node only if it differs: a live page touches what changed and nothing else. */
export function text(node, value) {
  const told = String(value);
  if (node.textContent !== told) node.textContent = told;
}
