// The state of everything in a sentence, and what stands out, as lists of words; nothing here touches the page.
//
// A sentence is a list of strings and of [kind, text], where kind says how it is drawn: run, wait, bad or name.

import { many, names, number, plain, span } from "./format.js";

const are = (list, what) => `${names(list)} ${list.length === 1 ? "is" : "are"} ${what}`;
const mine = (row) => `${row.node_id}/${row.provider_id}`;

export function sentence({ edge, nodes, providers, queue }) {
  const running = providers.in_flight;
  const ready = nodes.links.ready ?? 0;
  const busy = nodes.rows.filter((row) => row.runs > 0).length;
  const place = busy ? ` on ${number(busy)} of ${many(nodes.total, "node")}` : "";
  if (edge.is_draining) return ["This Edge shuts down: ", ["run", `${number(running)} still running`], place, "."];
  if (!nodes.total) return ["No node is configured, so every request is refused."];
  if (!ready && !running) {
    return [["bad", nodes.total === 1 ? "The one node is not connected" : `None of ${number(nodes.total)} nodes is connected`], ", so requests are refused."];
  }
  if (!running && !queue.waiting) return [`Idle: nothing runs, nothing waits; ${number(ready)} of ${many(nodes.total, "node")} ready.`];
  const runs = running ? [["run", `${number(running)} running`], place] : ["Nothing runs"];
  if (!queue.waiting) return [...runs, "; nothing waits."];
  const why = reason(providers.rows) ?? queue.waiters[0]?.why;
  const waits = ["wait", `${number(queue.waiting)} ${queue.waiting === 1 ? "waits" : "wait"}`];
  return [...runs, "; ", waits, `, oldest ${span(queue.oldest_ms)}`, ...(why ? [": ", ["name", why]] : []), "."];
}

// Why those who wait do: the providers for which they are eligible, those with most of them first.
function reason(rows) {
  const wanted = rows.filter((row) => row.queued > 0).sort((a, b) => b.queued - a.queued);
  const full = wanted.filter((row) => row.state === "up" && row.in_flight >= row.capacity);
  if (full.length) return are(whole(full, rows) ?? full.map((row) => row.provider_id), "full");
  const longs = wanted.filter((row) => row.state === "up" && row.long_capacity && row.long_in_flight >= row.long_capacity);
  if (longs.length) return `no free long slot on ${names(longs.map((row) => row.provider_id))}`;
  return null;
}

// The name of the Node, where these are all that it has.
function whole(some, rows) {
  const node = some[0].node_id;
  const isWhole = some.every((row) => row.node_id === node) && rows.filter((row) => row.node_id === node).length === some.length;
  return isWhole ? [node] : null;
}

// What stands out: [{key, text, isBad}], the most pressing first. A key stays as long as the thing does.
export function attention(view, history, changes) {
  const { edge, nodes, providers, queue, refreshes, config } = view;
  const items = [];
  const say = (key, text, isBad = true) => items.push({ key, text, isBad });
  if (edge.is_draining) say("draining", "This Edge shuts down and takes no new requests.");
  else if (!edge.is_ready) say("ready", `Not ready: ${names(edge.reasons, 3)}.`);
  const away = nodes.rows.filter((row) => row.link === "offline").map((row) => row.node_id);
  if (away.length) say(`offline ${away}`, `${are(away, "offline")}${changes.since(away.map((id) => `node ${id}`))}.`);
  const leaving = nodes.rows.filter((row) => row.link === "draining").map((row) => row.node_id);
  if (leaving.length) say(`leaving ${leaving}`, `${are(leaving, "shutting down")}.`, false);
  const down = providers.rows.filter((row) => row.state === "down");
  const downs = (some, why) => say(`down ${some.map(mine)}`, `${are(some.map((row) => row.provider_id), "down")}${changes.since(some.map(mine))}${why}.`);
  if (down.length > 2) downs(down, "");
  else for (const row of down) downs([row], row.reason ? `: ${row.reason}` : "");
  if (queue.waiting >= queue.max_queue) say("full", `The queue is full (${number(queue.max_queue)}): what finds no free slot gets 429.`);
  const { failures, ended } = history.lastMinute();
  const worst = Object.entries(failures).sort((a, b) => b[1] - a[1]);
  if (worst.length) {
    const counts = worst.map(([word, count]) => `${number(count)} ${plain(word)}`);
    say("failures", `Of ${many(ended, "request")} in the last minute failed: ${names(counts, 3)}.`);
  }
  const last = refreshes.find((one) => one.mode === "apply");
  if (last && !["applied", "no_change"].includes(last.status)) say(`refresh ${last.at}`, `The last refresh was not applied: ${plain(last.status)}. Revision ${config.revision} runs on.`);
  const behind = nodes.rows.filter((row) => row.link === "ready" && row.observed_revision !== row.payload_revision).map((row) => row.node_id);
  if (behind.length) say(`behind ${behind}`, `${names(behind)} ${behind.length === 1 ? "does" : "do"} not run the current configuration yet.`, false);
  return items;
}

export const title = ({ edge, queue, providers }, isLive) =>
  `${isLive ? (queue.waiting ? `${number(queue.waiting)} wait, ` : "") + `${number(providers.in_flight)} run` : "stale"} · ${edge.name ?? edge.id}`;

export const about = ({ edge, config }, now) =>
  `revision ${config.revision} · ${config.file_sha256.slice(0, 8)} · up ${span(Math.max(0, now - Date.parse(edge.started_at)))} · ${edge.version}`;

