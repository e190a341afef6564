// Elements, made and kept. Nothing here reads text as markup: what an Edge sends is text, whatever stands in it.

const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) setAttr(node, name, value);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

export const el = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

// A name of the fleet is isolated, so that its characters turn nothing around it.
export const name = (text) => el("bdi", { class: "name" }, text);
export const unseen = (text) => el("span", { class: "unseen" }, text);

export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// null takes the attribute away.
export function setAttr(node, attribute, value) {
  if (value === null || value === false) node.removeAttribute(attribute);
  else if (node.getAttribute(attribute) !== String(value)) node.setAttribute(attribute, value);
}

// Replace what stands in a node, unless `key` says that it is the same as before.
const drawn = new WeakMap();
export function redraw(node, key, make) {
  if (drawn.get(node) === key) return;
  drawn.set(node, key);
  node.replaceChildren(...make().filter((child) => child !== null));
}

// One child for each row, kept over updates by key; `make` returns {node, ...}, `update` brings it to the row.
const kept = new WeakMap();
export function keep(parent, rows, keyOf, make, update) {
  const before = kept.get(parent) ?? new Map();
  const now = new Map();
  for (const row of rows) {
    const key = keyOf(row);
    const one = before.get(key) ?? make(row);
    update(one, row);
    now.set(key, one);
  }
  for (const [key, one] of before) if (!now.has(key)) one.node.remove();
  let next = parent.firstElementChild;
  for (const one of now.values()) {
    if (one.node === next) next = next.nextElementSibling;
    else parent.insertBefore(one.node, next);
  }
  kept.set(parent, now);
}

// Shapes of states: they differ without their colours.
const SHAPES = {
  up: "M5 1a4 4 0 1 0 .01 0z",
  trouble: "M5 .8 9.6 9.2H.4z",
  disabled: "M5 1a4 4 0 1 0 .01 0zM5 2.4a2.6 2.6 0 1 1-.01 0zM2.2 4.4h5.6v1.2H2.2z",
  draining: "M1 1h8L5 5l4 4H1l4-4z",
  offline: "M1.6.6 5 4 8.4.6l1 1L6 5l3.4 3.4-1 1L5 6 1.6 9.4l-1-1L4 5 .6 1.6z",
  accepted: "M1 4h2v2H1zM4 4h2v2H4zM7 4h2v2H7z",
};
const SHAPE_OF = { ready: "up", down: "trouble" };

export function glyph(state) {
  const node = svg("svg", { class: "glyph", viewBox: "0 0 10 10", "aria-hidden": "true" });
  node.append(svg("path", { "fill-rule": "evenodd" }));
  setGlyph(node, state);
  return node;
}

export function setGlyph(node, state) {
  const shape = SHAPE_OF[state] ?? state;
  setAttr(node, "data-shape", shape);
  setAttr(node.firstElementChild, "d", SHAPES[shape] ?? SHAPES.accepted);
}
