"""Dispatch: a message of proto/iop/runtime.proto is read and its frames are delivered.

Session frames are rare and are handed on as they stand (`on_control`), to be read by runtime_pb2. Checked against it in
tests: unknown fields and frames are skipped as protobuf does. The codec's reading half stands in
`iop_fast._hot.frame_reader`, its writing half and FrameError in `iop_fast._hot.frames`.
"""

from typing import Protocol, type_check_only

from iop_fast.seams import EdgeRun, RunOpening, TunnelRequest

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
