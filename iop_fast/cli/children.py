"""Child programs of `iop up`: started on a lifeline, stopped in order, never left behind.

Each child holds the reading end of a pipe whose writing end only this process holds. However this process dies, the
kernel closes the pipe and the child stops.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import click

STOP_LIMIT_S = 15.0


class Children:
    """The running children by name, in the order of their start."""

    def __init__(self) -> None:
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    @contextmanager
    def started(self, name: str, arguments: list[str], environment: Mapping[str, str]) -> Iterator[None]:
        """Run `python -m ARGUMENTS --lifeline FD`; at the end ask it to stop and, past the limit, kill it."""
        lifeline, held = os.pipe()
        command = [sys.executable, "-m", *arguments, "--lifeline", str(lifeline)]
        # A session of its own: Ctrl-C reaches this process alone, which then stops the children in order.
        child = subprocess.Popen(command, env={**environment}, pass_fds=[lifeline], start_new_session=True)
        os.close(lifeline)
        self._running[name] = child
        try:
            yield
        finally:
            stop(child)
            del self._running[name]
            os.close(held)

    def check(self) -> None:
        """Fail when a child has ended by itself."""
        for name, child in self._running.items():
            if child.poll() is not None:
                raise click.ClickException(f"{name} ended with exit code {child.returncode}; the lines above say why")

    def kill(self) -> None:
        """Kill what still runs; whoever waits for an end then sees it. A signal's handler may call it."""
        for child in list(self._running.values()):
            child.kill()


def stop(child: subprocess.Popen[bytes]) -> None:
    """Ask a child to stop and wait; kill it past the limit."""
    child.terminate()
    try:
        child.wait(STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
