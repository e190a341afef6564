// What a request would meet now, by GET /explain: asked when somebody asks, and true for that moment.

import { byId, el, glyph, keep, name } from "./dom.js";
import { clock, many, number, part } from "./format.js";

const DECISIONS = {
  run: () => "It would run at once.",
  wait: ({ position, why }) => `It would wait at place ${number(position)}: ${why}.`,
  queue_full: ({ why, retry_after_s: seconds }) => `It would be refused, the queue is full (429, again in ${seconds} s): ${why}.`,
  provider_unavailable: ({ why }) => `It would be refused (503): ${why || "no provider could take it"}.`,
  unsupported_by_model: () => "It would be refused (400): no provider of the model can do it.",
};
const SHAPES = { taken_next: "up", free: "up", full: "accepted", no_long_slot: "accepted", disabled: "disabled", draining: "draining", node_offline: "offline" };

export class Explain {
  constructor() {
    this.isTouched = false;
    byId("model").addEventListener("input", () => (this.isTouched = true));
    byId("explain-form").addEventListener("submit", (event) => {
      event.preventDefault();
      this.ask(byId("model").value, byId("tokens").value || "0");
    });
  }

  // The models to pick from; until somebody types, the one that waits longest is proposed.
  draw({ models, queue }) {
    keep(byId("models"), models.ids, (id) => id, (id) => ({ node: el("option", { value: id }) }), () => {});
    const proposed = queue.waiters[0]?.model ?? models.ids[0] ?? "";
    if (!this.isTouched && document.activeElement !== byId("model")) byId("model").value = proposed;
  }

  async ask(model, tokens) {
    this.isTouched = true;
    const asked = (this.asked = Symbol(model));
    const children = await answer(model, tokens).catch(() => [el("p", {}, "The Edge does not answer.")]);
    if (asked === this.asked) byId("explained").replaceChildren(...children);
  }
}

async function answer(model, tokens) {
  const got = await fetch(`explain?${new URLSearchParams({ model, tokens })}`, { cache: "no-store", signal: AbortSignal.timeout(5_000) });
  const said = await got.json();
  if (!got.ok) return [el("p", {}, said.error.message)];
  const text = (DECISIONS[said.decision] ?? (() => said.decision))(said);
  return [
    el("p", { class: "decision" }, el("b", {}, text), el("small", {}, ` ${said.class}, ${many(said.tokens, "token")}, at ${clock(new Date())}`)),
    said.candidates.length ? table(said) : null,
    said.candidates_total > said.candidates.length ? el("p", { class: "none" }, `and ${number(said.candidates_total - said.candidates.length)} more`) : null,
  ].filter((child) => child !== null);
}

function table({ model, candidates }) {
  const head = el("tr", {}, ...["Provider", "Slots", "Now"].map((text) => el("th", { scope: "col" }, text)));
  const rows = candidates.map((row) =>
    el("tr", {},
      el("th", { scope: "row" }, name(row.provider_id), el("small", {}, " on ", name(row.node_id), " as ", name(row.served))),
      el("td", {}, part(row.in_flight, row.capacity), row.long_capacity ? el("small", {}, ` long ${part(row.long_in_flight, row.long_capacity)}`) : null),
      el("td", {}, glyph(SHAPES[row.verdict] ?? "trouble"), row.reason),
    ),
  );
  return el("table", {}, el("caption", { class: "unseen" }, `Providers of ${model}`), el("thead", {}, head), el("tbody", {}, ...rows));
}
