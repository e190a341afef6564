"""The numbers of the link between an Edge and its Nodes, whatever transport carries it."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB

# What a sender puts into one stream message, and what a receiver takes at most. gRPC ends a whole stream at a message
# above the receiver's limit, so the sender's own check stands far below it.
MAX_MESSAGE_BYTES = 1 * MIB
MAX_RECEIVE_BYTES = 4 * MIB

# A writer closes a message here. Beyond it little CPU is saved, and on a slow uplink every other run waits behind it.
BATCH_BYTES = 128 * KIB

# A piece of a body, so that two of them with their tags fit one message. The protocol's limit of a piece is 64 KiB.
PIECE_BYTES = 64 * KIB - 64

# What may be in flight on a link, in each direction, unless the configuration says otherwise: also what a cancel waits
# behind.
LINK_WINDOW_BYTES = 256 * KIB

# What one run may have in flight, in each direction.
RUN_WINDOW_BYTES = 256 * KIB

# Bytes of a configuration payload that travel inside one frame; more is sent as pieces.
INLINE_PAYLOAD_BYTES = 512 * KIB
MAX_PAYLOAD_BYTES = 64 * MIB

# Calls that one TCP connection may have open: a Node needs one session, a prober a health check and a watch.
MAX_CALLS_PER_CONNECTION = 4

# What a call may hold, unread, of a peer that is not known yet: a RegisterRequest is a token of 4,096 characters, of
# four bytes each, and a few names.
STRANGER_BYTES_MAX = 32 * KIB
