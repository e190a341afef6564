"""pytest-benchmark figures of the admission core, one test per operation and shape.

Run by `make bench`, which lets pytest collect bench_*.py. Ratios against targets: benchmarks/core_ratios.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.core_worlds import Owner, empty_pair, fleet, jammed, wide_fleet
from iop_fast._core.admission import Admission, Lease, Plan
from tests.model.admission_model import ModelAdmission

INNER = 100


def pairs(admission: Any) -> None:
    submit, release, owner = admission.submit, admission.release, OWNER
    for _ in range(INNER):
        release(1, submit(1, owner, "m", False, 1))


OWNER = Owner()


def test_hundred_empty_pairs(benchmark: Any) -> None:
    benchmark(pairs, empty_pair())


@pytest.mark.parametrize("candidates", [1, 8, 64, 1000])
def test_hundred_pairs(benchmark: Any, candidates: int) -> None:
    admission = fleet(Admission, candidates)
    benchmark(pairs, admission)
    assert admission.snapshot()[0].in_flight == 0


def test_hundred_pairs_of_the_plain_python_model(benchmark: Any) -> None:
    benchmark(pairs, fleet(ModelAdmission, 8))


@pytest.mark.parametrize("waiters", [10, 1000, 100_000])
def test_hundred_releases_that_grant(benchmark: Any, waiters: int) -> None:
    admission, lease, owner, _queue = jammed(waiters)
    owner.got = lease

    def work() -> None:
        for _ in range(INNER):
            admission.release(1, owner.got)
            admission.submit(1, owner, "m", False, 1)

    benchmark(work)
    assert isinstance(owner.got, Lease)
    assert admission.waiting == waiters


@pytest.mark.parametrize("waiters", [10, 100_000])
def test_hundred_cancels_in_the_middle(benchmark: Any, waiters: int) -> None:
    admission, _lease, owner, queue = jammed(waiters)

    def work() -> None:
        for step in range(INNER):
            place = (waiters // 2 + step) % waiters
            admission.cancel(1, queue[place])
            queue[place] = admission.submit(1, owner, "m", False, 1)

    benchmark(work)
    assert admission.waiting == waiters


@pytest.mark.parametrize("touched", [0, 1, 10_000])
def test_reconfigure_of_ten_thousand_providers(benchmark: Any, touched: int) -> None:
    admission, plan = wide_fleet(10_000)
    state = {"plan": plan}

    def change() -> tuple[tuple[int, Plan], dict[str, Any]]:
        providers = list(state["plan"].providers)
        for place in range(touched):
            providers[place] = providers[place]._replace(capacity=9 - providers[place].capacity)
        state["plan"] = state["plan"]._replace(providers=tuple(providers))
        return (1, state["plan"]), {}

    benchmark.pedantic(admission.reconfigure, setup=change, rounds=10)
    assert admission.snapshot()[0].configured_capacity == state["plan"].providers[0].capacity


def test_snapshot_of_ten_thousand_providers(benchmark: Any) -> None:
    admission, _plan = wide_fleet(10_000)
    assert len(benchmark(admission.snapshot)) == 10_000


def test_copy_with_ten_thousand_waiters(benchmark: Any) -> None:
    admission, _lease, _owner, _queue = jammed(10_000)
    assert benchmark(admission.copy).waiting == 10_000


def test_node_down_with_a_thousand_waiters(benchmark: Any) -> None:
    def setup() -> tuple[tuple[Admission], dict[str, Any]]:
        return (jammed(1000)[0],), {}

    benchmark.pedantic(lambda admission: admission.node_down(1, "n0", 1), setup=setup, rounds=20)
