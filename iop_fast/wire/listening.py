"""Bind a gRPC server so that it owns its addresses, and say plainly why it cannot."""

from __future__ import annotations

import asyncio
import os
import socket

import grpc
from grpc import aio


def split_address(address: str) -> tuple[str, int]:
    """Split `host:port` or `[v6]:port`; raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"expected host:port, got {address!r}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def join_address(host: str, port: int) -> str:
    """The reverse of `split_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


async def bind_all(server: aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Bind every address that the host has; return the port. Raises OSError.

    gRPC itself is content with one of several, and a server on ::1 beside a stranger's on 127.0.0.1 is a trap.
    """
    host, port = split_address(address)
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise OSError(error.errno, f"cannot listen on {address}: {error.strerror}") from None
    for resolved in dict.fromkeys(str(entry[4][0]) for entry in found):
        port = bind_one(server, join_address(resolved, port), credentials)
    return port


def bind_one(server: aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Bind one numeric address; return the port. Raises OSError."""
    try:
        if credentials is None:
            return server.add_insecure_port(address)
        return server.add_secure_port(address, credentials)
    except RuntimeError:
        raise refusal(address) from None


def refusal(address: str) -> OSError:
    """Find out why gRPC could not bind an address, which it does not say."""
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen()
        except OSError as error:
            code = error.errno or 0
            return OSError(code, f"cannot listen on {address}: {os.strerror(code)}")
    return OSError(f"cannot listen on {address}: gRPC refused it")
