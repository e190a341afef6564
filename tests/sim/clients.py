"""The clients' side: requests by script, and what each one saw.

A client stands where the HTTP front would: it opens a request with the service, feeds its body, is the Downstream of
its answer and says when it has left. Everything it calls runs in the Edge's process, as a transport's callbacks do, so
a frozen Edge hears of it late. It holds both contracts: after the answer's end, or after it has left, it calls nothing,
and whatever the Edge sends then is a fault.

How a request ends is its `outcome`, exactly one: "whole", "cut" or "left". What was answered is judged at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from iop_fast.edge.exchange import Exchange
from iop_fast.errors import Failure
from iop_fast.seams import Head, Receiver, RequestHead
from tests.sim.script import LONG_THRESHOLD_TOKENS, Behaviour, ClientScript

if TYPE_CHECKING:
    from tests.sim.servers import SimRun
    from tests.sim.world import World

HIGH_WATER, LOW_WATER = 64 * 1024, 16 * 1024
DRAIN_TICK_S = 0.05

CLIENT_FIELD = b"x-client"
# The largest event of a normalized run, as its client gets it.
EVENT_BYTES = 66_000
PATH = b"/v1/chat/completions"

REASONS = {failure.reason.encode(): failure for failure in Failure}
# Reasons that a request of a script can end by; another one is a fault.
EXPECTED = {
    b"queue_full",
    b"queue_timeout",
    b"unavailable",
    b"draining",
    b"overloaded",
    b"model_not_found",
    b"upstream_error",
    b"upstream_timeout",
}


class Client:
    """One request of the script, a Downstream for its answer."""

    def __init__(self, world: World, script: ClientScript) -> None:
        self.script = script
        self.number = script.number
        self.outcome = ""
        self.reason = b""  # of an answer by the Edge itself
        self.head: Head | None = None
        self.body = bytearray()
        self.seen: list[SimRun] = []  # runs whose provider took the request
        self.runs = 0
        self._world = world
        self._process = world.edge.process
        self._receiver: Receiver | None = None
        self._content = self._make_content()
        self._sent_pieces = 0
        self._sends = 0
        self._unread = 0
        self._is_blocked = False

    def __repr__(self) -> str:
        return f"<Client {self.number} {self.outcome or self.state}>"

    @property
    def exchange(self) -> Exchange | None:
        """The Edge's side of the request; None when its head was enough for an answer."""
        return self._receiver if isinstance(self._receiver, Exchange) else None

    @property
    def state(self) -> str:
        """Where its request stands, in the Edge's words."""
        if isinstance(self._receiver, Exchange):
            return self._receiver.state.name.lower()
        return "unopened" if self._receiver is None else "answered"

    @property
    def is_over(self) -> bool:
        """True once the Edge has nothing more to do with it."""
        return bool(self.outcome) and (not isinstance(self._receiver, Exchange) or self._receiver.is_done)

    @property
    def label(self) -> str:
        """The outcome, with the Edge's reason."""
        return f"{self.outcome} {self.reason.decode()}".strip()

    # The request.

    @property
    def text(self) -> str:
        """What the request's one message says."""
        script = self.script
        return f"{script.number}: " + "wort für wort " * (LONG_THRESHOLD_TOKENS // 3 if script.is_long else 2)

    def _make_content(self) -> bytes:
        script = self.script
        content = {
            "messages": [{"role": "user", "content": self.text}],
            "stream": script.is_stream,
            "user": "x" * script.padding,
        }
        first = json.dumps(content, ensure_ascii=script.number % 2 == 0).encode()
        return b'{ "model" : "%b",  %b' % (script.model.encode(), first[1:])

    def begin(self) -> None:
        """Send the request's head, at its time."""
        self._process.call_soon(self._open)
        kind, after = self.script.leaves
        if kind == "after_s":
            self._world.loop.call_later(after, self._process.call_soon, self.leave)

    def _open(self) -> None:
        if self.outcome:
            return
        fields = [(b"content-type", b"application/json"), (CLIENT_FIELD, b"%d" % self.number)]
        length = len(self._content) if self.script.declares_length else None
        self._receiver = self._world.service.open(RequestHead(b"POST", PATH, b"", fields, length), self)
        self._send_piece()

    def _send_piece(self) -> None:
        """Send the next piece of the body; all of them in one turn when there is no gap between them."""
        while not self.outcome:
            assert self._receiver is not None
            if self.script.leaves == ("after_pieces", self._sent_pieces):
                self.leave()
                return
            size = -(-len(self._content) // self.script.pieces)
            start = size * self._sent_pieces
            self._sent_pieces += 1
            self._receiver.on_body(self._content[start : start + size])
            if self.outcome:
                return
            if start + size >= len(self._content):
                self._receiver.on_body_complete()
                return
            if self.script.piece_gap_s:
                self._world.loop.call_later(self.script.piece_gap_s, self._process.call_soon, self._send_piece)
                return

    def leave(self) -> None:
        """Go away."""
        if self.outcome:
            return
        self._world.count(f"client_leaves_{self.state}")
        self._finish("left")
        if self._receiver is not None:
            self._receiver.on_client_gone()

    # Downstream.

    @property
    def is_open(self) -> bool:
        return not self.outcome

    @property
    def is_writable(self) -> bool:
        return not self.outcome and not self._is_blocked

    def send(self, head: Head | None, pieces: Sequence[bytes], end: bool) -> None:
        if self.outcome == "left":
            return  # a closed connection swallows everything
        if self.outcome:
            self.fail(f"sent after the answer was {self.outcome}")
            return
        if (head is None) == (self.head is None):
            self.fail("the head comes once and first")
        if head is not None:
            if any(b"\r" in value or b"\n" in value for _, value in head.headers):
                raise ValueError("a field that cannot be written")
            self._take_head(head)
        for piece in pieces:
            self.body += piece
            self._unread += len(piece)
        self._sends += 1
        self._check_unread()
        if end:
            self._finish("whole")
            self._judge_whole()
        else:
            self._read()
            kind, after = self.script.leaves
            if kind == "after_sends" and self._sends == after:
                self._process.call_soon(self.leave)

    def abort(self) -> None:
        if self.outcome == "left":
            return
        if self.outcome:
            self.fail(f"cut after the answer was {self.outcome}")
            return
        self._finish("cut")
        self._judge_bytes()

    def _take_head(self, head: Head) -> None:
        self.head = head
        self.reason = self._field(b"x-iop-reason")
        if not self._field(b"x-request-id"):
            self.fail("an answer without x-request-id")

    def _field(self, name: bytes) -> bytes:
        assert self.head is not None
        return next((value for key, value in self.head.headers if key.lower() == name), b"")

    # A client that reads slowly.

    def _read(self) -> None:
        if not self.script.reads_bytes_per_s:
            self._unread = 0
        elif self._unread > HIGH_WATER and not self._is_blocked:
            self._is_blocked = True
            self._world.count("slow_client")
            self._world.loop.call_later(DRAIN_TICK_S, self._drain)

    def _check_unread(self) -> None:
        """However slowly it reads, no more waits than its window and what was below the mark when that was granted."""
        limit = HIGH_WATER + self._world.script.run_window_bytes + 2_000  # and an event that says why it broke off
        if self.seen and self.seen[-1].is_normalized:
            if not self.script.is_stream:
                return  # the Edge has collected it
            limit += EVENT_BYTES  # an event that begins within the window comes whole
        if self._unread > limit:
            self.fail(f"{self._unread} bytes wait for a client that does not read, expected at most {limit}")

    def _drain(self) -> None:
        if self.outcome:
            return
        self._unread = max(0, self._unread - int(self.script.reads_bytes_per_s * DRAIN_TICK_S))
        if self._unread > LOW_WATER:
            self._world.loop.call_later(DRAIN_TICK_S, self._drain)
        else:
            self._process.call_soon(self._on_drained)

    def _on_drained(self) -> None:
        self._is_blocked = False
        if not self.outcome:
            assert self._receiver is not None
            self._receiver.on_writable()

    # The provider's side of it.

    def next_behaviour(self) -> Behaviour:
        """What the next run of this request meets."""
        self.runs += 1
        if self.runs > len(self.script.behaviours):
            self.fail(f"run number {self.runs} of one request")
        return self.script.behaviours[min(self.runs, len(self.script.behaviours)) - 1]

    def on_seen(self, run: SimRun) -> None:
        """A provider has taken the request."""
        self.seen.append(run)
        if len(self.seen) > 1:
            self.fail(f"seen by {len(self.seen)} providers: {[other.run_id for other in self.seen]}")

    def check_body(self, run: SimRun, body: bytes) -> None:
        """A provider has the whole body: every byte as sent, but for the model's name."""
        served = f"{self.script.model}@{run.request.provider_id}"
        expected = self._content.replace(b'"%b"' % self.script.model.encode(), b'"%b"' % served.encode(), 1)
        if run.request.model != served or run.request.body_length != len(expected) or body != expected:
            self.fail(f"the provider got {len(body)} bytes for {run.request.model}, not the {len(expected)} sent")

    # Judging.

    def _finish(self, outcome: str) -> None:
        self.outcome = outcome
        status = self.head.status if self.head is not None else 0
        self._world.note(f"client {self.number} {self.label} status={status} bytes={len(self.body)}")
        self._world.count(f"outcome_{outcome}{'_' if self.reason else ''}{self.reason.decode()}")

    def _judge_whole(self) -> None:
        """An answer that looks whole is the Edge's own error or everything that a provider sent."""
        assert self.head is not None
        if self.reason:
            failure = REASONS.get(self.reason)
            if self.reason not in EXPECTED or failure is None or failure.value.status != self.head.status:
                self.fail(f"unexpected error {self.head.status} {self.reason.decode()} {bytes(self.body)!r}")
            return
        if not self.seen:
            self.fail("a whole answer that no provider gave")
            return
        run = self.seen[-1]
        if not run.is_completed:
            self.fail(f"the answer looks whole, run {run.run_id} did not complete")
        self._judge(run.judge_whole(self.head, bytes(self.body)))

    def _judge_bytes(self) -> None:
        """A cut answer holds what its provider said, up to a point."""
        if self.head is None:
            return
        if not self.seen:
            self.fail("a cut answer that no provider gave")
            return
        self._judge(self.seen[-1].judge_cut(self.head, bytes(self.body)))

    def _judge(self, fault: str) -> None:
        if fault:
            self.fail(fault)

    def fail(self, what: str) -> None:
        self._world.fail(f"client {self.number}: {what}")
