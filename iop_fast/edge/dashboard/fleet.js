// What runs where: each Node with its providers, in the order of the file.
//
// At most SHOWN_MAX providers are drawn, Nodes in trouble before others; a line says what the rest comes to, and the
// filter looks through all of them.

import { byId, el, glyph, keep, name, redraw, setAttr, setGlyph, setText, svg, unseen } from "./dom.js";
import { many, names, number, part } from "./format.js";
import { makeSlots, spokenCount, updateSlots } from "./slots.js";

const SHOWN_MAX = 120;
const FILTER_FROM = 13;
const MANY = 40;
const LINKS = { draining: "shutting down", accepted: "preparing" };

export class Fleet {
  constructor(changes) {
    this.changes = changes;
    this.filter = byId("filter");
    this.filter.addEventListener("input", () => this.view && this.draw(this.view));
    drawLegend();
  }

  draw(view) {
    this.view = view;
    const { nodes, providers } = view;
    const rows = Map.groupBy(providers.rows, (row) => row.node_id);
    const all = nodes.rows.map((node) => ({ node, providers: rows.get(node.node_id) ?? [] }));
    const asked = this.filter.value.trim().toLowerCase();
    const found = asked ? all.map((one) => matching(one, asked)).filter((one) => one !== null) : all;
    const shown = choose(found);
    setText(byId("fleet-sum"), `${number(providers.in_flight)} of ${many(providers.capacity, "slot")} taken · ${many(providers.total, "provider")}`);
    byId("filter-label").hidden = providers.total < FILTER_FROM && !asked;
    this.sum(view, found, shown, asked);
    keep(byId("nodes"), shown, ({ node }) => node.node_id, makeNode, (one, row) => this.updateNode(one, row));
    // Below a long fleet nobody would find the refreshes.
    const column = document.querySelectorAll(".column")[providers.total > MANY ? 0 : 1];
    if (byId("refreshes").parentElement !== column) column.append(byId("refreshes"));
  }

  sum({ providers }, found, shown, asked) {
    const parts = [];
    const count = (some) => some.reduce((sum, one) => sum + one.providers.length, 0);
    const rest = found.filter((one) => !shown.includes(one));
    if (rest.length) parts.push(`Not drawn: ${restOf(rest)}.${asked ? "" : " The filter finds them."}`);
    const unsent = providers.total - providers.rows.length;
    if (unsent > 0) parts.push(`This page knows the first ${number(providers.rows.length)} of ${many(providers.total, "provider")}; iop status shows all.`);
    setText(byId("filter-found"), asked ? `${many(count(found), "provider")} on ${many(found.length, "node")}.` : "");
    setText(byId("filter-rest"), parts.join(" "));
  }

  updateNode(one, { node, providers }) {
    setGlyph(one.glyph, node.link === "offline" ? "trouble" : node.link);
    setAttr(one.node, "data-link", node.link);
    setText(one.alias, node.alias ? ` ${node.alias}` : "");
    const isBehind = node.link === "ready" && node.observed_revision !== node.payload_revision;
    setText(
      one.state,
      (LINKS[node.link] ?? node.link) +
        (node.link === "ready" ? "" : this.changes.since([`node ${node.node_id}`])) +
        (node.runs ? `, ${number(node.runs)} running` : "") +
        (isBehind ? `, still on configuration ${node.observed_revision}` : ""),
    );
    keep(one.list, providers, (row) => row.provider_id, makeProvider, (provider, row) => this.updateProvider(provider, row));
  }

  updateProvider(one, row) {
    setAttr(one.node, "data-state", row.state);
    setGlyph(one.glyph, row.state);
    setText(one.label, row.label);
    updateSlots(one.slots, row);
    setText(one.count, part(row.in_flight, row.capacity));
    setText(one.spoken, spokenCount(row));
    const since = this.changes.since([`${row.node_id}/${row.provider_id}`]);
    const isPlain = ["up", "offline", "disabled"].includes(row.state);
    const state = isPlain ? (row.state === "disabled" ? "disabled" : "") : `${row.state}${since}${row.reason ? `: ${row.reason}` : ""}`;
    const more = [
      row.long_capacity ? `long ${part(row.long_in_flight, row.long_capacity)}` : "",
      row.in_flight > row.capacity ? `${number(row.in_flight - row.capacity)} above capacity` : "",
      row.capacity === 0 ? "capacity 0 takes nothing" : "",
    ].filter(Boolean);
    redraw(one.sub, [state, more, row.queued].join("\n"), () => [
      state ? el("span", { class: "state" }, state) : null,
      ...more.map((text) => el("span", {}, text)),
      row.queued ? el("span", { class: "waits" }, `wanted by ${number(row.queued)} waiting`) : null,
    ]);
  }
}

function makeNode({ node }) {
  const one = { glyph: glyph(node.link), alias: el("small"), state: el("p", { class: "link" }), list: el("ul", { class: "plain" }) };
  one.node = el("li", { class: "node" }, el("div", { class: "row" }, el("h3", {}, one.glyph, name(node.node_id), one.alias), one.state), one.list);
  return one;
}

function makeProvider(row) {
  const one = { glyph: glyph(row.state), label: el("small"), slots: makeSlots(), count: el("span", { class: "count", "aria-hidden": "true" }), spoken: unseen(""), sub: el("p", { class: "sub" }) };
  one.node = el("li", { class: "provider" }, el("span", { class: "who" }, one.glyph, name(row.provider_id), " ", one.label), one.slots.node, one.count, one.spoken, one.sub);
  return one;
}

// Providers that match, or all of a Node that does; null where nothing does.
function matching({ node, providers }, asked) {
  const has = (...words) => words.some((word) => word?.toLowerCase().includes(asked));
  if (has(node.node_id, node.alias, node.link)) return { node, providers };
  const some = providers.filter((row) => has(row.provider_id, row.type, row.label, row.state));
  return some.length ? { node, providers: some } : null;
}

const isTroubled = ({ node, providers }) => node.link !== "ready" || providers.some((row) => row.state === "down" || row.queued > 0);

function choose(found) {
  const chosen = new Set();
  let room = SHOWN_MAX;
  for (const one of [...found.filter(isTroubled), ...found]) {
    if (room <= 0) break;
    if (!chosen.has(one)) room -= Math.max(1, one.providers.length);
    chosen.add(one);
  }
  return found.filter((one) => chosen.has(one));
}

function restOf(rest) {
  const rows = rest.flatMap((one) => one.providers);
  const sum = (field) => rows.reduce((total, row) => total + row[field], 0);
  const states = Object.entries(Object.groupBy(rows, (row) => row.state)).map(([state, some]) => `${number(some.length)} ${state}`);
  return `${many(rows.length, "provider")} on ${many(rest.length, "node")} (${names(states, 4)}), ${number(sum("in_flight"))} of ${many(sum("capacity"), "slot")} taken`;
}

function drawLegend() {
  const cell = (kind, d, text) => el("span", {}, svg("svg", { class: "slots", width: 8, height: 18, viewBox: "0 0 8 18" }, svg("path", { class: kind, d })), text);
  byId("legend").append(
    cell("taken", "M0 6h8v12h-8z", "runs"),
    cell("free", "M.5 6.5h7v11h-7z", "free slot"),
    cell("taken-long", "M0 0h8v18h-8zM3 3v12h2v-12z", "runs long"),
    cell("free-long", "M.5.5h7v17h-7z", "free long slot"),
  );
}
