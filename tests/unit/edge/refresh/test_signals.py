"""SIGHUP asks for a refresh, also one that comes before there is anything to refresh."""

from __future__ import annotations

import asyncio
import os
import signal

from iop_fast.edge.app import Signals
from tests.unit.edge.refresh.refresh_world import run, until


def test_a_hang_up_during_the_start_is_taken_up_afterwards() -> None:
    async def work() -> None:
        loop = asyncio.get_running_loop()
        signals = Signals(loop)
        asked: list[int] = []
        try:
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: signals._was_hung_up, "the signal")
            signals.on_reload(lambda: asked.append(1))
            assert asked == [1]
            os.kill(os.getpid(), signal.SIGHUP)
            await until(lambda: len(asked) == 2, "the second signal")
            assert not signals.first.is_set()
        finally:
            for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    run(work())
