// Five minutes as four small plots, drawn anew each second. The numbers beside them are those of now.

import { byId, el, setAttr, setText, svg } from "./dom.js";
import { number, rate, span } from "./format.js";
import { SPAN_S, WINDOW_S } from "./history.js";

const HIGH = 56;

export class Plots {
  constructor() {
    const place = byId("plots");
    this.all = [
      makePlot(place, "Load, last 5 min", [["run", "run"], ["wait", "wait"]], this.load),
      makePlot(place, "Ended per second", [["run", "/s"], ["bad", "failed"]], this.ends),
      makePlot(place, "Wait for a slot", [["run", "p50"], ["wait", "p95"]], quantiles("waits")),
      makePlot(place, "Time to first byte", [["run", "p50"], ["wait", "p95"]], quantiles("firsts")),
    ];
  }

  draw(history) {
    for (const plot of this.all) drawPlot(plot, plot.read(history));
  }

  load(history) {
    const [running, waiting] = [history.series("running"), history.series("waiting")];
    return [{ values: running, fill: running, say: number }, { values: waiting, say: number }];
  }

  ends(history) {
    const [ended, failures] = [history.series("ended"), history.failures()];
    return [
      { values: means(ended), fill: ended, say: rate, more: `${number(Math.round(means(history.series("tokens")).at(-1) ?? 0))} tokens/s` },
      { values: means(failures), fill: failures, say: rate },
    ];
  }
}

const quantiles = (name) => (history) => [0.5, 0.95].map((share) => ({ values: history.quantiles(name, share), say: span }));

function makePlot(place, title, kinds, read) {
  const picture = svg("svg", { class: "plot", viewBox: `0 0 ${SPAN_S} ${HIGH}`, preserveAspectRatio: "none", role: "img" });
  picture.append(svg("path", { class: "base", d: `M0 ${HIGH - 0.5}H${SPAN_S}` }));
  const series = kinds.map(([kind, label]) => ({
    label,
    fill: picture.appendChild(svg("path", { class: `fill ${kind}` })),
    path: picture.appendChild(svg("path", { class: `series ${kind}` })),
    value: el("b", { class: kind }),
  }));
  const most = el("span", { "aria-hidden": "true" });
  const more = el("span", { class: "more" });
  const key = el("p", { class: "key" }, ...series.flatMap((one) => [el("span", {}, one.value, ` ${one.label}`), " "]), more);
  place.append(el("div", { class: "figure" }, el("h3", {}, title), key, el("div", { class: "frame" }, picture, most)));
  return { title, read, picture, series, most, more };
}

function drawPlot(plot, drawn) {
  const peak = Math.max(0, ...drawn.flatMap((one) => [...one.values, ...(one.fill ?? [])]));
  const top = peak ? niceAbove(peak, drawn[0].say === span) : 1;
  const said = [];
  for (const [at, one] of drawn.entries()) {
    const { fill, path, value, label } = plot.series[at];
    setAttr(path, "d", line(one.values, top) || null);
    setAttr(fill, "d", (one.fill && area(one.fill, top)) || null);
    const now = one.values.at(-1) ?? null;
    const text = now === null ? "–" : one.say(now);
    setText(value, text);
    setAttr(value, "data-none", now ? null : "");
    said.push(`${text === "–" ? "nothing" : text} ${label}`);
  }
  setText(plot.more, drawn[0].more ?? "");
  setText(plot.most, peak ? drawn[0].say(top) : "");
  setAttr(plot.picture, "aria-label", `${plot.title}: now ${said.join(", ")}; at most ${peak ? drawn[0].say(peak) : "nothing"}`);
}

const x = (values, at) => SPAN_S - values.length + at;
const y = (value, top) => Math.round((HIGH - 1 - (value / top) * (HIGH - 3)) * 10) / 10;

// A line over what is known; a single second is a stroke of its length.
function line(values, top) {
  let path = "";
  let isOn = false;
  for (const [at, value] of values.entries()) {
    if (value !== null) path += isOn ? `L${x(values, at) + 0.5} ${y(value, top)}` : `M${x(values, at)} ${y(value, top)}h.5`;
    isOn = value !== null;
  }
  return path;
}

// Steps, closed down to the base.
function area(values, top) {
  let path = "";
  for (let at = 0; at < values.length; ) {
    let end = at + 1;
    while (end < values.length && values[end] === values[at]) end++;
    if (values[at]) path += `M${x(values, at)} ${HIGH - 1}V${y(values[at], top)}h${end - at}V${HIGH - 1}z`;
    at = end;
  }
  return path;
}

// Of each second with those before it, as many as quantiles are of.
function means(values) {
  return values.map((one, at) => {
    const known = values.slice(Math.max(0, at - WINDOW_S + 1), at + 1).filter((value) => value !== null);
    return one === null ? null : known.reduce((sum, value) => sum + value, 0) / known.length;
  });
}

// 1, 2 or 5 times a power of ten; spans of time in seconds and minutes.
function niceAbove(value, isTime) {
  const unit = isTime && value > 30_000 ? 60_000 : 1;
  const power = 10 ** Math.floor(Math.log10(value / unit));
  return unit * power * [1, 2, 5, 10].find((step) => step * power * unit >= value * 0.999);
}
