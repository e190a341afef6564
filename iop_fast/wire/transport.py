"""The link's front door: serve it or dial it over either transport, which is loaded only where it is chosen."""

from __future__ import annotations

from iop_fast.wire.credentials import ServerIdentity, Trust
from iop_fast.wire.ends import (
    CONNECT_LIMIT_S,
    SERVICE,
    EdgeStream,
    LinkServer,
    NodeStream,
    OnRefused,
    OnStream,
    TransportName,
    settle,
)
from iop_fast.wire.options import LINK_WINDOW_BYTES

__all__ = ["SERVICE", "EdgeStream", "LinkServer", "NodeStream", "OnStream", "TransportName", "dial", "serve", "settle"]

DEFAULT: TransportName = "builtin"


async def serve(
    address: str,
    on_stream: OnStream,
    *,
    transport: TransportName = DEFAULT,
    identity: ServerIdentity | None = None,
    window_bytes: int = LINK_WINDOW_BYTES,
    on_refused: OnRefused | None = None,
) -> LinkServer:
    """Listen on `address` (host:port, port 0 for any) and run `on_stream(stream, peer)` for each session.

    `on_stream` runs in a task of its own that is never cancelled; its stream ends by status OK when it returns or lets
    a ConnectionError of the stream through. Any other exception goes to the event loop's exception handler and ends the
    stream by INTERNAL. Every address of the host is bound, or none: raises OSError, its text naming the address, when
    one cannot be had. `on_refused(peer, reason)` is told of connections that were turned away; grpcio does not say.
    """
    if transport == "builtin":
        from iop_fast.wire.http2 import server

        return await server.serve(
            address, on_stream, identity=identity, window_bytes=window_bytes, on_refused=on_refused
        )
    from iop_fast.wire.grpcio import streams

    return await streams.serve(address, on_stream, identity=identity, window_bytes=window_bytes)


async def dial(
    address: str,
    trust: Trust | None = None,
    *,
    transport: TransportName = DEFAULT,
    server_name: str | None = None,
    window_bytes: int = LINK_WINDOW_BYTES,
    limit_s: float = CONNECT_LIMIT_S,
) -> NodeStream:
    """Connect to an Edge and open the session's stream; raise ConnectionError with a plain reason.

    Returns when the call is on its way over an HTTP/2 connection; whether an Edge takes it shows in the first read.
    With `trust` by TLS; `server_name` is the name expected in the Edge's certificate instead of the address's host.
    `limit_s` bounds name resolution, connection, TLS and the transport's first words together.
    """
    if transport == "builtin":
        from iop_fast.wire.http2 import client

        return await client.dial(address, trust, server_name=server_name, window_bytes=window_bytes, limit_s=limit_s)
    from iop_fast.wire.grpcio import streams

    return await streams.dial(address, trust, server_name=server_name, window_bytes=window_bytes, limit_s=limit_s)
