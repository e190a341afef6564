"""Hand-made faults in session and dispatch code, each in a scratch copy: the simulation must find every one.

    python -m tests.mutants.sim [NAME ...]

A mutant is one replaced piece of one module, and the piece must stand there exactly once, so that a mutant cannot rot
unseen. It is found when a world of the first `SEEDS` breaks, or when all of them together have not met what they must
(`tests.sim.run` says both). A table is printed; the exit status is 1 when one survives.
"""

# ruff: noqa: E501 the pieces stand as they stand in the source

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

from tests.mutants.faults import ROOT, Mutant, chosen, close, mutants, mutated, run

SEEDS = 240
SOUND_S = 1800
# A mutant that takes so much longer than the sound code has no end. The machine may have other things to do.
TIMEOUT_S = 240
SLOWER = 6


MUTANTS = [
    *mutants(
        "edge/link",
        ("an ack of any generation", " or (ack.generation, ack.payload_revision) != expected:", ":"),
        ("a second ack is an ack", "if self._state is not LinkState.ACCEPTED or (", "if ("),
        ("leases outlive their session", "self._edge.gate.node_down(self.node_id, self.generation)", "pass"),
        ("runs outlive their session", "            self._lose_runs()\n", "            pass\n"),
        ("silence is no end", '        self.close("silent")\n', ""),
        (
            "a change before the ack is not pushed",
            'admission knows a newer generation")\n        self.push_if_changed()',
            'admission knows a newer generation")',
        ),
        ("a draining Node gets runs", "self._edge.gate.node_draining(self.node_id, self.generation)", "pass"),
        ("the Edge does not beat", "        self._beat.start()\n", ""),
    ),
    *mutants(
        "edge/links",
        ("the superseded session lives on", '            before.close("superseded")\n', ""),
        ("any instance may have the id", "or not link.silence.is_within_limit", "or True"),
    ),
    *mutants(
        "edge/link_runs",
        (
            "a cancel is not sent",
            "            self._outbox.drop_run(run_id)\n            self._outbox.send_control(encode_cancel(run_id))\n\n    def withdraw",
            "            self._outbox.drop_run(run_id)\n\n    def withdraw",
        ),
        ("a withdrawn run stays", "        del self._runs[run_id]\n        return True", "        return True"),
        ("a forgotten run stays", "if self._runs.pop(run_id, None) is not None:", "if run_id in self._runs:"),
        ("a sent run counts as unsent", "            run.on_sent(message_number)\n", "            pass\n"),
    ),
    *mutants(
        "edge/reconcile",
        ("a run on its way is unknown to the Node", " and sent_in[run_id] <= messages_read", ""),
    ),
    *mutants(
        "edge/exchange",
        ("admitted again and again", "if self._first_verdict is not None or not", "if not"),
        ("a lost run goes to another provider", "elif self.is_sent or self.is_taken:", "elif self.is_taken:"),
        (
            "a broken answer is whole",
            "return item(end, 0) == RUN_OK and (head",
            "return (head",
        ),
        ("a blocked client's window is renewed", "        if reply.is_writable:\n", "        if True:\n"),
        ("no window is renewed", "            link.grant(self._run_id, owed)\n", ""),
        ("who left still waits", "if waiter is not None and not self._edge.gate.cancel(waiter):", "if False:"),
        (
            "unconfirmed is held for ever",
            'log.warning("cancel_unconfirmed", **self._names())\n        self.finish(self.outcome)',
            'log.warning("cancel_unconfirmed", **self._names())',
        ),
        (
            "a slot comes back at the cancel",
            "        link.cancel(self._run_id)\n        self._drop_body()",
            "        link.cancel(self._run_id)\n        self._release()\n        self._drop_body()",
        ),
    ),
    *mutants(
        "edge/tunnel",
        (
            "a body overruns its window",
            "view(self._handed, min(PIECE_BYTES, self._credit))",
            "view(self._handed, PIECE_BYTES)",
        ),
        (
            "a body has no end",
            "link.send_body(run_id, piece, self.is_complete)",
            "link.send_body(run_id, piece, False)",
        ),
    ),
    *mutants(
        "edge/gate",
        ("no deadline", "            self._set_timer(deadline_ns)\n", "            pass\n"),
    ),
    *mutants(
        "wire/outbox",
        ("dropped runs are sent", "        run.is_dropped = True\n", ""),
        (
            "frames overtake",
            "            run.last.next = entry\n        run.last = entry\n",
            "            entry.next, run.first = run.first, entry\n        run.last = run.last or entry\n",
        ),
    ),
    *mutants(
        "wire/liveness",
        ("one beat", "        self._timer = self._loop.call_later(self._interval_ns / NS_PER_S, self.start)\n", ""),
    ),
    *mutants(
        "node/session",
        ("ready before old runs have ended", "        await self._until_idle(self._earlier)\n", ""),
        (
            "runs outlive the Node's session",
            '        self.relay.stop_all("the session has ended")\n',
            "",
        ),
        ("ready and not accepting", "        self.relay.accept()\n", ""),
        (
            "a refresh is answered and not applied",
            '        error = ""\n        try:\n            await self._router.apply(payload)',
            '        error = ""\n        try:\n            pass',
        ),
    ),
    *mutants(
        "node/dial",
        ("runs of earlier sessions are forgotten", "tuple(relay for relay in self.relays if relay.runs)", "()"),
        (
            "one failure is the end",
            "            if not self._is_stopping:\n                await self._pause",
            "            if True:\n                return\n                await self._pause",
        ),
    ),
    *mutants(
        "node/tunnel",
        ("no credit is used up", "        self._credit_bytes -= size\n", ""),
    ),
    *mutants(
        "node/normalized",
        ("an event uses no credit up", "        self._credit_bytes -= len(entry) + EVENT_BYTES\n", ""),
        (
            "a choice ends before its last words",
            "            self.flush()\n            self._say(encode_finish(",
            "            self._say(encode_finish(",
        ),
        ("no window is granted for an input", "            self.on_consumed(len(piece))\n", "            pass\n"),
        (
            "a long text is cut off",
            "            for piece in pieces_of(text):\n                self._say(encode(",
            "            for piece in [text[:9_000]]:\n                self._say(encode(",
        ),
    ),
    *mutants(
        "node/runs",
        ("paused for ever", "                self._handle.resume()\n", "                pass\n"),
        (
            "what is held is lost at the end",
            "            if self._send_held():\n                self._finish(ENDS)",
            "            if True:\n                self._finish(ENDS)",
        ),
        (
            "no end is said",
            "        self._table.outbox.send_run(self.run_id, encode_end(self.run_id, self._end), bulk=False)\n",
            "",
        ),
        (
            "a cancel is confirmed before it is done",
            "                self._handle.cancel()\n",
            "                self._handle.cancel()\n                if self._state is STOPPING:\n                    self._finish(ENDS)\n",
        ),
        (
            "no body window is granted",
            "self._table.outbox.send_control(encode_window(self.run_id, self._consumed_bytes))",
            "pass",
        ),
    ),
    *mutants(
        "node/relay",
        ("a cancel is not heard", "            self.stop(run, CANCELLED)\n", ""),
    ),
]


