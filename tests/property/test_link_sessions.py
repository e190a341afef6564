"""Sessions that come, cross, die and speak out of turn, in any order: no lease is lost or given twice.

Hypothesis drives the Edge's link side (real core with all invariants checked after each step, real registration,
virtual time) through streams of two Nodes that register, ack rightly or wrongly, answer, drain, fall silent and close,
the superseded ones too. What must hold is looked at after every step.
"""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from iop_fast.edge.link import LinkState
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.link_world import LinkWorld, Peer, Request, provider
from tests.unit.edge.worlds import VirtualLoop

NODES = {"n1": "p1", "n2": "p2"}
picks = st.integers(min_value=0, max_value=10_000)


class Sessions(RuleBasedStateMachine):
    """Two Nodes with a provider of capacity 2 each behind one model."""

    @initialize()
    def open_world(self) -> None:
        self.loop = VirtualLoop()
        self.loop.__enter__()
        self.world = LinkWorld(self.loop, [provider(name, node, capacity=2) for node, name in NODES.items()])
        self.peers: list[Peer] = [self.world.ready(node) for node in NODES]
        self.requests: list[Request] = []
        self.given_up: list[Request] = []

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        self.world.close()
        for request in self.requests:
            assert request.waiter is None or request.outcome is None
            self.check_once(request)
        self.loop.__exit__(None, None, None)

    # What may happen.

    @rule(
        node_id=st.sampled_from(sorted(NODES)),
        instance=st.sampled_from(["i1", "i1", "i2"]),
        acks=st.sampled_from(["at once", "at once", "later"]),
    )
    def register(self, node_id: str, instance: str, acks: str) -> None:
        peer = self.world.peer(node_id, instance)
        if peer.register().refusal == 0:
            self.peers.append(peer)
            if acks == "at once":
                peer.ack()

    @rule(pick=picks, says=st.sampled_from(["up", "down", "nothing", "generation", "revision"]))
    def ack(self, pick: int, says: str) -> None:
        peer = self.peers[pick % len(self.peers)]
        state = pb.ProviderState.UNREACHABLE if says == "down" else pb.ProviderState.UP
        states = {} if says == "nothing" else {NODES[peer.node_id]: state}
        peer.ack(states, **{says: 999} if says in ("generation", "revision") else {})

    @rule(pick=picks, how=st.sampled_from(["end", "end", "garbage"]))
    def end_stream(self, pick: int, how: str) -> None:
        stream = self.peers[pick % len(self.peers)].stream
        if how == "end":
            stream.end()
        else:
            stream.feed(b"\xff\xff")
        self.loop.settle()

    @rule(pick=picks, up=st.booleans())
    def report(self, pick: int, up: bool) -> None:
        peer = self.peers[pick % len(self.peers)]
        state = pb.ProviderState.UP if up else pb.ProviderState.BROKEN
        peer.report(**{NODES[peer.node_id]: state})

    @rule(pick=picks)
    def drain(self, pick: int) -> None:
        self.peers[pick % len(self.peers)].send(pb.Frame(draining=pb.Draining()))

    @rule(pick=picks, knows=st.booleans(), times=st.integers(min_value=1, max_value=2))
    def beat(self, pick: int, knows: bool, times: int) -> None:
        peer = self.peers[pick % len(self.peers)]
        for _ in range(times):
            peer.beat(*(request.run_id for request in self.requests if knows and request.lease is not None))

    @rule(count=st.integers(min_value=1, max_value=4), opens=st.sampled_from([True, True, False]))
    def submit(self, count: int, opens: bool) -> None:
        self.requests += [self.world.submit(opens=opens) for _ in range(count)]

    @precondition(lambda self: self.requests)
    @rule(pick=picks, other=picks, ends=st.booleans())
    def answer(self, pick: int, other: int, ends: bool) -> None:
        """Any stream may speak for any run, its own or not."""
        request = self.requests[other % len(self.requests)]
        if request.lease is None:
            return
        frames = [pb.Frame(run_id=request.run_id, data=b"x")]
        if "answer" not in request.kinds:
            frames.insert(0, pb.Frame(run_id=request.run_id, head=pb.ResponseHead(status=200)))
        if ends:
            frames.append(pb.Frame(run_id=request.run_id, end=pb.RunEnd()))
        self.peers[pick % len(self.peers)].send(*frames)

    @precondition(lambda self: self.requests)
    @rule(pick=picks, how=st.sampled_from(["cancel", "withdraw", "forget"]))
    def give_up(self, pick: int, how: str) -> None:
        request = self.requests[pick % len(self.requests)]
        if request.link is None or request.end is not None:
            return
        if how == "cancel":
            request.link.cancel(request.run_id)
        elif how == "forget" or request.link.withdraw(request.run_id):
            request.link.forget(request.run_id)
            request.release()
            self.given_up.append(request)
        self.loop.settle()

    @rule(seconds=st.sampled_from([0.5, 2.5, 6.0, 16.0]))
    def wait(self, seconds: float) -> None:
        self.loop.run_for(seconds)

    @rule(capacity=st.integers(min_value=0, max_value=3))
    def refresh(self, capacity: int) -> None:
        self.world.refresh([provider(name, node, capacity=capacity) for node, name in NODES.items()])
        self.world.links.push_changed()
        self.loop.settle()

    # What must hold.

    @invariant()
    def leases_are_those_of_current_sessions(self) -> None:
        if not hasattr(self, "world"):
            return
        held = [request for request in self.requests if request.lease is not None and request.lease.is_held]
        assert sum(row.in_flight for row in self.world.gate.snapshot()) == len(held)
        for request in held:
            node_id, _ = self.world.gate.provider_key(request.lease)
            link = self.world.links.for_lease(node_id, request.lease.generation)
            assert link is not None, f"a lease of a session that is gone: {request.log}"

    @invariant()
    def snapshot_and_sessions_agree(self) -> None:
        if not hasattr(self, "world"):
            return
        expected = {LinkState.READY: "ready", LinkState.DRAINING: "draining"}
        for node_id, name in NODES.items():
            link = self.world.links.current(node_id)
            shown = self.world.row(name).link
            assert link is None or not link.is_closed
            if link is None or not link.ready_at_ns:
                assert shown == "offline"
            else:
                assert shown == expected[link.state]

    @invariant()
    def nothing_failed(self) -> None:
        if not hasattr(self, "world"):
            return
        assert self.world.links.counters.runs_failed == 0
        assert self.world.gate.counters()["double_release"] == 0
        for request in self.requests:
            self.check_once(request)

    def check_once(self, request: Request) -> None:
        """A run hears of its sending first and of its end once, when its lease ends, and of nothing after that."""
        kinds = request.kinds
        assert kinds.count("sent") <= 1
        assert "sent" not in kinds[1:]
        ends = [number for number, (kind, value) in enumerate(request.log) if kind == "lost" or is_end(kind, value)]
        assert len(ends) <= 1, request.log
        assert not ends or ends[0] == len(request.log) - 1, request.log
        if request.link is not None and request not in self.given_up:
            assert request.lease is not None
            assert bool(ends) is not request.lease.is_held, request.log


def is_end(kind: str, value: object) -> bool:
    return kind == "answer" and isinstance(value, tuple) and value[3] is not None


Sessions.TestCase.settings = settings(max_examples=60, stateful_step_count=50, deadline=None)
TestSessions = Sessions.TestCase
