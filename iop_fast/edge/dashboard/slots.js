// A provider's slots as cells: filled ones are taken, tall ones may hold a long request, those past the gap are above
// a capacity that was lowered. More than CELLS_MAX are a bar.

import { setAttr, svg } from "./dom.js";
import { many, number } from "./format.js";

const WIDTH = 176;
const ROW = 32; // cells in a row, when they are narrow
const WIDE = 16; // up to so many they are wide
const CELLS_MAX = 96;
const LAYERS = ["free", "free-long", "taken", "taken-long", "over"];

export function makeSlots() {
  const node = svg("svg", { class: "slots", "aria-hidden": "true" });
  const paths = Object.fromEntries(LAYERS.map((layer) => [layer, node.appendChild(svg("path", { class: layer }))]));
  return { node, paths, key: "" };
}

export function updateSlots(slots, row) {
  const key = [row.capacity, row.long_capacity, row.in_flight, row.long_in_flight].join();
  if (slots.key === key) return;
  slots.key = key;
  const cells = Math.max(row.capacity, row.in_flight);
  const drawn = cells > CELLS_MAX ? bar(row) : grid(row, cells);
  setAttr(slots.node, "viewBox", `0 0 ${WIDTH} ${drawn.height}`);
  setAttr(slots.node, "width", WIDTH);
  setAttr(slots.node, "height", drawn.height);
  for (const layer of LAYERS) setAttr(slots.paths[layer], "d", drawn[layer] || null);
}

// Long slots come first; long requests fill them from the left, the others the rest and then, from the right, those.
function grid(row, cells) {
  const pitch = cells > WIDE ? 5.5 : 11;
  const wide = cells > WIDE ? 4 : 8;
  const tall = row.long_capacity ? 18 : 13;
  const paths = Object.fromEntries(LAYERS.map((layer) => [layer, ""]));
  const lines = Math.ceil(cells / ROW) || 1;
  const normal = row.in_flight - row.long_in_flight;
  const apart = Math.max(0, cells - row.long_capacity);
  const spilled = Math.max(0, normal - apart);
  for (let at = 0; at < cells; at++) {
    const isLong = at < row.long_capacity;
    const isTaken = isLong ? at < row.long_in_flight || at >= row.long_capacity - spilled : at - row.long_capacity < normal;
    const layer = at >= row.capacity ? "over" : !isTaken ? (isLong ? "free-long" : "free") : isLong && at < row.long_in_flight ? "taken-long" : "taken";
    const high = isLong ? 18 : 12;
    const x = (at % ROW) * pitch + (at >= row.capacity ? 3 : 0);
    const y = Math.floor(at / ROW) * (tall + 3) + tall - high;
    const inset = layer.startsWith("free") ? 0.5 : 0;
    paths[layer] += `M${round(x + inset)} ${y + inset}h${round(wide - 2 * inset)}v${high - 2 * inset}h${round(2 * inset - wide)}z`;
    if (layer === "taken-long") paths[layer] += `m${round(wide / 2 - 1)} 3v${high - 6}h2v${6 - high}z`;
  }
  return { ...paths, height: lines * (tall + 3) };
}

function bar(row) {
  const part = (count) => round((WIDTH * Math.min(count, row.capacity)) / Math.max(1, row.capacity));
  const box = (width) => (width ? `M0 0h${width}v12h-${width}z` : "");
  return { free: `M.5.5h${WIDTH - 1}v11H.5z`, taken: box(part(row.in_flight)), "taken-long": box(part(row.long_in_flight)), over: row.in_flight > row.capacity ? `M${WIDTH - 4} 0h4v12h-4z` : "", height: 15 };
}

const round = (value) => Math.round(value * 10) / 10;

export const spokenCount = (row) =>
  `${number(row.in_flight)} of ${many(row.capacity, "slot")} taken` +
  (row.long_capacity ? `, ${number(row.long_in_flight)} of ${number(row.long_capacity)} long` : "");
