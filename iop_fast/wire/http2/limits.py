"""What one connection may cost us, each bound with its name."""

from __future__ import annotations

from typing import NamedTuple

from iop_fast.wire.options import (
    LINK_WINDOW_BYTES,
    MAX_CALLS_PER_CONNECTION,
    MAX_MESSAGE_BYTES,
    MAX_RECEIVE_BYTES,
    STRANGER_BYTES_MAX,
)

SECOND_NS = 1_000_000_000


class Limits(NamedTuple):
    """Bounds of a connection; the same for both sides unless a field says otherwise. Times are of the event loop."""

    window_bytes: int = LINK_WINDOW_BYTES
    """What may be in flight towards us on one call; a larger message passes through it in parts."""

    max_message_bytes: int = MAX_MESSAGE_BYTES
    """The largest message that `Call.write` takes."""

    max_receive_bytes: int = MAX_RECEIVE_BYTES
    """The largest message that a peer may send; a larger one ends its call with RESOURCE_EXHAUSTED."""

    stranger_bytes_max: int = STRANGER_BYTES_MAX
    """What a call holds, at most, of messages of a client that is not known yet (server): all of them together."""

    max_calls: int = MAX_CALLS_PER_CONNECTION
    """Calls that the peer may have open at once (server); a further one is refused. Ours are bounded by the peer."""

    keepalive_ns: int = 5 * SECOND_NS
    """Silence after which the peer is sent a PING."""

    ping_timeout_ns: int = 5 * SECOND_NS
    """Silence after that PING which cuts the connection."""

    handshake_ns: int = 10 * SECOND_NS
    """From the transport's start to the peer's SETTINGS; also what a header block may take to become whole."""

    idle_ns: int = 300 * SECOND_NS
    """How long a peer's connection may be without a call (server)."""

    close_ns: int = 3 * SECOND_NS
    """How long a closing connection may take to send what is left and to see the peer's end; then it is cut."""


# What we announce for one frame: a message of the sender's limit fits.
FRAME_BYTES_MAX = 1024 * 1024 + 16

# What may be queued in answers behind a full transport.
ANSWER_BYTES_MAX = 16 * 1024

# What a second's control frames may cost, in frames; a message of either direction earns what its window updates and
# probes of the round-trip time cost (gRPC sends up to two and one of them a message). It is less than the frames cost
# that an empty message can be cut into.
ALLOWANCE = 1000
ALLOWANCE_S = 1.0
EARNED_BY_MESSAGE = 4

COST_OF_FRAME = 1
COST_OF_PING = 2

# What is heavy is paid for out of an allowance of its own, which nothing fills but time: messages of five bytes would
# pay for calls, which cost a hundred times as much. One of it is about five microseconds.
HEAVY_ALLOWANCE = 600
COST_OF_SETTINGS = 10
# A header block, and the call that it may open.
COST_OF_BLOCK = 10
# What a call costs besides that is ended before its time (CVE-2023-44487, CVE-2025-8671).
COST_OF_RESET = 20
# A larger header block costs by its size and by its fields: one byte can be a field, and takes a microsecond or three.
BLOCK_BYTES_FREE = 512
BLOCK_BYTES_PER_COST = 32
FIELDS_FREE = 16

# Beside the bytes of a message that waits to be read: an empty one is an object too.
MESSAGE_OVERHEAD_BYTES = 64
# Messages that are read at most before others have their turn of the loop.
READS_A_TURN = 32
# So much of DATA pays for its frame.
DATA_BYTES_PER_COST = 1024
