"""The writing half of the frame codec: runs' frames as wire bytes of proto/iop/runtime.proto, without message objects.

Every `encode_*` returns one entry of `Batch.frames`, tag and length included, so a message is `b"".join(entries)`.
Session frames are rare and go through runtime_pb2 (`encode_frame`). Checked against it in tests: an entry equals what
protobuf's serializer makes. The reading half stands in `iop_fast._hot.frame_reader`.

Encoding raises TypeError for a wrong type (names, values and paths are bytes), OverflowError for a number that its
field does not hold, ValueError for text that is no Unicode and for more than `MAX_HEADERS` header fields.
"""

from collections.abc import Sequence
from typing import Final

from iop_fast.seams import End, Head, RunOpening, TunnelRequest

MAX_HEADERS: Final[int]
"""Header fields that a head or a tunnel request may carry; decoding refuses more as it refuses malformed bytes."""

EVENT_BYTES: Final[int]
"""What an event counts of its run's window beyond its entry: about what a chunk of the API adds around a word."""

class FrameError(ValueError):
    """A message is not a well-formed Batch: the peer is broken and its session must end."""

def encode_tunnel_request(run_id: int, request: TunnelRequest) -> bytes:
    """`request.body` may be any object with contiguous bytes."""

def encode_run_request(run_id: int, opening: RunOpening) -> bytes:
    """`opening.body` may be any object with contiguous bytes."""

def encode_request_body(run_id: int, piece: bytes | bytearray | memoryview, complete: bool) -> bytes: ...
def encode_taken(run_id: int) -> bytes: ...
def encode_head(run_id: int, head: Head) -> bytes: ...
def encode_data(run_id: int, data: bytes | bytearray | memoryview) -> bytes: ...
def encode_text(run_id: int, text: str, choice: int = 0) -> bytes:
    """Encode a text event. Here and in the other events, characters that UTF-8 does not have (lone surrogates, which
    a model's JSON may hold) travel as question marks. The caller cuts what is longer than a piece."""

def encode_reasoning(run_id: int, text: str, choice: int = 0) -> bytes: ...
def encode_tool_call(
    run_id: int, call_index: int, call_id: str, name: str, arguments: str, choice: int = 0
) -> bytes: ...
def encode_embedding(run_id: int, values: Sequence[float], choice: int = 0) -> bytes:
    """Encode an embedding; numbers too large for a float32 become infinite. An `array.array("f")` is copied as is."""

def encode_finish(run_id: int, reason: str, choice: int = 0) -> bytes: ...
def encode_end(run_id: int, end: End) -> bytes:
    """Characters of `end.detail` that UTF-8 does not have travel as question marks: an end always gets through."""

def encode_window(run_id: int, byte_count: int) -> bytes: ...
def encode_cancel(run_id: int) -> bytes: ...
def encode_frame(frame: bytes) -> bytes:
    """Wrap a serialized runtime_pb2.Frame as an entry."""
