// Numbers, spans of time and lists of names, as one says them.

const DIGITS = new Intl.NumberFormat("en-US");
const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });

export const number = (value) => DIGITS.format(value);
export const clock = (date) => CLOCK.format(date);
export const part = (some, all) => `${number(some)}/${number(all)}`;
export const many = (count, one, more = `${one}s`) => `${number(count)} ${count === 1 ? one : more}`;

// "320 ms", "4.2 s", "2 min 5 s", "3 h 4 min", "5 d 3 h"
export function span(ms) {
  if (ms < 1) return "0 s";
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 9950) return `${(ms / 1000).toFixed(1)} s`;
  const s = Math.round(ms / 1000);
  if (s < 60) return `${s} s`;
  const pair = (unit, one, rest, two) => (rest ? `${unit} ${one} ${rest} ${two}` : `${unit} ${one}`);
  if (s < 3600) return pair(Math.floor(s / 60), "min", s % 60, "s");
  if (s < 86400) return pair(Math.floor(s / 3600), "h", Math.floor((s % 3600) / 60), "min");
  return pair(Math.floor(s / 86400), "d", Math.floor((s % 86400) / 3600), "h");
}

// A rate: whole numbers from ten up.
export const rate = (value) => (value === 0 ? "0" : value < 9.95 ? value.toFixed(1) : number(Math.round(value)));

// "a", "a and b", "a, b and 4 more"
export function names(all, most = 2) {
  const shown = all.slice(0, all.length === most + 1 ? most + 1 : most).map((text) => shorten(text, 64));
  const rest = all.length - shown.length;
  const parts = rest ? [...shown, `${number(rest)} more`] : shown;
  return parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`;
}

// Cut, and said so.
export const shorten = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
export const plain = (word) => word.replaceAll("_", " ");
