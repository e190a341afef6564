"""Speed of the admission core as ratios taken in one run, against their targets; exits 1 when one misses.

Each figure is the lowest of many short rounds, and the rounds of all subjects of a ratio alternate, so that a noisy
machine moves both sides alike. Run from the top of the repository: python -m benchmarks.core_ratios
"""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable, Iterator
from time import perf_counter_ns
from typing import Any

from benchmarks.core_worlds import Owner, crowded, empty_pair, fleet, jammed, wide_fleet
from iop_fast._core.admission import Admission
from tests.model.admission_model import ModelAdmission

ROUNDS = 25
Round = Callable[[], float]  # one round, in ns per operation


def alternate(rounds: dict[str, Round], count: int = ROUNDS) -> dict[str, float]:
    """The lowest of `count` rounds of each, taken in turn."""
    best = dict.fromkeys(rounds, float("inf"))
    for _ in range(count):
        for name, take in rounds.items():
            best[name] = min(best[name], take())
    return best


def pair_round(admission: Any, count: int) -> Round:
    """submit and release, `count` times."""
    owner = Owner()

    def take() -> float:
        submit, release = admission.submit, admission.release
        begun = perf_counter_ns()
        for _ in range(count):
            release(1, submit(1, owner, "m", False, 1))
        return (perf_counter_ns() - begun) / count

    return take


def semaphore_round(count: int, *, is_bare: bool) -> Round:
    """The same with asyncio's semaphore: `async with`, as its documentation prefers, or acquire and release alone."""

    async def prefer() -> float:
        semaphore = asyncio.Semaphore(8)
        begun = perf_counter_ns()
        for _ in range(count):
            async with semaphore:
                pass
        return (perf_counter_ns() - begun) / count

    async def bare() -> float:
        semaphore = asyncio.Semaphore(8)
        begun = perf_counter_ns()
        for _ in range(count):
            await semaphore.acquire()
            semaphore.release()
        return (perf_counter_ns() - begun) / count

    return lambda: asyncio.run(bare() if is_bare else prefer())


def grant_round(waiters: int, count: int) -> Round:
    """A release that grants to the oldest of `waiters`; each granted request is replaced by a new one outside."""
    admission, lease, owner, queue = jammed(waiters)
    owner.got = lease
    del queue

    def take() -> float:
        spent = 0
        release, submit = admission.release, admission.submit
        for _ in range(count):
            lease = owner.got
            begun = perf_counter_ns()
            release(1, lease)
            spent += perf_counter_ns() - begun
            submit(1, owner, "m", False, 1)
        return spent / count

    return take


def crowded_round(models: int, count: int) -> Round:
    """A release that grants to the oldest of `models` waiters, each of another model; replaced as above."""
    admission, owner = crowded(models)
    state = {"next": 0}

    def take() -> float:
        spent = 0
        release, submit = admission.release, admission.submit
        for _ in range(count):
            lease = owner.got
            begun = perf_counter_ns()
            release(1, lease)
            spent += perf_counter_ns() - begun
            submit(1, owner, f"m{state['next'] % models}", False, 1)
            state["next"] += 1
        return spent / count

    return take


def cancel_round(waiters: int, count: int) -> Round:
    """A cancel in the middle of `waiters`; each is replaced by a new one outside."""
    admission, lease, owner, queue = jammed(waiters)
    middle = len(queue) // 2

    def take(lease: Any = lease) -> float:
        spent = 0
        for step in range(count):
            place = (middle + step) % len(queue)
            waiter = queue[place]
            begun = perf_counter_ns()
            admission.cancel(1, waiter)
            spent += perf_counter_ns() - begun
            queue[place] = admission.submit(1, owner, "m", False, 1)
        return spent / count

    return take


def reconfigure_rounds(count: int) -> dict[str, Round]:
    """One reconfigure that touches one, and one that touches all of `count` providers."""
    admission, plan = wide_fleet(count)
    state = {"plan": plan}

    def change(touched: int) -> float:
        providers = list(state["plan"].providers)
        for place in range(touched):
            providers[place] = providers[place]._replace(capacity=9 - providers[place].capacity)
        state["plan"] = state["plan"]._replace(providers=tuple(providers))
        begun = perf_counter_ns()
        admission.reconfigure(1, state["plan"])
        return perf_counter_ns() - begun

    return {"one": lambda: change(1), "all": lambda: change(count)}


def ratios() -> Iterator[tuple[str, float, float, bool]]:
    """Name, value, target and whether the target is an upper bound."""
    pairs = {f"core {count}": pair_round(fleet(Admission, count), 2000) for count in (1, 8, 64, 1000)}
    pairs["empty"] = pair_round(empty_pair(), 2000)
    pairs["semaphore"] = semaphore_round(2000, is_bare=False)
    pairs["bare semaphore"] = semaphore_round(2000, is_bare=True)
    pairs["model"] = pair_round(fleet(ModelAdmission, 8), 20)
    best = alternate(pairs)
    for name, value in best.items():
        print(f"figure {name!r} {value:.0f} ns", file=sys.stderr)
    for count, target in ((1, 2.5), (8, 2.5), (64, 6.0), (1000, 62.5)):
        yield f"pair_{count}_to_empty", best[f"core {count}"] / best["empty"], target, True
    yield "semaphore_to_pair_8", best["semaphore"] / best["core 8"], 3, False
    yield "bare_semaphore_to_pair_8", best["bare semaphore"] / best["core 8"], 3, False
    yield "model_to_pair_8", best["model"] / best["core 8"], 10, False
    yield "pair_1000_to_pair_8", best["core 1000"] / best["core 8"], 25, True
    grants = alternate({"long": grant_round(100_000, 1000), "short": grant_round(10, 1000)})
    yield "grant_100000_to_10", grants["long"] / grants["short"], 1.5, True
    crowds = alternate({"many": crowded_round(2000, 1000), "one": crowded_round(1, 1000)})
    print(f"figure grant among 2000 lines {crowds['many']:.0f} ns, in one {crowds['one']:.0f} ns", file=sys.stderr)
    yield "grant_2000_lines_to_1", crowds["many"] / crowds["one"], 4.0, True
    cancels = alternate({"long": cancel_round(100_000, 1000), "short": cancel_round(10, 1000)})
    yield "cancel_100000_to_10", cancels["long"] / cancels["short"], 2.0, True
    plans = alternate(reconfigure_rounds(10_000), 10)
    print(f"figure reconfigure one {plans['one']:.0f} ns, all {plans['all']:.0f} ns", file=sys.stderr)
    yield "reconfigure_1_to_10000", plans["one"] / plans["all"], 0.05, True


def main() -> int:
    missed = 0
    gc.collect()
    gc.freeze()
    for name, value, target, is_upper in ratios():
        missed += value > target if is_upper else value < target
        print(f"ratio {name} {value:.3f} target {'<=' if is_upper else '>='} {target}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
