// Who waits, oldest first, and why not now.

import { byId, el, keep, name, redraw, setAttr, setText, svg, unseen } from "./dom.js";
import { many, names, number, span } from "./format.js";

const SHOWN_MAX = 12;

export class Queue {
  constructor() {
    this.none = el("p", { class: "none" }, "Nobody waits.");
    this.marks = svg("path", { class: "marks" });
    this.line = svg("svg", { class: "line", viewBox: "0 0 1000 24", preserveAspectRatio: "none", "aria-hidden": "true" }, svg("path", { class: "base", d: "M0 23.5H1000" }), this.marks);
    this.ends = el("p", { class: "ends", "aria-hidden": "true" }, el("span", {}, "now"), el("span"));
    this.list = el("ol", { class: "plain waiters", "aria-label": "Waiting, oldest first" });
    this.more = el("p", { class: "none" });
    this.lines = el("ul", { class: "plain lines", "aria-label": "By model" });
    byId("queue-body").append(this.none, this.line, this.ends, this.list, this.more, this.lines);
  }

  draw({ queue }) {
    const { waiting, max_queue: most, timeout_ms: timeout, waiters, lines } = queue;
    const shown = waiters.slice(0, SHOWN_MAX);
    const rest = waiting - shown.length;
    setText(byId("queue-sum"), `${number(waiting)} of ${many(most, "place")}${timeout ? `, up to ${span(timeout)}` : ", no timeout"}`);
    setAttr(byId("queue"), "data-full", waiting >= most ? "" : null);
    this.none.hidden = waiting > 0;
    for (const node of [this.line, this.ends]) node.toggleAttribute("hidden", !waiters.length);
    const limit = timeout || Math.max(1_000, queue.oldest_ms);
    setText(this.ends.lastElementChild, timeout ? `${span(timeout)}: given up` : span(limit));
    setAttr(this.marks, "d", waiters.map((row) => `M${Math.round(1000 * Math.min(1, row.age_ms / limit))} ${row.class === "long" ? 2 : 10}V23`).join(""));
    keep(this.list, shown, (row) => row.request, makeWaiter, (one, row) => updateWaiter(one, row, timeout));
    this.more.hidden = rest <= 0;
    setText(this.more, rest > 0 ? `and ${number(rest)} more. All by model:` : "");
    keep(this.lines, rest > 0 ? lines : [], (row) => [row.model, row.class, ...row.needs].join(" "), makeLine, updateLine);
  }
}

function makeWaiter(row) {
  const one = { place: el("span", { class: "place" }), age: el("b", { class: "age" }), why: el("span", { class: "sub" }) };
  const what = el("span", {}, unseen(" for "), name(row.model), " ", longTag(row));
  one.node = el("li", {}, one.place, one.age, what, one.why);
  return one;
}

function updateWaiter(one, row, timeout) {
  setText(one.place, number(row.place));
  setText(one.age, span(row.age_ms));
  const isLate = timeout > 0 && row.age_ms > 0.8 * timeout;
  const words = [isLate ? `${span(timeout - row.age_ms)} left` : "", row.why || "next", features(row), row.is_readmitted ? "sent again" : "", row.principal === "anonymous" ? "" : `by ${row.principal}`];
  setText(one.why, words.filter(Boolean).join(" · "));
  setAttr(one.node, "data-late", isLate ? "" : null);
}

const longTag = (row) => (row.class === "long" ? el("span", { class: "tag" }, "long") : "");

// What it needs beyond its API.
function features(row) {
  const needs = row.needs.filter((need) => !need.startsWith("/"));
  return needs.length ? `needs ${names(needs, 9)}` : "";
}

function makeLine() {
  const one = { text: el("span"), why: el("span", { class: "sub" }) };
  one.node = el("li", {}, one.text, one.why);
  return one;
}

function updateLine(one, row) {
  redraw(one.text, `${row.waiting} ${row.model} ${row.class}`, () => [el("b", {}, number(row.waiting)), " ", name(row.model), " ", longTag(row)]);
  setText(one.why, [`oldest ${span(row.oldest_ms)}`, row.why || "next", features(row)].filter(Boolean).join(" · "));
}
