"""Bind grpcio's server so that it owns its addresses, and say plainly why it cannot."""

from __future__ import annotations

import os
import socket

import grpc
from grpc import aio

from iop_fast.wire.listening import join_address, listen_addresses, split_address


async def bind_all(server: aio.Server, address: str, credentials: grpc.ServerCredentials | None) -> int:
    """Bind every address that the host has; return the port. Raises OSError.

    gRPC itself is content with one of several, and a server on ::1 beside a stranger's on 127.0.0.1 is a trap.
    """
    port = 0
    for _, place in await listen_addresses(address):
        port = bind_one(server, join_address(place[0], place[1] or port), credentials)
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
