"""Every option that grpcio is given, each with its reason.

One table for both sides: an option that only one side sets has None on the other.
"""

from __future__ import annotations

from typing import NamedTuple

from iop_fast.wire.options import LINK_WINDOW_BYTES, MAX_CALLS_PER_CONNECTION, MAX_MESSAGE_BYTES, MAX_RECEIVE_BYTES

WINDOW_OPTION = "grpc.http2.lookahead_bytes"


class Option(NamedTuple):
    """A gRPC channel argument; `edge` is the server's value and `node` the client's."""

    name: str
    edge: int | None
    node: int | None
    why: str


OPTIONS = (
    Option("grpc.so_reuseport", 0, None, "two Edges on one port would be two ledgers over one fleet"),
    Option("grpc.max_concurrent_streams", MAX_CALLS_PER_CONNECTION, None, "a peer may not open calls without limit"),
    Option("grpc.keepalive_time_ms", 5000, 5000, "clears transports whose peer is gone"),
    Option("grpc.keepalive_timeout_ms", 5000, 5000, "as above"),
    Option("grpc.http2.ping_timeout_ms", 5000, 5000, "without it (default 60 s) the two above never fire"),
    Option("grpc.keepalive_permit_without_calls", 1, 1, "covers the time from the handshake to the first call"),
    Option("grpc.http2.max_pings_without_data", 0, 0, "else pings stop on an idle stream"),
    Option("grpc.http2.min_ping_interval_without_data_ms", 1000, None, "else the Nodes' pings end in a GOAWAY"),
    Option("grpc.http2.max_ping_strikes", 0, None, "as above"),
    Option("grpc.http2.bdp_probe", 0, 0, "the probe lets 4 MiB pile up behind a slow peer"),
    Option(WINDOW_OPTION, LINK_WINDOW_BYTES, LINK_WINDOW_BYTES, "the link's window, fixed"),
    Option("grpc.max_receive_message_length", MAX_RECEIVE_BYTES, MAX_RECEIVE_BYTES, "stated, not left to a default"),
    Option("grpc.max_send_message_length", MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES, "our own check comes first"),
    Option("grpc.use_local_subchannel_pool", None, 1, "else gRPC's own back-off outlives the channel"),
    Option("grpc.enable_retries", None, 0, "a session is never retried below us"),
    Option("grpc.enable_http_proxy", None, 0, "an Edge is not reached through the environment's proxy"),
    Option("grpc.service_config_disable_resolution", None, 1, "no service configuration from DNS"),
)


def server_options(window_bytes: int = LINK_WINDOW_BYTES) -> list[tuple[str, int]]:
    """Return the Edge's column, as grpc.aio.server takes it."""
    return [(o.name, _value(o.name, o.edge, window_bytes)) for o in OPTIONS if o.edge is not None]


def channel_options(window_bytes: int = LINK_WINDOW_BYTES) -> list[tuple[str, int]]:
    """Return the Node's column, as grpc.aio.insecure_channel takes it."""
    return [(o.name, _value(o.name, o.node, window_bytes)) for o in OPTIONS if o.node is not None]


def _value(name: str, value: int, window_bytes: int) -> int:
    return window_bytes if name == WINDOW_OPTION else value
