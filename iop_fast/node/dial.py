"""Keeps this Node registered: dials the Edge, runs a session, and dials again.

Every attempt has a stream of its own. The pauses between attempts are ours alone: after a failure `min_ms` x 2 doubling
to `max_ms`, each drawn from the upper half, so that a fleet does not dial in step; after a clean end (the Edge drained,
or ended the stream properly) one to five times `min_ms`, and what the Edge asked for besides. A session that became
ready starts the doubling anew.

Why an attempt failed is said once, and again when the reason changes: an Edge that is away for a night is one line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random

from iop_fast import logs
from iop_fast.node.relay import Relay
from iop_fast.node.session import Session, SessionEnd, SessionState
from iop_fast.seams import MessageStream

log = logs.get(__name__)

OpenStream = Callable[[], Awaitable[MessageStream]]
MakeSession = Callable[[MessageStream, Sequence[Relay]], Session]


class Backoff:
    """Pauses between attempts, in milliseconds."""

    __slots__ = ("_max_ms", "_min_ms", "_next_ms", "_random")

    def __init__(self, random: Random, min_ms: int, max_ms: int) -> None:
        self._random = random
        self._min_ms = min_ms
        self._max_ms = max_ms
        self._next_ms = min_ms * 2

    def reset(self) -> None:
        """Start anew: the last attempt came through."""
        self._next_ms = self._min_ms * 2

    def after_clean_end(self) -> float:
        """Return the pause after an Edge that ended a session in order."""
        return self._random.uniform(self._min_ms, self._min_ms * 5)

    def after_failure(self) -> float:
        """Return the pause after a failure; the next is twice as long."""
        top = min(self._next_ms, self._max_ms)
        self._next_ms = min(self._next_ms * 2, self._max_ms)
        return self._random.uniform(top / 2, top)


class Dialer:
    """Runs sessions one after the other until told to stop."""

    def __init__(
        self,
        open_stream: OpenStream,
        make_session: MakeSession,
        backoff: Backoff,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._open_stream = open_stream
        self._make_session = make_session
        self._backoff = backoff
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._said = ""
        self.sessions_begun = 0
        self.session: Session | None = None
        """The session of now, None between sessions."""
        self.relays: Sequence[Relay] = ()
        """The runs of the last session that there was and, of those before it, runs that are still ending: a session
        may be over before it has waited for them."""

    @property
    def is_ready(self) -> bool:
        """True while a session takes runs."""
        return self.session is not None and self.session.state is SessionState.READY

    def start(self) -> None:
        """Begin to dial."""
        self._task = self._loop.create_task(self._dial_until_stopped())

    async def drain(self, limit_ms: int) -> None:
        """Let the session end in order, within the limit, and dial no more."""
        self._stop(lambda session: session.drain(limit_ms))
        await self.wait()

    async def stop(self) -> None:
        """End everything at once and dial no more."""
        self._stop(lambda session: session.close("the Node stops"))
        await self.wait()

    async def wait(self) -> None:
        """Wait until there is neither a session nor an attempt."""
        assert self._task is not None, "the dialer was not started"
        await asyncio.wait((self._task,))

    def _stop(self, end: Callable[[Session], None]) -> None:
        self._is_stopping = True
        if self.session is not None:
            end(self.session)
        elif self._task is not None:
            self._task.cancel()

    async def _dial_until_stopped(self) -> None:
        while not self._is_stopping:
            try:
                pause_ms = await self._attempt()
            except Exception as error:  # noqa: BLE001 - a bug in one attempt must not leave the Node away for ever
                log.failure("attempt_failed", error)
                pause_ms = self._backoff.after_failure()
            if not self._is_stopping:
                await self._pause(pause_ms)

    async def _attempt(self) -> float:
        """Dial and run one session; return the pause before the next, in milliseconds."""
        try:
            stream = await self._open_stream()
        except ConnectionError as error:
            self._say("edge_unreachable", str(error))
            return self._backoff.after_failure()
        end = await self._serve(stream)
        return 0.0 if self._is_stopping else self._pause_after(stream, end)

    async def _serve(self, stream: MessageStream) -> SessionEnd:
        """Run one session on a stream."""
        ending = tuple(relay for relay in self.relays if relay.runs)
        self.sessions_begun += 1
        self.session = self._make_session(stream, ending)
        self.relays = (*ending, self.session.relay)
        try:
            return await self.session.run()
        finally:
            self.session = None

    def _pause_after(self, stream: MessageStream, end: SessionEnd) -> float:
        """Say how a session ended and return the pause in milliseconds."""
        # Why gRPC ended a stream; a stream that knows no reason ended properly.
        cause = str(getattr(stream, "end_reason", ""))
        if end.refusal:
            self._say("registration_refused", end.refusal, end.reason)
            return self._backoff.after_failure()
        if end.was_ready:
            self._said = ""
            self._backoff.reset()
            log.info("session_ended", reason=end.reason, cause=cause)
        else:
            self._say("session_failed", cause or end.reason)
        if end.edge_drained:
            return end.reconnect_after_ms + self._backoff.after_clean_end()
        is_clean = end.was_ready and end.has_stream_ended and not cause
        return self._backoff.after_clean_end() if is_clean else self._backoff.after_failure()

    def _say(self, event: str, reason: str, detail: str = "") -> None:
        """Warn of a reason once."""
        text = f"{event} {reason}"
        write = log.debug if text == self._said else log.warning
        write(event, reason=reason, detail=detail)
        self._said = text

    async def _pause(self, milliseconds: float) -> None:
        passed: asyncio.Future[None] = self._loop.create_future()
        timer = self._loop.call_later(milliseconds / 1000, passed.set_result, None)
        try:
            await passed
        finally:
            timer.cancel()
