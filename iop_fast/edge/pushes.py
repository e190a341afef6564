"""Payloads on their way to one Node: what was sent, what the Node says it runs, and why it refused.

A payload goes out twice at most per change: in the answer to a registration (applied when the ready ack says so) and
as a refresh push to a ready Node. Pushes are answered in the order in which they were sent; a newer one is sent
without waiting for the older one's answer, because the Node applies them one after the other.
"""

from __future__ import annotations

import asyncio
from enum import Enum

from iop_fast.wire import runtime_pb2 as pb


class PushStatus(Enum):
    """Where a push stands. PENDING ends in one of the others, once."""

    PENDING = "pending"
    ACKED = "acked"  # the Node runs it
    REFUSED = "refused"  # the Node kept what it had; `error` says why
    LOST = "lost"  # the session ended first; the next registration carries the payload


class Push:
    """One refresh push. `settled` is done when `status` has left PENDING; it never carries an exception."""

    __slots__ = ("error", "revision", "settled", "status")

    def __init__(self, revision: int, loop: asyncio.AbstractEventLoop) -> None:
        self.revision = revision
        self.status = PushStatus.PENDING
        self.error = ""
        self.settled: asyncio.Future[None] = loop.create_future()

    def settle(self, status: PushStatus, error: str = "") -> None:
        """End the push. Once."""
        assert self.status is PushStatus.PENDING, f"push of revision {self.revision} is {self.status.value} already"
        self.status = status
        self.error = error
        if not self.settled.done():
            self.settled.set_result(None)


class PushBook:
    """The payload bookkeeping of one session.

    `sent_revision` is what was sent last, `observed_revision` what the Node runs (0 before its ready ack), `error` why
    the Node refused the last push, "" when it did not.
    """

    __slots__ = ("_loop", "_pending", "error", "observed_revision", "sent_revision")

    def __init__(self, registered_revision: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._pending: dict[int, Push] = {}
        self.sent_revision = registered_revision
        self.observed_revision = 0
        self.error = ""

    @property
    def is_pending(self) -> bool:
        """True while a push waits for its answer."""
        return bool(self._pending)

    def on_ready(self) -> None:
        """The ready ack: the Node runs what its registration was answered with."""
        self.observed_revision = self.sent_revision

    def start(self, revision: int) -> Push:
        """Note a push that is being sent; revisions only rise."""
        assert revision > self.sent_revision, f"push of revision {revision} after {self.sent_revision}"
        self.sent_revision = revision
        push = self._pending[revision] = Push(revision, self._loop)
        return push

    def on_answer(self, answer: pb.NodeConfigRefreshResponse) -> Push | None:
        """Settle the push that a Node answers; None for an answer to nothing that is pending."""
        push = self._pending.pop(answer.payload_revision, None)
        if push is None:
            return None
        if answer.applied:
            self.observed_revision = max(self.observed_revision, push.revision)
            self.error = ""
            push.settle(PushStatus.ACKED)
        else:
            self.error = answer.error or "the Node gave no reason"
            push.settle(PushStatus.REFUSED, self.error)
        return push

    def stop(self) -> None:
        """The session ended: what is pending is lost. Idempotent."""
        pending, self._pending = self._pending, {}
        for push in pending.values():
            push.settle(PushStatus.LOST, "the session ended before the answer")