def source_of(mutant: Mutant) -> Path:
    """The file that its piece stands in."""
    return ROOT / "iop_fast" / f"{mutant.module}.py"


def run_worlds(tree: Path, limit_s: float) -> tuple[bool, str]:
    """Run worlds in the tree; say whether a fault was found, and what was said of it."""
    words = ["-m", "tests.sim.run", "--seeds", str(SEEDS), "--until-broken"]
    ended = run(tree, *words, limit_s=limit_s)
    if ended is None:
        return True, f"no end within {limit_s:.0f} s"
    said = re.search(r"^(?:seed \d+|never met): .*", ended.stderr, re.MULTILINE)
    return ended.returncode != 0, said[0] if said else (ended.stderr.strip().splitlines() or [""])[-1]


def main(names: list[str]) -> int:
    table = chosen(MUTANTS, names)
    texts = [mutated(mutant, source_of(mutant)) for mutant in table]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="sim-mutants-") as scratch:
        tree = Path(scratch)
        for folder in ("iop_fast", "tests"):
            shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
        for types in (tree / "iop_fast").rglob("*.pxd"):
            if types.with_suffix(".py").exists():
                for typed in types.parent.glob(f"{types.stem}.*.so"):
                    typed.unlink()  # the Python runs, where the faults are put in
        began = time.monotonic()
        is_found, said = run_worlds(tree, SOUND_S)
        if is_found:
            raise SystemExit(f"the sound code does not pass, no mutant can be judged: {said}")
        limit_s = max(TIMEOUT_S, SLOWER * (time.monotonic() - began))
        for mutant, text in zip(table, texts, strict=True):
            path = tree / "iop_fast" / f"{mutant.module}.py"
            sound = path.read_text()
            path.write_text(text)
            began = time.monotonic()
            is_found, said = run_worlds(tree, limit_s)
            path.write_text(sound)
            survivors += not is_found
            end = f"found in {time.monotonic() - began:4.1f} s: {said[:110]}" if is_found else "SURVIVED"
            print(f"{mutant.module:15} {mutant.name:42} {end}", flush=True)
    return close(len(table), survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
