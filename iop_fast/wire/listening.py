"""Addresses of the link's listener: split, found and bound, all of a host's or none."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import cast

BACKLOG = 1024


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`; raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected host:port, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


SocketAddress = tuple[str, int] | tuple[str, int, int, int]


async def listen_addresses(address: str) -> list[tuple[int, SocketAddress]]:
    """Find every address of `host:port`, each once, with its family; raises OSError that names it, ValueError."""
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    places: dict[str, tuple[int, SocketAddress]] = {}
    for family, _, _, _, place in found:
        places[str(place[0])] = (int(family), cast(SocketAddress, place))
    return list(places.values())


async def bind_sockets(address: str) -> list[socket.socket]:
    """Bind and listen on every address that the host has, on one port that nobody else has; raises OSError, ValueError.

    Port 0 is any port: the one that the first address got is that of the others too.
    """
    bound: list[socket.socket] = []
    try:
        for family, place in await listen_addresses(address):
            port = place[1] or (bound[0].getsockname()[1] if bound else 0)
            bound.append(_bind(family, (place[0], port, *place[2:])))
    except BaseException:
        for one in bound:
            one.close()
        raise
    return bound


def _bind(family: int, place: tuple[str | int, ...]) -> socket.socket:
    """Listen on one address. The port is not shared: SO_REUSEADDR takes over only what nobody listens on."""
    made = socket.socket(family, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # [::] is every address of both families; any other leaves IPv4 alone.
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, place[0] != "::")
        made.bind(place)
        made.listen(BACKLOG)
    except OSError as error:
        made.close()
        code = error.errno or 0
        text = f"cannot listen on {join_address(str(place[0]), int(place[1]))}: {os.strerror(code)}"
        raise OSError(code, text) from None
    return made
