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
    if (value == null || value === false) continue;
    if (key === "on") for (const [event, listener] of Object.entries(value)) node.addEventListener(event, listener);
    else if (key === "data") Object.assign(node.dataset, value);
    else if (key === "props") Object.assign(node, value);
    else if (/^(on|style$|srcdoc$)/i.test(key)) throw new Error(`no ${key} attributes here`);
    else if (key === "href") node.setAttribute(key, safe(value));
    else node.setAttribute(key, value === true ? "" : String(value));
  }
  node.append(...kept(children));
  return node;
}

function kept(children) {
  return children.flat(Infinity).filter((child) => child != null && child !== false);
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
  node.replaceChildren(...kept(children));
  return node;
}

/** Change the text of a node only if it differs: a live page touches what changed and nothing else. */
export function text(node, value) {
  const told = String(value);
  if (node.textContent !== told) node.textContent = told;
}

/** Make the node's children equal to these by changing as little as possible, so that focus, selection and scroll stay. Only
 * for content without listeners: the elements that are there stay, not those that are given. */
export function patch(node, ...children) {
  const fresh = document.createElement("div");
  replace(fresh, ...children);
  match(node, fresh);
}

function match(node, fresh) {
  const wanted = [...fresh.childNodes];
  wanted.forEach((child, place) => {
    const there = node.childNodes[place];
    if (!there) node.append(child);
    else if (there.nodeType !== child.nodeType || there.nodeName !== child.nodeName) there.replaceWith(child);
    else if (child.nodeType === Node.TEXT_NODE) text(there, child.data);
    else {
      for (const { name } of [...there.attributes]) if (!child.hasAttribute(name) && name !== "open") there.removeAttribute(name);
      for (const { name, value } of child.attributes) if (there.getAttribute(name) !== value) there.setAttribute(name, value);
      match(there, child);
    }
  });
  while (node.childNodes.length > wanted.length) node.lastChild.remove();
}
