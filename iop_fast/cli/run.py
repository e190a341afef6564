"""`iop edge` and `iop node`: one program each, in the foreground, stopped by SIGTERM or Ctrl-C."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, NoReturn

import click

# What the event loop gets to close itself once the program has ended.
LEAVE_LIMIT_S = 5.0
# What the runs of a program get whose starter died.
ORPHAN_DRAIN_S = 3.0

config_option = click.option(
    "-c",
    "--config",
    type=click.Path(path_type=Path),
    required=True,
    help="The configuration file.",
)

lifeline_option = click.option(
    "--lifeline",
    type=int,
    hidden=True,
    help="A file descriptor that ends the program, as SIGTERM does, when its other end closes.",
)


@click.command()
@config_option
@lifeline_option
def edge(config: Path, lifeline: int | None) -> None:
    """Run an Edge from its configuration file.

    SIGTERM or Ctrl-C drains it: no new requests, waiting ones end, running ones finish within their limit; a second
    signal stops at once. Exit code 2 for a configuration that is refused, 1 when it cannot start.
    """
    from iop_fast.edge.app import run_edge

    run_program(lambda: run_edge(config), lifeline)


@click.command()
@config_option
@lifeline_option
def node(config: Path, lifeline: int | None) -> None:
    """Run a Node from its configuration file.

    SIGTERM or Ctrl-C drains it: it tells the Edge, finishes what runs within its limit and leaves; a second signal
    stops at once. Exit code 2 for a configuration that is refused, 1 when it cannot start.
    """
    from iop_fast.node.app import run_node

    run_program(lambda: run_node(config), lifeline)


def run_program(program: Callable[[], Coroutine[Any, Any, int]], lifeline: int | None) -> NoReturn:
    """Run a program on a uvloop loop and leave with its exit code.

    Leaving is not left to the interpreter: a call that gRPC still holds for a peer that does not read, or a name that
    is being looked up, could keep it for ever.
    """
    import uvloop

    if lifeline is not None:
        threading.Thread(target=follow_lifeline, args=(lifeline,), daemon=True).start()

    async def watched() -> int:
        code = await program()
        watchdog = threading.Timer(LEAVE_LIMIT_S, os._exit, (code,))
        watchdog.daemon = True
        watchdog.start()
        return code

    code = uvloop.run(watched())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def follow_lifeline(descriptor: int) -> None:
    """Wait until the other end of a pipe closes (its process is gone, however it died), then ask to stop, twice: nobody
    is left who would wait for a long drain."""
    while os.read(descriptor, 4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_DRAIN_S)
    os.kill(os.getpid(), signal.SIGTERM)
