"""Connect to a host by TCP: every address it has, the first that answers.

Addresses are tried in the resolver's order with the families in turn, each 250 ms after the one before it or as soon as
that has failed (RFC 8305, sections 4 and 5); so a family that leads nowhere costs a quarter of a second and not the
whole limit. The limit is the caller's: whatever is under way ends when the task is cancelled.
"""

from __future__ import annotations

import asyncio
import os
import socket
from itertools import chain, zip_longest
from typing import Any

STAGGER_S = 0.25

Place = tuple[int, Any]


async def connect(host: str, port: int) -> socket.socket:
    """Return a connected socket; raise OSError whose text says why no address answered."""
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)  # network
    except socket.gaierror as error:
        raise OSError(error.errno, error.strerror) from None
    return await _first_of(in_turns([(int(family), place) for family, _, _, _, place in found]))


def in_turns(places: list[Place]) -> list[Place]:
    """Order addresses so that their families take turns, that of the first one first."""
    firsts = [place for place in places if place[0] == places[0][0]]
    others = [place for place in places if place[0] != places[0][0]]
    return [place for place in chain.from_iterable(zip_longest(firsts, others)) if place is not None]


async def _first_of(places: list[Place]) -> socket.socket:
    waiting = list(reversed(places))
    running: dict[asyncio.Task[socket.socket], str] = {}
    reasons: dict[str, str] = {}
    winner: socket.socket | None = None
    try:
        while winner is None and (waiting or running):
            if waiting:
                family, place = waiting.pop()
                running[asyncio.ensure_future(_connect_one(family, place))] = str(place[0])
            done, _ = await asyncio.wait(
                running, timeout=STAGGER_S if waiting else None, return_when=asyncio.FIRST_COMPLETED
            )
            for task in done:
                address = running.pop(task)
                error = task.exception()
                if error is None and winner is None:
                    winner = task.result()
                elif error is None:
                    task.result().close()
                else:
                    reasons[address] = _reason(error)
    finally:
        await _give_up(running)
    if winner is None:
        raise OSError(_all_reasons(reasons))
    return winner


async def _connect_one(family: int, place: Any) -> socket.socket:
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(made, place)  # network
    except BaseException:
        made.close()
        raise
    return made


async def _give_up(running: dict[asyncio.Task[socket.socket], str]) -> None:
    for task in running:
        task.cancel()
    for ended in await asyncio.gather(*running, return_exceptions=True):
        if isinstance(ended, socket.socket):
            ended.close()


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno)
    return str(error) or type(error).__name__


def _all_reasons(reasons: dict[str, str]) -> str:
    """One reason where every address has the same, else each with its own."""
    if len(set(reasons.values())) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{address}: {reason}" for address, reason in reasons.items()) or "the host has no address"
