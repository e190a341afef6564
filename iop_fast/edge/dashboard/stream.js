// The feed of the Edge: comes again by itself, and says when the figures are old.
//
// Something comes at least every 5 s. A connection that fails or is silent for SILENCE_MS is lost: what is shown is
// stale since the last event. Coming again is ours: EventSource gives up where it is refused, as too many readers are.

const SILENCE_MS = 12_000;
const DELAYS_MS = [500, 1_000, 2_000, 4_000];

export class Stream {
  // `on` has: snapshot(parts), change(parts), live(), lost({at, next, busy}). Moments are Date.now().
  constructor(url, on) {
    this.url = url;
    this.on = on;
    this.heardAt = null; // the last event
    this.openedAt = 0;
    this.isLive = false;
    this.failures = 0;
    setInterval(() => this.watch(), 1_000);
    addEventListener("online", () => this.hurry());
    document.addEventListener("visibilitychange", () => this.watch());
    this.open();
  }

  open() {
    clearTimeout(this.timer);
    this.timer = null;
    this.source?.close();
    this.openedAt = Date.now();
    const source = (this.source = new EventSource(this.url));
    for (const kind of ["snapshot", "change", "quiet"]) {
      source.addEventListener(kind, (event) => this.hear(source, kind, event.data));
    }
    source.addEventListener("error", () => source === this.source && this.lose());
  }

  hear(source, kind, data) {
    if (source !== this.source) return;
    this.heardAt = Date.now();
    if (kind !== "quiet") this.on[kind](JSON.parse(data));
    if (!this.isLive && kind === "snapshot") {
      this.isLive = true;
      this.failures = 0;
      this.on.live();
    }
  }

  // Silence: also that of a machine which slept.
  watch() {
    const since = this.isLive ? this.heardAt : this.openedAt;
    if (this.timer === null && Date.now() - since > SILENCE_MS) this.lose();
  }

  async lose() {
    this.source.close();
    this.source = null;
    this.isLive = false;
    const delay = DELAYS_MS[Math.min(this.failures++, DELAYS_MS.length - 1)];
    this.timer = setTimeout(() => this.open(), delay);
    this.on.lost({ at: this.heardAt, busy: false });
    const answer = await fetch(this.url, { method: "HEAD", cache: "no-store" }).catch(() => null);
    if (answer?.status === 503 && !this.isLive) this.on.lost({ at: this.heardAt, busy: true });
  }

  // Somebody says that it may work by now.
  hurry() {
    if (!this.isLive) this.open();
  }
}
