"""grpcio's option table: every option once, with a reason, and the ones that decide about safety."""

from __future__ import annotations

from iop_fast.wire.grpcio.options import OPTIONS, channel_options, server_options
from iop_fast.wire.options import (
    BATCH_BYTES,
    KIB,
    LINK_WINDOW_BYTES,
    MAX_MESSAGE_BYTES,
    MAX_RECEIVE_BYTES,
    PIECE_BYTES,
)


def test_every_option_stands_once_with_a_reason() -> None:
    names = [option.name for option in OPTIONS]
    assert len(names) == len(set(names))
    for option in OPTIONS:
        assert option.why
        assert option.edge is not None or option.node is not None


def test_the_options_that_decide_about_safety() -> None:
    server, channel = dict(server_options()), dict(channel_options())
    assert server["grpc.so_reuseport"] == 0
    assert server["grpc.http2.ping_timeout_ms"] == channel["grpc.http2.ping_timeout_ms"] == 5000
    assert channel["grpc.use_local_subchannel_pool"] == 1
    assert server["grpc.http2.bdp_probe"] == channel["grpc.http2.bdp_probe"] == 0
    assert "grpc.use_local_subchannel_pool" not in server
    assert "grpc.so_reuseport" not in channel


def test_the_window_can_be_given() -> None:
    name = "grpc.http2.lookahead_bytes"
    assert dict(server_options())[name] == dict(channel_options())[name] == LINK_WINDOW_BYTES
    assert dict(server_options(65_536))[name] == dict(channel_options(65_536))[name] == 65_536


def test_sizes_nest() -> None:
    assert PIECE_BYTES <= 64 * KIB
    assert 2 * (PIECE_BYTES + 32) <= BATCH_BYTES
    assert BATCH_BYTES < MAX_MESSAGE_BYTES
    assert MAX_MESSAGE_BYTES * 4 == MAX_RECEIVE_BYTES
