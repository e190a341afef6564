// The last refreshes: what changed, what it did to those who ran and waited, and which Nodes have it.

import { byId, el, glyph, keep, name, redraw, setText } from "./dom.js";
import { clock, many, number, plain, shorten } from "./format.js";

const PATHS_MAX = 3;
const VALUE_MAX = 48;
const GOOD = ["applied", "no_change"];
const EFFECTS = {
  leases_above_capacity: (count) => `${number(count)} run above the new capacity`,
  long_leases_above_capacity: (count) => `${number(count)} long ones do`,
  waiters_granted: (count) => `${many(count, "waiter")} got a slot`,
  waiters_evicted_timeout: (count) => `${many(count, "waiter")} timed out`,
  waiters_evicted_unavailable: (count) => `${many(count, "waiter")} had no provider left`,
};

export function drawRefreshes({ refreshes }) {
  setText(byId("refreshes-sum"), refreshes.length ? "" : "none since the start");
  keep(byId("refresh-list"), refreshes, (one) => `${one.at} ${one.source}`, () => ({ node: el("li", { class: "refresh" }) }), update);
}

function update({ node }, one) {
  redraw(node, JSON.stringify(one), () => [
    el("p", { class: "row" }, el("span", {}, glyph(GOOD.includes(one.status) ? "up" : "trouble"), el("b", {}, verdict(one))), el("time", { datetime: one.at }, clock(new Date(one.at)), ` by ${one.source}`)),
    ...paths(one),
    ...effects(one),
    ...pushes(one),
  ]);
}

function verdict({ mode, status, revision, changes }) {
  const what = { applied: `applied, revision ${revision}`, no_change: "nothing changed", restart_required: "not applied, needs a restart" }[status] ?? `not applied, ${plain(status)}`;
  const told = mode === "dry_run" ? `dry run: ${status === "applied" ? "would be applied" : what}` : what;
  return changes ? `${told} · ${many(changes, "change")}` : told;
}

const list = (items) => (items.length ? [el("ul", { class: "plain sub" }, ...items.map((item) => el("li", {}, ...item)))] : []);

function paths({ changed_paths: changed, changes, errors }) {
  const needs = (one) => (one.apply === "restart" ? [" ", el("span", { class: "tag" }, "restart")] : []);
  const items = [
    ...errors.map((one) => [`${one.line}:${one.column} `, name(one.path), ` ${one.message}`]),
    ...changed.map((one) => [name(one.path), ` ${change(one)}`, ...needs(one)]),
  ];
  if (items.length <= PATHS_MAX) return list(items);
  const unsent = changes - changed.length;
  const more = el("summary", {}, `${number(items.length - PATHS_MAX)} more${unsent > 0 ? ` of ${number(unsent + items.length - PATHS_MAX)}` : ""}`);
  return [...list(items.slice(0, PATHS_MAX)), el("details", {}, more, ...list(items.slice(PATHS_MAX)))];
}

const value = (one) => shorten(typeof one === "string" ? one : JSON.stringify(one), VALUE_MAX);

function change({ kind, before, after }) {
  if (before === null && after === null) return plain(kind);
  if (before === null) return `${plain(kind)}: ${value(after)}`;
  if (after === null) return `${plain(kind)}: was ${value(before)}`;
  return `${value(before)} → ${value(after)}`;
}

function effects({ impact, mode }) {
  const told = Object.entries(EFFECTS).filter(([key]) => impact[key]).map(([key, say]) => say(impact[key]));
  return told.length ? [el("p", { class: "sub" }, `${mode === "dry_run" ? "It would: " : ""}${told.join(", ")}.`)] : [];
}

function pushes({ node_pushes: all }) {
  const acked = all.filter((one) => one.status === "acked").length;
  if (!all.length) return [];
  const rest = all.filter((one) => one.status !== "acked").flatMap((one) => ["; ", name(one.node_id), ` ${one.status}${one.reason ? `: ${one.reason}` : ""}`]);
  return [el("p", { class: "sub" }, `Taken by ${acked < all.length ? `${number(acked)} of ` : ""}${many(all.length, "node")}`, ...rest, ".")];
}
