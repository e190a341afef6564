"""A scripted Edge: takes Nodes over gRPC and does exactly what a test tells it.

    async with FakeEdge() as edge:
        ...                                   # a Node dials edge.address
        link = await edge.next_link()         # its registration is in link.request
        link.accept(payload)
        await link.until("ready_ack")
        run = link.open(request)              # a FakeEdgeRun that collects the answer
        await run.ended()

Every frame is kept in `link.frames`. It answers no heartbeat and never closes a link by itself.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Self

from iop_fast._hot.frames import (
    EVENT_BYTES,
    encode_frame,
    encode_request_body,
    encode_run_request,
    encode_tunnel_request,
    encode_window,
)
from iop_fast.config.payload import NodePayload
from iop_fast.seams import MessageStream, RunOpening, TunnelRequest
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire import transport
from iop_fast.wire.payload import encode_payload, refresh_entries, registration_entries

LIMIT_S = 15.0


class FakeEdgeRun:
    """A run as the Edge sees it. The window of the answer is renewed as data comes, unless `holds_window`."""

    def __init__(self, link: FakeLink, run_id: int) -> None:
        self.link = link
        self.run_id = run_id
        self.kinds: list[str] = []
        self.head: pb.ResponseHead | None = None
        self.body = bytearray()
        self.events: list[pb.RunEvent] = []
        self.end: pb.RunEnd | None = None
        self.window = 0  # what the Node granted of the request's body
        self.holds_window = False

    def take(self, frame: pb.Frame) -> None:
        kind = frame.WhichOneof("body") or ""
        if kind not in ("data", "run_event") or self.kinds[-1:] != [kind]:
            self.kinds.append(kind)
        if kind == "head":
            self.head = frame.head
        elif kind == "data":
            self.body += frame.data
            if not self.holds_window:
                self.link.send(encode_window(self.run_id, len(frame.data)))
        elif kind == "run_event":
            self.events.append(frame.run_event)
            if not self.holds_window:
                entry = encode_frame(frame.SerializeToString())
                self.link.send(encode_window(self.run_id, len(entry) + EVENT_BYTES))
        elif kind == "window":
            self.window += frame.window.bytes
        elif kind == "end":
            assert self.end is None, "two ends"
            self.end = frame.end

    def feed(self, piece: bytes, complete: bool) -> None:
        self.link.send(encode_request_body(self.run_id, piece, complete))

    def cancel(self) -> None:
        self.link.say(pb.Frame(run_id=self.run_id, cancel=pb.CancelRequest()))

    async def ended(self) -> pb.RunEnd:
        """Wait for the end."""
        await self.link.wait(lambda: self.end is not None, f"the end of run {self.run_id}")
        assert self.end is not None
        return self.end


class FakeLink:
    """One session with a Node."""

    def __init__(self, stream: MessageStream, request: pb.RegisterRequest) -> None:
        self.stream = stream
        self.request = request
        self.frames: list[pb.Frame] = []
        self.runs: dict[int, FakeEdgeRun] = {}
        self.is_over = False
        self._queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._changed = asyncio.Event()
        self._next_run = 1
        self._writer = asyncio.get_running_loop().create_task(self._write())

    def send(self, *entries: bytes) -> None:
        """Send one message of encoded entries."""
        self._queue.put_nowait(b"".join(entries))

    def say(self, *frames: pb.Frame) -> None:
        """Send one message of frames."""
        self.send(*(encode_frame(frame.SerializeToString()) for frame in frames))

    def accept(self, payload: NodePayload, generation: int = 1, revision: int = 1) -> None:
        response = pb.RegisterResponse(generation=generation, payload_revision=revision, protocol="1.0")
        for entry in registration_entries(response, encode_payload(payload)):
            self.send(entry)

    def refuse(self, refusal: pb.Refusal.ValueType, detail: str) -> None:
        self.say(pb.Frame(register_response=pb.RegisterResponse(refusal=refusal, detail=detail)))
        self.close()

    def push(self, payload: NodePayload, revision: int) -> None:
        for entry in refresh_entries(revision, encode_payload(payload)):
            self.send(entry)

    def open(self, request: TunnelRequest) -> FakeEdgeRun:
        run = self.runs[self._next_run] = FakeEdgeRun(self, self._next_run)
        self.send(encode_tunnel_request(self._next_run, request))
        self._next_run += 1
        return run

    def open_run(self, opening: RunOpening) -> FakeEdgeRun:
        run = self.runs[self._next_run] = FakeEdgeRun(self, self._next_run)
        self.send(encode_run_request(self._next_run, opening))
        self._next_run += 1
        return run

    def close(self) -> None:
        """End the stream properly once everything is written."""
        self._queue.put_nowait(None)

    def of(self, kind: str) -> list[pb.Frame]:
        """Frames of a kind, in order."""
        return [frame for frame in self.frames if frame.WhichOneof("body") == kind]

    async def until(self, kind: str, count: int = 1) -> pb.Frame:
        """Wait for the frame of a kind, or the `count`-th of them."""
        await self.wait(lambda: len(self.of(kind)) >= count, f"{count} {kind}")
        return self.of(kind)[count - 1]

    async def wait(self, condition: Callable[[], bool], what: str) -> None:
        """Wait until something that came makes a condition hold."""
        async with asyncio.timeout(LIMIT_S):
            while not condition():
                assert not self.is_over, f"the session ended before {what}"
                self._changed.clear()
                await self._changed.wait()

    async def over(self) -> None:
        """Wait for the end of the stream."""
        async with asyncio.timeout(LIMIT_S):
            while not self.is_over:
                self._changed.clear()
                await self._changed.wait()

    def take(self, message: bytes) -> None:
        for frame in pb.Batch.FromString(message).frames:
            self.frames.append(frame)
            run = self.runs.get(frame.run_id)
            if run is not None:
                run.take(frame)
        self._changed.set()

    def on_end(self) -> None:
        self.is_over = True
        self._changed.set()
        self.close()

    async def finish(self) -> None:
        await self._writer

    async def _write(self) -> None:
        while (message := await self._queue.get()) is not None:
            try:
                await self.stream.write(message)
            except ConnectionError:
                return


class FakeEdge:
    """The listener. Links come out of `next_link` in the order of their registrations."""

    def __init__(self) -> None:
        self.links: list[FakeLink] = []
        self._waiting: deque[FakeLink] = deque()
        self._arrived = asyncio.Event()
        self._readers: list[asyncio.Task[None]] = []
        self._server: transport.LinkServer

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._server.port}"

    async def start(self, port: int = 0) -> None:
        self._server = await transport.serve(f"127.0.0.1:{port}", self._serve, transport="grpcio")

    async def stop(self) -> None:
        for link in self.links:
            link.close()
        await self._server.stop(0.2)
        if self._readers:
            await asyncio.wait(self._readers, timeout=LIMIT_S)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def next_link(self) -> FakeLink:
        """Wait for the next registration."""
        async with asyncio.timeout(LIMIT_S):
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
        return self._waiting.popleft()

    async def _serve(self, stream: MessageStream, peer: str) -> None:
        first = await stream.read()
        if first is None:
            return
        link = FakeLink(stream, pb.Batch.FromString(first).frames[0].register_request)
        self.links.append(link)
        self._waiting.append(link)
        self._arrived.set()
        reading = asyncio.get_running_loop().create_task(self._read(link))
        self._readers.append(reading)
        await link.finish()  # returning ends the stream by status OK; the reader then reads its end

    async def _read(self, link: FakeLink) -> None:
        while (message := await link.stream.read()) is not None:
            link.take(message)
        link.on_end()
