"""The frame codec: runs' frames as wire bytes of proto/iop/runtime.proto, without message objects.

Every `encode_*` returns one entry of `Batch.frames`, tag and length included, so a message is `b"".join(entries)`.
`dispatch_*` walk a message and call. Session frames are rare and go through runtime_pb2 (`encode_frame`, `on_control`).
Checked against runtime_pb2 in tests; unknown fields and frames are skipped as protobuf does.
"""

from typing import Protocol

from iop_fast.seams import EdgeRun, End, Head, TunnelRequest

class FrameError(ValueError):
    """A message is not a well-formed Batch: the peer is broken and its session must end."""

def encode_tunnel_request(run_id: int, request: TunnelRequest) -> bytes: ...
def encode_request_body(run_id: int, piece: bytes, complete: bool) -> bytes: ...
def encode_taken(run_id: int) -> bytes: ...
def encode_head(run_id: int, head: Head) -> bytes: ...
def encode_data(run_id: int, data: bytes) -> bytes: ...
def encode_end(run_id: int, end: End) -> bytes: ...
def encode_window(run_id: int, byte_count: int) -> bytes: ...
def encode_cancel(run_id: int) -> bytes: ...
def encode_frame(frame: bytes) -> bytes:
    """Wrap a serialized runtime_pb2.Frame as an entry."""

class EdgeSide(Protocol):
    def on_control(self, frame: bytes) -> None:
        """A session frame, or a run frame that has no fast path: a serialized runtime_pb2.Frame."""
    def on_frame_failed(self, run_id: int, error: Exception) -> None:
        """A callback of a run raised: that run ends with `internal`, the others go on."""

class NodeSide(Protocol):
    def on_open(self, run_id: int, request: TunnelRequest) -> None: ...
    def on_body(self, run_id: int, piece: bytes, complete: bool) -> None: ...
    def on_window(self, run_id: int, byte_count: int) -> None: ...
    def on_cancel(self, run_id: int) -> None: ...
    def on_control(self, frame: bytes) -> None: ...
    def on_frame_failed(self, run_id: int, error: Exception) -> None: ...

def dispatch_edge(message: bytes, runs: dict[int, EdgeRun], side: EdgeSide) -> int:
    """Walk a message that came from a Node; return its number of frames.

    Frames of one run are gathered: each run gets at most one `on_answer`, after the walk, in order of first appearance.
    A run whose RunEnd is in the message is deleted from `runs` when its `on_answer` has returned; one whose callback
    raised stays there for `on_frame_failed` to deal with. Frames of an unknown run are dropped. Raises FrameError
    before any run is called.
    """

def dispatch_node(message: bytes, side: NodeSide) -> int:
    """Walk a message that came from the Edge; call frame by frame in order; return the number of frames."""
