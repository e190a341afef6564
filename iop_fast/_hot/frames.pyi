"""The frame codec: runs' frames as wire bytes of proto/iop/runtime.proto, without message objects.

Every `encode_*` returns one entry of `Batch.frames`, tag and length included, so a message is `b"".join(entries)`.
`dispatch_*` walk a message and call. Session frames are rare and go through runtime_pb2 (`encode_frame`, `on_control`).
Checked against runtime_pb2 in tests: an entry equals what protobuf's serializer makes, and unknown fields and frames
are skipped as protobuf does.

Encoding raises TypeError for a wrong type (names, values and paths are bytes), OverflowError for a number that its
field does not hold, ValueError for text that is no Unicode and for more than `MAX_HEADERS` header fields.
"""

from collections.abc import Sequence
from typing import Final, Protocol, type_check_only

from iop_fast.seams import EdgeRun, End, Head, RunOpening, TunnelRequest

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

@type_check_only
class EdgeSide(Protocol):
    def on_control(self, frame: bytes) -> None:
        """A session frame: a serialized runtime_pb2.Frame."""

    def on_frame_failed(self, run_id: int, error: Exception) -> None:
        """A callback of the run raised, or its frames stand in an order that no answer has (then FrameError).

        That run ends with `internal`, the others go on. It is still in the table, unless its callback removed it.
        """

@type_check_only
class NodeSide(Protocol):
    def on_open(self, run_id: int, request: TunnelRequest) -> None: ...
    def on_open_run(self, run_id: int, opening: RunOpening) -> None: ...
    def on_body(self, run_id: int, piece: bytes, complete: bool) -> None: ...
    def on_window(self, run_id: int, byte_count: int) -> None: ...
    def on_cancel(self, run_id: int) -> None: ...
    def on_control(self, frame: bytes) -> None:
        """A session frame: a serialized runtime_pb2.Frame."""

    def on_frame_failed(self, run_id: int, error: Exception) -> None:
        """One of the callbacks above but `on_control` raised for this run."""

def dispatch_edge(message: bytes, runs: dict[int, EdgeRun], side: EdgeSide) -> int:
    """Deliver a message that came from a Node; return its number of frames.

    Raises FrameError before anything is delivered. Frames of one run are gathered: each run gets at most one
    `on_window` and then at most one `on_answer` or, where an event of a normalized run is among them, `on_events`, in
    order of first appearance. `data` holds no empty piece. A head behind the beginning of an answer, and an event
    beside a head or data, are a failure of that run (`on_frame_failed`). Frames of a run that is not in `runs` are
    dropped, and so is what a run was to get when an earlier delivery of the same message removed it. A run is removed
    from `runs` after the delivery that brought its RunEnd. What `on_control` and `on_frame_failed` raise goes to the
    caller and the rest of the message is not delivered: a session frame that fails is the session's failure.
    """

def dispatch_node(message: bytes, side: NodeSide) -> int:
    """Deliver a message that came from the Edge, frame by frame in order; return its number of frames.

    Raises FrameError before anything is delivered; what `on_control` and `on_frame_failed` raise goes to the caller.
    """
