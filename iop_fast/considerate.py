"""Work in a thread that keeps the event loop waiting as little as a thread can."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

# How long such a thread may keep the interpreter from the loop (Python's default is 5 ms).
SWITCH_INTERVAL_S = 0.0005


class Considerate:
    """How many such works are under way in this process, and what the interpreter's settings were before."""

    count: ClassVar[int] = 0
    interval_s: ClassVar[float] = 0.0
    had_gc: ClassVar[bool] = False


@contextmanager
def considerate() -> Iterator[None]:
    """Keep a thread's work on large data from holding the loop up, while it lasts. Entered and left on the loop.

    The thread gives the interpreter up sooner, and no collection starts on its many new objects: one would run to its
    end without giving anything up, and find nothing.
    """
    if Considerate.count == 0:
        Considerate.interval_s, Considerate.had_gc = sys.getswitchinterval(), gc.isenabled()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        gc.disable()
    Considerate.count += 1
    try:
        yield
    finally:
        Considerate.count -= 1
        if Considerate.count == 0:
            sys.setswitchinterval(Considerate.interval_s)
            if Considerate.had_gc:
                gc.enable()
