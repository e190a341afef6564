// The page of an Edge's operator. It reads, and changes nothing.
//
// `view` holds the parts as the feed sent them last. Events put parts into it and ask for a frame, which brings the
// page to it. Once a second the history moves on, whatever was sent.

import { byId, el, glyph, keep, setText } from "./dom.js";
import { Explain } from "./explain.js";
import { Fleet } from "./fleet.js";
import { clock, span } from "./format.js";
import { about, attention, sentence, title } from "./headline.js";
import { History } from "./history.js";
import { Plots } from "./plots.js";
import { Queue } from "./queue.js";
import { drawRefreshes } from "./refreshes.js";
import { Stream } from "./stream.js";

const ATTENTION_MAX = 6;
const SPEAK_MS = 10_000;

// When this page saw a Node or provider change its state.
const changes = {
  known: new Map(),
  note(key, state) {
    const before = this.known.get(key);
    if (before?.state !== state) this.known.set(key, { state, at: before ? new Date() : null });
  },
  since(keys) {
    const at = keys.length === 1 ? this.known.get(keys[0])?.at : null;
    return at ? ` since ${clock(at)}` : "";
  },
};

// What is said to who does not see the page, not more often than each SPEAK_MS: what began, and what is over.
const speaker = {
  spoken: new Map(),
  now: new Map(),
  notes: [],
  next: 0,
  hear(items) {
    this.now = new Map(items.map((one) => [one.key, one.text]));
    if (this.missing(this.now, this.spoken).length || this.missing(this.spoken, this.now).length) this.hurry();
  },
  note(text) {
    this.notes.push(text);
    this.hurry();
  },
  hurry() {
    this.timer ??= setTimeout(() => this.speak(), Math.max(0, this.next - Date.now()));
  },
  missing: (some, others) => [...some].filter(([key]) => !others.has(key)),
  speak() {
    const kinds = new Set([...this.now.keys()].map((key) => key.split(" ")[0]));
    const over = this.missing(this.spoken, this.now).filter(([key]) => !kinds.has(key.split(" ")[0]));
    const began = this.missing(this.now, this.spoken);
    const said = [...this.notes, ...began.map(([, text]) => text), ...over.map(([, text]) => `Over: ${text}`)];
    if (said.length) setText(byId("spoken"), said.slice(0, 3).join(" ") + (said.length > 3 ? ` And ${said.length - 3} more.` : ""));
    [this.timer, this.next, this.notes, this.spoken] = [undefined, Date.now() + SPEAK_MS, [], this.now];
  },
};

let view = null;
let lost = null;
let isAsked = false;
const history = new History();
const [fleet, queue, plots, explain] = [new Fleet(changes), new Queue(), new Plots(), new Explain()];

function load() {
  return view && !lost ? { running: view.providers.in_flight, waiting: view.queue.waiting } : null;
}

function take(parts, isChange) {
  const wasAt = view?.edge.started_at;
  view = { ...view, ...parts };
  for (const row of view.nodes.rows) changes.note(`node ${row.node_id}`, row.link);
  for (const row of view.providers.rows) changes.note(`${row.node_id}/${row.provider_id}`, row.state);
  history.advance(Math.floor(Date.now() / 1000), load());
  if (isChange && parts.rates) history.rates(parts.rates);
  if (isChange && parts.durations) history.durations(parts.durations);
  if (wasAt && wasAt !== view.edge.started_at) speaker.note("The Edge was started anew.");
  ask();
}

function ask() {
  if (isAsked) return;
  isAsked = true;
  requestAnimationFrame(draw);
}

function draw() {
  isAsked = false;
  drawConnection();
  if (!view) return;
  byId("main").hidden = false;
  setText(byId("edge"), view.edge.name ?? view.edge.id);
  setText(byId("about"), about(view, Date.now()));
  document.title = title(view, !lost);
  drawHeadline();
  fleet.draw(view);
  queue.draw(view);
  plots.draw(history);
  explain.draw(view);
  drawRefreshes(view);
}

function drawHeadline() {
  const parts = sentence(view);
  const text = parts.map((part) => (typeof part === "string" ? part : part[1])).join("");
  if (byId("headline").textContent !== text) {
    byId("headline").replaceChildren(...parts.map((part) => (typeof part === "string" ? part : el(part[0] === "name" ? "bdi" : "b", { class: part[0] }, part[1]))));
  }
  const items = attention(view, history, changes);
  if (!speaker.next && !speaker.notes.length) speaker.note(text);
  if (!lost) speaker.hear(items);
  const shown = items.slice(0, items.length > ATTENTION_MAX ? ATTENTION_MAX - 1 : ATTENTION_MAX);
  if (shown.length < items.length) shown.push({ key: "more", text: `And ${items.length - shown.length} more.`, isBad: false });
  if (!shown.length && !lost) shown.push({ key: "none", text: "Nothing needs attention." });
  keep(byId("attention"), shown, (one) => one.key, makeItem, ({ text }, one) => setText(text, one.text));
}

function makeItem({ isBad }) {
  const text = el("span");
  const kind = isBad === undefined ? "up" : isBad ? "trouble" : "accepted";
  return { node: el("li", { "data-kind": kind }, glyph(kind), text), text };
}

function drawConnection() {
  document.documentElement.toggleAttribute("data-stale", lost !== null && view !== null);
  byId("lost").hidden = !lost;
  if (!lost) {
    setText(byId("connection"), view ? `live · ${clock(new Date())}` : "connecting");
    return;
  }
  const why = lost.busy ? "has as many readers as it takes" : "does not answer";
  const since = lost.at ? `stale since ${clock(new Date(lost.at))}` : "not connected";
  setText(byId("connection"), since);
  setText(byId("lost-text"), `${since}${lost.at ? ` (${span(Date.now() - lost.at)})` : ""}: the Edge ${why}. This page tries again by itself.`);
  if (!view) setText(byId("headline"), "No figures yet.");
}

const stream = new Stream("events", {
  snapshot: (parts) => take(parts, false),
  change: (parts) => take(parts, true),
  live() {
    if (lost) speaker.note("Connected again.");
    lost = null;
    ask();
  },
  lost(how) {
    if (!lost) speaker.note(`Connection lost; the figures are stale${how.at ? ` since ${clock(new Date(how.at))}` : ""}.`);
    lost = { ...how, busy: how.busy || (lost?.busy ?? false) };
    ask();
  },
});

byId("again").addEventListener("click", () => stream.hurry());
setInterval(() => {
  if (view) history.advance(Math.floor(Date.now() / 1000), load());
  ask();
}, 1_000);
