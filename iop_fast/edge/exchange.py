"""One request, from its parsed head to the last byte of its answer: a state machine whose moves are callbacks.

States. `MOVES` (exchange_states.py) is the whole table and `_move` the one function that changes the state.

    RECEIVING   the body is arriving; the request holds memory and nothing else: no place, no slot
    QUEUED      admission has the request: a waiter of ours is in it, or its decision is on the way
    DISPATCHED  it holds a lease and is a run of a Node's session; the client has seen nothing
    STREAMING   the head of the answer was sent to the client
    CANCELLING  nobody waits for the answer any more; the lease is held until the Node says that the run is over
    DONE        for ever; every later event finds this state and does nothing

Who calls. The HTTP connection (`Receiver`), admission (`Owner`) and the Node's session (`EdgeRun`), all on the event
loop's thread. Events that come late or twice are normal (a grant crosses a client's leaving, a frame crosses a cancel)
and change nothing. An exception in here is a bug of ours: it ends this request with `internal` and no other one.

What is owned, and who ends it:
- the **waiter**: admission, by `on_granted` or `on_evicted`; or we, by `gate.cancel`;
- the **lease**: we, from `on_granted` on, by `_release`. It ends before the answer's last byte is sent, so that the
  client's next request finds the slot free;
- the **run** (`_link` is set exactly while it is in the session's table): the Node by its RunEnd, or the session by
  its loss; or we, by `withdraw` before it was sent and by `forget` when nothing confirms its end in time. In the table
  it is this object itself for a tunnel, and for a normalized run one that stands between and calls this one;
- the **body**: dropped when the provider took the request and all of it was handed on, and at the latest in `finish`;
- the **client's side**: `Reply` lets go of it when the answer ends, is broken off or the client leaves.

`finish` is the one end, reached once. It drops every reference, so that a finished exchange is part of no cycle.

Re-admission: a run that the provider cannot have seen (its session went before the opening frame was sent, or the Node
says so) is admitted again, once, and keeps its place. Nothing was sent to the client by then and the body is whole.

Moments (`began_ns`, `granted_ns`, `sent_ns`, `head_ns`) are read from the injected clock, for the books; they decide
nothing.

Never done here: a timer, a byte of the body changed beyond the edits of `edits.py`.
"""

from __future__ import annotations

from collections.abc import Iterable

from iop_fast import logs
from iop_fast._core.admission import Outcome
from iop_fast._core.ledger import Lease
from iop_fast._core.multipart import FormScan
from iop_fast._core.scan import BodyScan
from iop_fast._core.wait_queue import Waiter
from iop_fast._hot.ages import AgeList
from iop_fast._hot.frames import FrameError
from iop_fast._hot.records import item
from iop_fast._hot.text import decimal
from iop_fast.edge.ages import NO_HANDLE
from iop_fast.edge.answers import own_fields, passed_on
from iop_fast.edge.auth import Field
from iop_fast.edge.body import Body
from iop_fast.edge.exchange_states import NEXT, Event, State
from iop_fast.edge.gate import NS_PER_MS
from iop_fast.edge.normalized.opening import prepare_run
from iop_fast.edge.normalized.run import OVERDRAFT_BYTES, NormalizedRun
from iop_fast.edge.outcomes import (
    CLIENT_GONE,
    INTERNAL_ERROR,
    INVALID_ANSWER,
    LINK_FULL,
    NODE_LOST,
    REFUSALS,
    SUCCESS,
    UNSEEN_ENDS,
    Verdict,
    verdict_on_end,
)
from iop_fast.edge.record import Record
from iop_fast.edge.refusals import REFUSED_FOR, SHOWN_CHARACTERS, find_model, needs_of, refusal_of
from iop_fast.edge.reply import Reply
from iop_fast.edge.state import EdgeState, RunLink
from iop_fast.edge.tunnel import Request, Upload
from iop_fast.edge.usage import believable
from iop_fast.errors import Failure
from iop_fast.seams import Downstream, End, Head, RunSaid
from iop_fast.wire.runtime_pb2 import RunEnd

RECEIVING, QUEUED, DISPATCHED, STREAMING, CANCELLING, DONE = State
SUBMITTED, GRANTED, READMITTED, ANSWERED, ABANDONED, FINISHED = Event
RUN_OK = RunEnd.OK

log = logs.get(__name__)


