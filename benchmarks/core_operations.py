"""Hot operations of the admission core, one after the other, for a run under callgrind. Prints their names in order.

`os.getppid` marks where the counted part of an operation begins and where it ends: callgrind dumps and starts anew
before each call of it (--dump-before=getppid). The collector is off and the hash seed fixed by the caller, so that the
counts repeat. This file stands alone: it also runs against the package of another commit.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from itertools import repeat
from typing import Any

from iop_fast._core.admission import Admission, Plan, ProviderSpec

COUNT = 1000
WARM = 50


class Owner:
    """An owner that keeps what it last got."""

    got: Any = None

    def on_granted(self, lease: Any) -> None:
        self.got = lease

    def on_evicted(self, outcome: Any) -> None:
        self.got = outcome


def fleet(candidates: int, capacity: int) -> Admission:
    """One model on `candidates` idle providers of a ready Node."""
    specs = tuple(ProviderSpec("n", f"p{place}", capacity, 0, 0, True, True, 1) for place in range(candidates))
    admission = Admission(Plan(specs, {"m": tuple(spec[:2] for spec in specs)}, 1_000_000, 0))
    admission.node_ready(1, "n", 1, {})
    return admission


def pair(candidates: int) -> Callable[[int], None]:
    """submit and release."""
    admission, owner = fleet(candidates, 4), Owner()

    def work(count: int) -> None:
        submit, release = admission.submit, admission.release
        for _ in repeat(None, count):
            release(1, submit(1, owner, "m", False, 1))

    return work


def queue_and_grant() -> Callable[[int], None]:
    """A submit that waits behind 100 others, and the release that grants to the oldest."""
    admission, owner = fleet(1, 1), Owner()
    owner.got = admission.submit(1, owner, "m", False, 1)
    for _ in range(100):
        admission.submit(1, owner, "m", False, 1)

    def work(count: int) -> None:
        submit, release = admission.submit, admission.release
        for _ in repeat(None, count):
            submit(1, owner, "m", False, 1)
            release(1, owner.got)

    return work


def cancel() -> Callable[[int], None]:
    """A submit that waits, and its cancel in the middle of 100 others."""
    admission, owner = fleet(8, 1), Owner()
    held = [admission.submit(1, owner, "m", False, 1) for _ in range(8)]
    waiters = [admission.submit(1, owner, "m", False, 1) for _ in range(100)]

    def work(count: int) -> None:
        submit, cancel = admission.submit, admission.cancel
        for _ in repeat(None, count):
            waiters.append(submit(1, owner, "m", False, 1))
            cancel(1, waiters.pop(50))
        assert len(held) == 8  # a lease that nobody holds would be given back

    return work


OPERATIONS: dict[str, Callable[[], Callable[[int], None]]] = {
    "submit_release_1": lambda: pair(1),
    "submit_release_8": lambda: pair(8),
    "submit_release_64": lambda: pair(64),
    "queue_grant": queue_and_grant,
    "cancel": cancel,
}


def main() -> None:
    made = {name: make() for name, make in OPERATIONS.items()}
    gc.collect()
    gc.disable()
    for name, work in made.items():
        work(WARM)
        os.getppid()
        work(COUNT)
        os.getppid()
        print(name)


if __name__ == "__main__":
    main()
