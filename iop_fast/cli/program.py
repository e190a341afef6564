"""Where the program `iop` begins: before click and all else is imported, which takes a tenth of a second.

Ctrl-C in that time has nothing to clean up and ends the program as a signal does, instead of with the traceback of
whatever was being imported. `iop edge` and `iop node` keep it so until they listen for signals themselves, which is
before they hold anything: an exception raised into whatever runs meanwhile could be lost in a callback of a library.
Whoever ignores the signal (nohup) goes on ignoring it.
"""

from __future__ import annotations

import signal
import sys

DAEMONS = frozenset({"edge", "node"})


def run() -> None:
    """Run the command line, whose commands handle interrupts."""
    is_heeded = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_heeded:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from iop_fast.cli.main import main

    if is_heeded and DAEMONS.isdisjoint(sys.argv[1:2]):
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main(prog_name="iop")
