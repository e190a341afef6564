"""Ctrl-C while the program loads: it ends as by a signal; the daemons keep it so until they listen themselves."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from typing import Any

import pytest

import iop_fast.cli.main
from iop_fast.cli import program


@pytest.fixture(autouse=True)
def interrupts() -> Iterator[None]:
    before = signal.getsignal(signal.SIGINT)
    yield
    signal.signal(signal.SIGINT, before)


def handler_in(command: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return how SIGINT is handled when a command begins."""
    found = []
    monkeypatch.setattr(iop_fast.cli.main, "main", lambda prog_name: found.append(signal.getsignal(signal.SIGINT)))
    monkeypatch.setattr(sys, "argv", ["iop", command])
    program.run()
    return found[0]


@pytest.mark.parametrize("command", ["edge", "node"])
def test_a_daemon_ends_by_the_signal(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert handler_in(command, monkeypatch) is signal.SIG_DFL


@pytest.mark.parametrize("command", ["up", "status", "top", "--help"])
def test_every_other_command_hears_of_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    assert handler_in(command, monkeypatch) is signal.default_int_handler


@pytest.mark.parametrize("command", ["edge", "status"])
def test_who_ignores_it_goes_on_ignoring_it(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    assert handler_in(command, monkeypatch) is signal.SIG_IGN
