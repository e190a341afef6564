"""Many lines before few providers: whoever waited longest among those that can be served is next, in any jumble."""

from __future__ import annotations

import random

import pytest

from iop_fast._core.admission import Lease, Waiter

from .dialogue import Caller, Desk, plan, provider

MODELS = [f"m{number}" for number in range(40)]


class Crowd:
    """Two full providers, models that one, the other or both of them have, and those who wait in one plain list.

    Long requests of models that `p1` has are for `p1` alone: it has a long slot.
    """

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.homes = {model: draw.choice((["p1"], ["p2"], ["p1", "p2"])) for model in MODELS}
        self.homes |= {"first": ["p1"], "second": ["p2"]}
        self.desk = Desk(plan(provider("p1", long=1), provider("p2"), models=self.homes, queue=1000))
        self.held: dict[str, Lease] = {"p1": self.desk.ask("first"), "p2": self.desk.ask("second")}
        self.waiting: list[tuple[Caller, Waiter, list[str]]] = []

    def come(self) -> None:
        model, is_long = self.draw.choice(MODELS), self.draw.random() < 0.3
        homes = self.homes[model]
        waiter = self.desk.ask(model, long=is_long)
        assert isinstance(waiter, Waiter)
        self.waiting.append((self.desk.callers[-1], waiter, ["p1"] if is_long and "p1" in homes else homes))

    def leave(self) -> None:
        caller, waiter, _homes = self.waiting.pop(self.draw.randrange(len(self.waiting)))
        assert self.desk.core.cancel(self.desk.now, waiter)
        assert caller.ended is None

    def serve(self, name: str) -> None:
        """Release a slot: the oldest that it can serve has it, and nobody else anything."""
        place = next(place for place, (_, _, homes) in enumerate(self.waiting) if name in homes)
        caller, _waiter, _homes = self.waiting.pop(place)
        assert self.desk.release(self.held[name])
        assert isinstance(caller.ended, Lease)
        assert self.desk.key(caller.ended) == name
        assert not any(other.ended for other, _, _ in self.waiting)
        self.held[name] = caller.ended


@pytest.mark.parametrize("seed", range(12))
def test_the_oldest_that_a_slot_can_serve_is_next(seed: int) -> None:
    crowd = Crowd(random.Random(seed))
    for _ in range(100):
        crowd.come()
    for _ in range(400):
        crowd.draw.choices(
            [crowd.come, crowd.leave, lambda: crowd.serve("p1"), lambda: crowd.serve("p2")], [50, 30, 15, 5]
        )[0]()
    assert crowd.desk.core.waiting == len(crowd.waiting)


@pytest.mark.parametrize("seed", range(4))
def test_a_plan_that_changes_who_can_do_what_keeps_the_order(seed: int) -> None:
    """The index is built anew: with other mappings, then without long slots, then with them again."""
    crowd = Crowd(random.Random(seed))
    desk = crowd.desk
    for _ in range(60):
        crowd.come()
    both = {model: ["p1", "p2"] for model in crowd.homes}
    desk.change(plan(provider("p1", long=1), provider("p2"), models=both, queue=1000))
    desk.change(plan(provider("p1"), provider("p2"), models=both, queue=1000))
    crowd.waiting = [(caller, waiter, ["p1", "p2"]) for caller, waiter, _homes in crowd.waiting]
    for name in ("p1", "p2", "p2", "p1", "p2"):
        crowd.serve(name)
    desk.change(plan(provider("p1", long=1), provider("p2", long=1), models=both, queue=1000))
    for name in ("p1", "p2", "p2", "p1", "p2"):
        crowd.serve(name)