class Exchange(Record):
    """One request and its answer."""

    __slots__ = (
        "_age",
        "_ages",
        "_body",
        "_edge",
        "_first_verdict",
        "_lease",
        "_link",
        "_needs",
        "_overdraft",
        "_run_id",
        "_runtime",
        "_scan",
        "_settings",
        "_state",
        "_upload",
        "_waiter",
    )

    def __init__(self, edge: EdgeState, request: Request, downstream: Downstream) -> None:
        self._edge = edge
        self._begin_record(request, Reply(downstream, request.cors), self._edge.clock.now_ns())
        self._state = RECEIVING
        self._body: Body | None = None
        self._scan: BodyScan | FormScan | None = None
        self._needs = 0
        self._waiter: Waiter | None = None
        self._lease: Lease | None = None
        self._runtime = self._edge.runtime  # pinned by the grant; the one of the arrival before that
        self._first_verdict: Verdict | None = None  # why the request was admitted again
        self._settings = self._edge.runtime.settings  # of _runtime
        self._link: RunLink | None = None
        self._run_id = 0
        self._overdraft = 0  # what the run may send beyond its window
        self._upload: Upload | None = None
        self._ages: AgeList[Exchange] | None = None  # the one list that this is in, by the handle `_age`
        self._age = NO_HANDLE

    def __repr__(self) -> str:
        return f"<Exchange {self.request.id.decode()} {self._state.name} {self.model or '-'}>"

    @property
    def state(self) -> State:
        """Where the request stands."""
        return self._state

    @property
    def is_done(self) -> bool:
        """True once everything is over and given back."""
        return self._state is DONE

    def _move(self, event: Event) -> None:
        """Change the state as the table says; a move that it does not have is a bug of ours."""
        at: int = self._state
        state = NEXT[at][event]
        if state is None:
            raise RuntimeError(f"{self!r}: no move on {Event(event).name}")
        self._state = state

    # -----------------------------------------------------------------------------------------------------------------
    # Receiver: the client's side

    def begin(self) -> None:
        """Open the body. Called once, before any other event; the request may be over when this returns."""
        try:
            self._body = Body(self._edge.budget, self._settings.body_bytes_max, item(self.request.head, 4))
            self._scan = self.request.new_scan()
        except REFUSED_FOR as error:
            self._fail(*refusal_of(error, self._settings.body_bytes_max))

    def on_body(self, piece: bytes) -> None:
        """Take the next bytes of the body."""
        if self._state is not RECEIVING:
            return
        assert self._body is not None
        assert self._scan is not None
        try:
            self._body.append(piece)
            self._scan.feed(piece)
        except REFUSED_FOR as error:
            self._fail(*refusal_of(error, self._settings.body_bytes_max))
        except Exception as error:  # noqa: BLE001 - a bug of ours ends this request, and is logged there
            self._break("body", error)

    def on_body_complete(self) -> None:
        """The body is whole: ask for admission."""
        if self._state is not RECEIVING:
            return
        try:
            self._admit()
        except REFUSED_FOR as error:
            self._fail(*refusal_of(error, self._settings.body_bytes_max))
        except Exception as error:  # noqa: BLE001 - as in on_body
            self._break("body complete", error)

    def on_refused(self, failure: Failure, message: str) -> None:
        """The rest of the body broke the protocol or a limit."""
        if self._state is RECEIVING:
            self._fail(Verdict(failure, message))

    def on_client_gone(self) -> None:
        """The client left: nothing sent matters any more."""
        if not self.reply.give_up():
            return
        try:
            self._leave(CLIENT_GONE)
        except Exception as error:  # noqa: BLE001 - as in on_body
            self._break("client gone", error)

    def on_writable(self) -> None:
        """The client reads again."""
        try:
            self._renew_window()
        except Exception as error:  # noqa: BLE001 - as in on_body
            self._break("writable", error)

    # -----------------------------------------------------------------------------------------------------------------
    # Owner: admission

    def on_granted(self, lease: Lease) -> None:
        """A slot is ours from here on."""
        if self._state is not QUEUED:
            self._edge.gate.release(lease)
            return
        self._waiter = None
        self._lease = lease
        try:
            if self.reply.is_wanted:
                self._dispatch(lease)
            else:
                self.finish(self.outcome or CLIENT_GONE)
        except REFUSED_FOR as error:
            self._fail(*refusal_of(error, self._settings.body_bytes_max))
        except Exception as error:  # noqa: BLE001 - as in on_body
            self._break("granted", error)

    def on_evicted(self, outcome: Outcome) -> None:
        """The request leaves admission without a slot."""
        if self._state is not QUEUED:
            return
        waiter, self._waiter = self._waiter, None
        try:
            self._note_wait(waiter)
            verdict = REFUSALS[outcome]
            if self._first_verdict is not None and verdict.failure is not Failure.DRAINING:
                verdict = self._first_verdict
            extra = []
            if verdict.failure is Failure.QUEUE_FULL:
                extra.append((b"retry-after", b"%d" % self._edge.gate.retry_after_s(self.model)))
            self._fail(verdict, extra=extra)
        except Exception as error:  # noqa: BLE001 - as in on_body
            self._break("evicted", error)

    def _admit(self) -> None:
        """Refuse what no provider of the catalog could serve, and submit the rest."""
        scan = self._scan
        assert scan is not None
        assert self._body is not None
        scan.finish()
        if self._edge.is_draining:
            self._fail(REFUSALS[Outcome.EVICTED_DRAINING])
            return
        runtime = self._runtime = self._edge.runtime
        self._settings = runtime.settings
        entry = find_model(runtime, scan.model)
        model = self.model = entry.id
        self._needs = needs_of(entry, self.request.surface, scan, self._body)
        self.estimated_tokens = scan.estimated_tokens
        self.is_long = self.estimated_tokens >= self._settings.long_threshold_tokens
        self._move(SUBMITTED)
        self._take_decision(self._edge.gate.submit(self, model, self.is_long, self._needs))

    def _admit_again(self, verdict: Verdict) -> None:
        """Look for another provider, once, after a run that its provider cannot have seen; else fail."""
        lease = self._lease
        assert lease is not None
        self._release()
        if self._first_verdict is not None or not self.reply.is_wanted:
            self._fail(verdict)
            return
        self._first_verdict = verdict
        self._edge.count("readmitted")
        if self._edge.books.traces is not None:
            self._edge.books.traces.readmitted(self, verdict.failure.reason, self._edge.clock.now_ns())
        self._move(READMITTED)
        self._take_decision(self._edge.gate.readmit(self, self.model, self._needs, lease))
        if self._waiter is not None and self._edge.is_draining:
            self._fail(verdict)  # nobody waits in an Edge that shuts down

    def _take_decision(self, decision: Lease | Waiter | Outcome) -> None:
        if isinstance(decision, Lease):
            self.on_granted(decision)
        elif isinstance(decision, Waiter):
            # It may have ended within the call that made it: then the owner was called, and is past waiting.
            self._waiter = decision if decision.is_waiting else None
        else:
            self.on_evicted(decision)

    def _dispatch(self, lease: Lease) -> None:
        """Open a run on the granted provider, under the configuration of this moment."""
        self._move(GRANTED)
        edge = self._edge
        key = edge.gate.provider_key(lease)
        self.node_id, self.provider_id = key
        self.granted_ns = lease.granted_at_ns
        self.queue_ns = self.granted_ns - lease.enqueued_at_ns
        link = edge.links.for_lease(self.node_id, lease.generation) if lease.is_held else None
        if link is None:
            self._admit_again(NODE_LOST)
            return
        if not link.has_room:
            self._admit_again(LINK_FULL)
            return
        assert self._body is not None
        assert self._scan is not None
        runtime = self._runtime = edge.runtime
        self._settings = runtime.settings
        self.is_sent = self.is_taken = False
        self._run_id = lease.lease_id
        opened = prepare_run(self.request, self._body, self._scan, self.model, runtime, key, edge.unix_time)
        opening = item(opened, 0)
        self._upload = item(opened, 1)
        self.clamped = item(opened, 2)
        translation = item(opened, 3)
        traces = edge.books.traces
        if traces is not None:
            opening = traces.open(self, opening, runtime)
        self._overdraft = 0 if translation is None else OVERDRAFT_BYTES
        window = self._settings.run_window_bytes
        run = self if translation is None else NormalizedRun(self, link, self._run_id, translation, window)
        link.open(self._run_id, run, opening)
        self._link = link
        if self._upload is not None:
            self._upload.go_on(link, self._run_id, 0)

    # -----------------------------------------------------------------------------------------------------------------
    # EdgeRun: the Node's session

    def on_sent(self, message_number: int) -> None:
        """The provider may see the request from here on."""
        self.is_sent = True
        self.sent_ns = self._edge.clock.now_ns()

    def on_window(self, byte_count: int) -> None:
        """The Node takes more of the body."""
        if self._link is None or self._upload is None:
            return
        try:
            self._upload.go_on(self._link, self._run_id, byte_count)
            self._drop_sent_body()
        except REFUSED_FOR as error:
            self._fail(*refusal_of(error, self._settings.body_bytes_max))
        except Exception as error:  # noqa: BLE001 - as in on_body
            self._break("window", error)

    def on_answer(self, taken: bool, head: Head | None, data: list[bytes], end: End | None) -> None:
        """Take what one message brought of the answer."""
        if self._link is None:
            return
        try:
            if taken or head is not None:
                self.is_taken = True
                self._drop_sent_body()
            if end is not None:
                self._link = None  # the run is over: the session has it no more
                self.usage = believable(item(end, 2))
                self.is_sent = item(end, 0) not in UNSEEN_ENDS
            self._take_answer(head, data, end)
        except Exception as error:  # noqa: BLE001 - as in on_body
            self._break("answer", error)

    def on_events(self, taken: bool, said: list[RunSaid], byte_count: int, end: End | None) -> None:
        """A tunnel has no events: its Node is broken."""
        raise FrameError("events of a normalized run came for a tunnel")

    def on_translated(self, head: Head | None, data: list[bytes], end: End | None, byte_count: int) -> None:
        """Take what events of a normalized run came to; they took `byte_count` bytes of the run's window."""
        if self._state is not CANCELLING:
            self.reply.owed += byte_count - sum(map(len, data))
        self.on_answer(True, head, data, end)
        self.on_writable()

    def on_link_lost(self) -> None:
        """The session is gone, and the lease with it."""
        if self._link is None:
            return
        self._link = None
        try:
            if self._state is CANCELLING:
                self.finish(self.outcome)
            elif self.is_sent or self.is_taken:
                self._fail(NODE_LOST)
            else:
                self._admit_again(NODE_LOST)
        except Exception as error:  # noqa: BLE001 - as in on_body
            self._break("link lost", error)

    def on_confirm_expired(self) -> None:
        """Nothing confirmed in time that the run is over: the slot is not held for it any longer."""
        if self._state is not CANCELLING:
            return
        self._edge.count("released_unconfirmed")
        log.warning("cancel_unconfirmed", **self._names())
        self.finish(self.outcome)

    def on_quiet(self) -> None:
        """Nothing was sent for a while: keep a stream's connection from looking dead to what lies between."""
        self._ages = None
        if self._state is STREAMING:
            self.reply.keep_alive()
            self._watch(self._edge.quiet)

    def _take_answer(self, head: Head | None, data: list[bytes], end: End | None) -> None:
        if self._state is CANCELLING:
            if end is not None:
                self.finish(self.outcome)
        elif end is not None and not self._is_whole(head, end):
            if self._state is STREAMING and data:
                self.reply.go_on(data, False)
            self._take_bad_end(end)
        elif not self._is_in_order(head, data):
            self._fail(INVALID_ANSWER)
        elif head is not None or data or end is not None:
            self._pass_on(head, data, is_whole=end is not None)

    def _pass_on(self, head: Head | None, data: list[bytes], is_whole: bool) -> None:
        """Send the client what came of a good answer."""
        if is_whole:
            self._release()
        if head is None:
            self.reply.go_on(data, is_whole)
        elif not self._begin_answer(head, data, is_whole):
            self._fail(INVALID_ANSWER)
            return
        if is_whole:
            self.finish(SUCCESS)
        else:
            self._renew_window()

    def _is_whole(self, head: Head | None, end: End) -> bool:
        return item(end, 0) == RUN_OK and (head is not None or self._state is STREAMING)

    def _is_in_order(self, head: Head | None, data: list[bytes]) -> bool:
        """An answer is one final head and then data; what a Node sends otherwise is no answer."""
        if head is not None:
            return self._state is DISPATCHED and 200 <= item(head, 0) <= 599
        return self._state is STREAMING or not data

    def _take_bad_end(self, end: End) -> None:
        """A run ended without its whole answer."""
        verdict = verdict_on_end(end.status)
        log.warning("provider_failed", **self._names(), what=verdict.message, detail=end.detail[:SHOWN_CHARACTERS])
        if end.status in UNSEEN_ENDS and not self.is_taken:
            self._admit_again(verdict)
        else:
            self._fail(verdict)

    def _begin_answer(self, head: Head, data: list[bytes], is_whole: bool) -> bool:
        """Send the head and what came with it; False, with nothing sent, for a head that cannot be written."""
        request = self.request
        own = own_fields(request.id, request.dialect, item(head, 2), self.clamped)
        own += self._route()
        passed, takes_event = passed_on(head, own)
        try:
            self.reply.begin(passed, takes_event, data, is_whole)
        except ValueError as error:
            log.warning("head_refused", request=request.id.decode(), provider=self.provider_id, error=error)
            return False
        if self._state is DISPATCHED:
            self._move(ANSWERED)
            self.head_ns = self._edge.clock.now_ns()
            if takes_event and not is_whole:
                self._watch(self._edge.quiet)
        return True

    def _route(self) -> list[Field]:
        """Return the fields that say who got the request, if somebody did, and how long that took."""
        settings = self._settings
        if not self.provider_id or not settings.exposes_route:
            return []
        queue_ms = decimal(self.queue_ns // NS_PER_MS)
        return [*settings.routes.get((self.node_id, self.provider_id), ()), (b"x-iop-queue-ms", queue_ms)]

    def _renew_window(self) -> None:
        """Grant the Node anew what was handed on, once it is half a window and while the client takes what it gets."""
        link, reply = self._link, self.reply
        window = self._settings.run_window_bytes
        if link is None or 2 * reply.owed < window or self._state is CANCELLING:
            return
        if reply.is_writable:
            owed, reply.owed = reply.owed, 0
            link.grant(self._run_id, owed)
        elif reply.owed <= window + self._overdraft:
            link.hold(self._run_id, reply.owed)
        else:
            log.warning("window_overrun", node=self.node_id, run=self._run_id, bytes=reply.owed, window=window)
            self._fail(INVALID_ANSWER)

    # -----------------------------------------------------------------------------------------------------------------
    # Ends

    def _fail(self, verdict: Verdict, param: str | None = None, *, extra: Iterable[Field] = ()) -> None:
        """Tell the client that the request failed, as well as its answer so far allows, and leave it."""
        if self._link is None:
            self._release()
        dialect = self.request.dialect
        is_told = self.reply.is_wanted
        if self._state is STREAMING:
            self.reply.break_off(verdict, dialect)
        else:
            extra = [*self._route(), *extra]
            self.reply.refuse(verdict, self.request.id, dialect, param=param, extra=extra)
        self._leave(verdict.failure.reason if is_told else self.outcome or CLIENT_GONE)

    def _leave(self, outcome: str) -> None:
        """Nobody waits for an answer any more: end what is still out on this request's behalf."""
        self.outcome = outcome
        if self.ended_in is None:
            self.ended_in = self._state
        waiter, self._waiter = self._waiter, None
        self._note_wait(waiter)
        if waiter is not None and not self._edge.gate.cancel(waiter):
            return  # admission ended it first; its call is on the way and finds that nobody waits
        link = self._link
        if link is not None and link.withdraw(self._run_id):
            self._link = link = None
        if link is None:
            self.finish(outcome)
            return
        self._move(ABANDONED)
        link.cancel(self._run_id)
        self._drop_body()
        self._watch(self._edge.cancelling)

    def _note_wait(self, waiter: Waiter | None) -> None:
        """It waited in vain; one that waited twice is told the whole time."""
        if waiter is not None:
            self.queue_ns = self._edge.clock.now_ns() - waiter.enqueued_at_ns

    def _names(self) -> dict[str, str]:
        return {"request": self.request.id.decode(), "node": self.node_id, "provider": self.provider_id}

    def _release(self) -> None:
        """End the lease, if there is one; what that frees is granted before this returns."""
        lease, self._lease = self._lease, None
        if lease is not None and lease.is_held:
            self._edge.gate.release(lease)

    def _watch(self, ages: AgeList[Exchange] | None) -> None:
        """Expire in `ages`, and in no other list."""
        if self._ages is not None:
            self._ages.remove(self._age)
        self._ages = ages
        if ages is not None:
            self._age = ages.add(self)

    def _drop_sent_body(self) -> None:
        """Free the body once the provider took the request and all of it was handed on."""
        if self.is_taken and (self._upload is None or self._upload.is_complete):
            self._drop_body()

    def _drop_body(self) -> None:
        self._upload = self._scan = None
        if self._body is not None:
            self.bytes_in = self._body.size
            self._body.drop()
            self._body = None

    def finish(self, outcome: str) -> None:
        """End the request: the only way into DONE. Gives back whatever is held and lets go of everything."""
        if self.ended_in is None:
            self.ended_in = self._state
        self._move(FINISHED)
        self.outcome = outcome
        link, self._link = self._link, None
        if link is not None:
            link.forget(self._run_id)
        self._drop_body()
        self.reply.give_up()
        self._watch(None)
        self._release()
        self._edge.books.close(self, self._edge.clock.now_ns())

    def _break(self, where: str, error: Exception) -> None:
        """End the request after a bug of ours: with an answer if that can be, and in any case for good."""
        log.failure("exchange_failed", error, request=self.request.id.decode(), where=where, state=self._state.name)
        self._edge.count("broken")
        try:
            if not self.is_done:
                self._fail(INTERNAL_ERROR)
        except Exception as second:  # noqa: BLE001 - whatever was broken first, the slot and the memory come back
            log.failure("exchange_failed_again", second, request=self.request.id.decode(), state=self._state.name)
            if not self.is_done:
                self.finish(Failure.INTERNAL.reason)
