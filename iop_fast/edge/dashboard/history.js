// What the plots show: the last five minutes, a slot a second, kept in this page alone.
//
// The feed says a second's rates only when they differ from those before, so a second of a live connection about
// which nothing was said had none. A second without a connection is a gap: nothing is known about it.

export const SPAN_S = 300;
export const WINDOW_S = 10; // quantiles and means are of so many seconds

// Outcomes that are the fleet's doing. The others are the caller's: a wrong name, a bad body, a client that left.
const OURS = ["queue_full", "queue_timeout", "unavailable", "draining", "overloaded", "upstream_error", "upstream_timeout", "internal"];

export class History {
  constructor() {
    this.slots = [];
    this.bounds = [];
  }

  // Fill up to this second; `now` is {running, waiting}, or null where the connection is lost. Seconds between two
  // looks, of which a page in the background has many, are like the first: a difference would have been said.
  advance(second, now) {
    const { second: last, running, waiting } = this.slots.at(-1) ?? { second: second - 1, ...now };
    for (let at = Math.max(last, second - SPAN_S) + 1; at <= second; at++) {
      this.slots.push({ second: at, isKnown: now !== null, running, waiting, ended: 0, tokens: 0, outcomes: {} });
    }
    this.slots.splice(0, this.slots.length - SPAN_S);
    Object.assign(this.slots.at(-1), now);
  }

  rates({ requests, outcomes, completion_tokens: tokens }) {
    const slot = this.slots.at(-1);
    slot.ended += requests;
    slot.tokens += tokens;
    for (const [name, count] of Object.entries(outcomes)) slot.outcomes[name] = (slot.outcomes[name] ?? 0) + count;
  }

  durations({ bounds_ms: bounds, queue, ttfb }) {
    const slot = this.slots.at(-1);
    this.bounds = bounds;
    slot.waits = add(slot.waits, queue.counts);
    slot.firsts = add(slot.firsts, ttfb.counts);
  }

  series(name) {
    return this.slots.map((slot) => (slot.isKnown ? slot[name] : null));
  }

  failures() {
    return this.slots.map((slot) => (slot.isKnown ? failed(slot) : null));
  }

  // A quantile of durations in ms for each second, of the seconds up to it; null where nothing ended.
  quantiles(name, share) {
    return this.slots.map((slot, at) => {
      if (!slot.isKnown) return null;
      let counts = null;
      for (const one of this.slots.slice(Math.max(0, at - WINDOW_S + 1), at + 1)) if (one[name]) counts = add(counts, one[name]);
      return counts && quantile(this.bounds, counts, share);
    });
  }

  // What ended badly by our doing within the last minute: {name: count}, and how many ended at all.
  lastMinute() {
    const failures = {};
    let ended = 0;
    for (const slot of this.slots.slice(-60)) {
      ended += slot.ended;
      for (const name of OURS) if (slot.outcomes[name]) failures[name] = (failures[name] ?? 0) + slot.outcomes[name];
    }
    return { failures, ended };
  }
}

const failed = (slot) => OURS.reduce((sum, name) => sum + (slot.outcomes[name] ?? 0), 0);
const add = (sums, counts) => (sums ? sums.map((sum, at) => sum + counts[at]) : counts);

// Between the bounds of its bucket a quantile is taken as the share of the way; the last bucket has no upper bound.
function quantile(bounds, counts, share) {
  const total = counts.reduce((sum, count) => sum + count, 0);
  if (!total) return null;
  let rank = share * total;
  for (const [at, count] of counts.entries()) {
    if (count && rank <= count) {
      const low = at ? bounds[at - 1] : 0;
      return at < bounds.length ? low + ((bounds[at] - low) * rank) / count : low;
    }
    rank -= count;
  }
  return bounds.at(-1);
}
