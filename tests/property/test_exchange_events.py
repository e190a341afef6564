"""Random lives of an Edge's request path: whatever comes when, every request ends once and nothing is left."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from iop_fast.edge.exchange import Exchange, State
from iop_fast.seams import End, Head
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import JSON_HEAD, SSE_HEAD, Call, ExchangeWorld, FakeLink, provider_spec

SEEDS = 120
STEPS = 150
MODELS = {"a": {"p1": "a1", "p2": "a2"}, "b": {"p2": "b2", "p3": "b3"}, "c": {"p3": "c3"}}


class Life:
    """One Edge with three providers on two Nodes, and clients that come and go, all drawn from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.capacities = {"p1": 1, "p2": 2, "p3": 1}
        self.world = ExchangeWorld(self.providers(), MODELS, provider_pool={"max_queue": 4, "queue_timeout_ms": 3000})
        self.calls: list[Call] = []
        self.steps: list[Callable[[], None]] = [
            self.post,
            self.post,
            self.post,
            self.open_and_stop,
            self.leave,
            self.answer,
            self.answer,
            self.answer,
            self.answer,
            self.end,
            self.end,
            self.window,
            self.stall,
            self.lose_node,
            self.bring_node,
            self.refresh,
            self.pass_time,
        ]

    def providers(self) -> list:  # type: ignore[type-arg]
        return [
            provider_spec("n1", "p1", capacity=self.capacities["p1"]),
            provider_spec("n1", "p2", capacity=self.capacities["p2"]),
            provider_spec("n2", "p3", capacity=self.capacities["p3"]),
        ]

    # What can happen.

    def post(self) -> None:
        size = self.rng.choice([0, 0, 0, 300_000])
        self.calls.append(self.world.post({"model": self.rng.choice("abc"), "x": "y" * size}))

    def open_and_stop(self) -> None:
        call = self.world.open()
        call.receiver.on_body(self.rng.choice([b'{"model":', b"[", b'{"model":"a"}']))
        self.calls.append(call)

    def leave(self) -> None:
        waiting = [call for call in self.calls if not call.downstream.is_gone and call.downstream.is_open]
        if waiting:
            self.rng.choice(waiting).leave()

    def any_run(self) -> tuple[FakeLink, int] | None:
        runs = [(link, run_id) for link in self.world.links.values() for run_id in link.run_ids]
        return self.rng.choice(runs) if runs else None

    def answer(self) -> None:
        found = self.any_run()
        if found is not None:
            head: Head | None = self.rng.choice([SSE_HEAD, JSON_HEAD, None])
            data = [b"data: x\n\n" * self.rng.choice([1, 5000])] * self.rng.randrange(3)
            found[0].answer(found[1], head, *data, taken=self.rng.random() < 0.5)

    def end(self) -> None:
        found = self.any_run()
        if found is not None:
            status = self.rng.choice(list(RunEnd.Status.values()))
            head = JSON_HEAD if self.rng.random() < 0.3 else None
            found[0].answer(found[1], head, end=End(status, "", None))

    def window(self) -> None:
        found = self.any_run()
        if found is not None:
            found[0].runs[found[1]].on_window(self.rng.randrange(1, 100_000))

    def stall(self) -> None:
        if self.calls:
            call = self.rng.choice(self.calls)
            call.downstream.is_writable = not call.downstream.is_writable
            if call.downstream.is_writable and call.downstream.is_open:
                call.receiver.on_writable()

    def lose_node(self) -> None:
        if self.world.links and self.rng.random() < 0.4:
            self.rng.choice(list(self.world.links.values())).lose()

    def bring_node(self) -> None:
        for node_id in ("n1", "n2"):
            if node_id not in self.world.links:
                self.world.connect(node_id).sends_at_once = self.rng.random() < 0.8

    def refresh(self) -> None:
        self.capacities[self.rng.choice(["p1", "p2", "p3"])] = self.rng.randrange(4)
        self.world.refresh(self.providers(), MODELS)

    def pass_time(self) -> None:
        self.world.loop.run_for(self.rng.choice([0.01, 0.5, 2.0]))
        self.world.edge.cancelling.sweep(self.world.loop.clock.now_ns())

    # What always holds.

    def check(self) -> None:
        world = self.world
        leases = sum(
            call.receiver.state in (State.DISPATCHED, State.STREAMING, State.CANCELLING)
            for call in self.calls
            if isinstance(call.receiver, Exchange)
        )
        assert world.in_flight == leases
        waiting = sum(call.receiver.state is State.QUEUED for call in self.calls if isinstance(call.receiver, Exchange))
        assert world.gate.waiting == waiting
        assert "broken" not in world.edge.counters

    def live(self) -> None:
        with self.world as world:
            for _ in range(STEPS):
                self.rng.choice(self.steps)()
                world.loop.settle()
                self.check()
            for call in self.calls:
                if call.downstream.is_open:
                    call.leave()
            self.bring_node()
            while (found := self.any_run()) is not None:
                found[0].answer(found[1], status=RunEnd.CANCELLED)
            self.check()
            world.assert_idle()
            for call in self.calls:
                assert call.exchange.is_done
                assert call.exchange.outcome
                ends = (call.downstream.is_ended, call.downstream.is_aborted, call.downstream.is_gone)
                assert any(ends), call.exchange
            counted = sum(
                count
                for name, count in world.edge.counters.items()
                if name not in ("released_unconfirmed", "readmitted")
            )
            assert counted == len(self.calls)


@pytest.mark.parametrize("first", range(0, SEEDS, 20))
def test_whatever_comes_when_every_request_ends_once(first: int) -> None:
    for seed in range(first, first + 20):
        try:
            Life(seed).live()
        except BaseException:
            print(f"seed {seed}")
            raise
