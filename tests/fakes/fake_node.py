"""A scripted Node: speaks runtime.proto over grpc.aio and does exactly what a test tells it, right or wrong.

    node = FakeNode(edge.link_port, "n1", token)
    await node.register()          # connects; the answer is in node.response
    await node.ack()               # may be held, wrong, or said twice
    run = await node.next_run()    # a ProviderTunnelRequest came
    await run.answer(b'{"ok":true}')
    await node.close()

It reads all the time unless it is frozen, keeps what it read, and beats only when told to.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, TypeVar

from iop_fast.wire import runtime_pb2 as pb  # imports grpc_env before grpc

import grpc.aio  # isort: skip

LIMIT_S = 10.0
METHOD = "/iop.runtime.v1.Runtime/Session"

T = TypeVar("T")


class FakeRun:
    """A run as the Node's side sees it: a tunnel, or a normalized one (`is_normalized`, `opening`)."""

    def __init__(self, node: FakeNode, frame: pb.Frame) -> None:
        self.node = node
        self.run_id = frame.run_id
        self.is_normalized = frame.WhichOneof("body") == "run_request"
        self.request = frame.tunnel_request
        self.opening = frame.run_request
        first = self.opening.input if self.is_normalized else self.request.body
        self.body = bytearray(first)
        self.is_complete = self.opening.input_complete if self.is_normalized else self.request.body_complete
        self.is_cancelled = False
        self.window = 256 * 1024

    async def taken(self) -> None:
        await self.node.send(pb.Frame(run_id=self.run_id, taken=pb.Taken()))

    async def head(self, status: int = 200, *headers: tuple[bytes, bytes]) -> None:
        fields = [pb.Header(name=name, value=value) for name, value in headers]
        await self.node.send(pb.Frame(run_id=self.run_id, head=pb.ResponseHead(status=status, headers=fields)))

    async def data(self, data: bytes) -> None:
        await self.node.send(pb.Frame(run_id=self.run_id, data=data))

    async def end(self, status: int = pb.RunEnd.OK, detail: str = "", usage: pb.Usage | None = None) -> None:
        end = pb.RunEnd(status=status, detail=detail, usage=usage)  # type: ignore[arg-type]
        await self.node.send(pb.Frame(run_id=self.run_id, end=end))
        self.node.runs.pop(self.run_id, None)

    @property
    def input(self) -> pb.RunInput:
        """What a normalized run works on; all of it must have come."""
        assert self.is_complete
        assert len(self.body) == self.opening.input_length
        return pb.RunInput.FromString(bytes(self.body))

    async def say(self, *events: pb.RunEvent, end: pb.RunEnd | None = None) -> None:
        """Send events of a normalized run in one message, and maybe its end."""
        frames = [pb.Frame(run_id=self.run_id, run_event=event) for event in events]
        if end is not None:
            frames.append(pb.Frame(run_id=self.run_id, end=end))
            self.node.runs.pop(self.run_id, None)
        await self.node.send(*frames)

    async def answer(self, body: bytes, status: int = 200, content_type: bytes = b"application/json") -> None:
        """Answer whole, in one message."""
        length = str(len(body)).encode()
        fields = [
            pb.Header(name=b"content-type", value=content_type),
            pb.Header(name=b"content-length", value=length),
        ]
        await self.node.send(
            pb.Frame(run_id=self.run_id, taken=pb.Taken()),
            pb.Frame(run_id=self.run_id, head=pb.ResponseHead(status=status, headers=fields)),
            pb.Frame(run_id=self.run_id, data=body),
            pb.Frame(run_id=self.run_id, end=pb.RunEnd()),
        )
        self.node.runs.pop(self.run_id, None)


class FakeNode:
    """One connection of a Node to an Edge at a loopback port; several may claim the same id."""

    def __init__(
        self, port: int, node_id: str, token: str, *, instance_id: str = "instance-1", protocol: str = "1.0"
    ) -> None:
        self.port = port
        self.node_id = node_id
        self.token = token
        self.instance_id = instance_id
        self.protocol = protocol
        self.response = pb.RegisterResponse()
        self.frames: list[pb.Frame] = []  # session frames in order of arrival
        self.runs: dict[int, FakeRun] = {}
        self.has_ended = False
        self.messages_read = 0
        self.on_run: Callable[[FakeRun], Any] | None = None
        self._new_runs: deque[FakeRun] = deque()
        self._channel: grpc.aio.Channel | None = None
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._beats: asyncio.Task[None] | None = None
        self._scripts: list[asyncio.Task[Any]] = []
        self._changed = asyncio.Event()
        self._may_read = asyncio.Event()
        self._may_read.set()
        self._write_lock = asyncio.Lock()

    async def __aenter__(self) -> FakeNode:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    # The session.

    async def connect(self) -> None:
        """Open the stream and say nothing."""
        self._channel = grpc.aio.insecure_channel(
            f"127.0.0.1:{self.port}",
            options=[("grpc.use_local_subchannel_pool", 1), ("grpc.enable_http_proxy", 0)],
        )
        self._call = self._channel.stream_stream(METHOD)()
        self._reader = asyncio.create_task(self._read())

    async def register(self) -> pb.RegisterResponse:
        """Connect, register and wait for the answer, accepted or refused."""
        await self.connect()
        await self.send(
            pb.Frame(
                register_request=pb.RegisterRequest(
                    node_id=self.node_id,
                    token=self.token,
                    instance_id=self.instance_id,
                    protocol=self.protocol,
                    software="fake 1",
                    host="test",
                )
            )
        )
        self.response = (await self.frame("register_response")).register_response
        return self.response

    async def ack(
        self,
        states: Iterable[pb.ProviderState] | None = None,
        *,
        generation: int | None = None,
        revision: int | None = None,
    ) -> None:
        """Say ready; by default truthfully, with every provider up."""
        if states is None:
            states = [
                pb.ProviderState(provider_id=provider.id, state=pb.ProviderState.UP)
                for provider in self.response.payload.providers
            ]
        ack = pb.ReadyAck(
            generation=self.response.generation if generation is None else generation,
            payload_revision=self.response.payload_revision if revision is None else revision,
            providers=states,
        )
        await self.send(pb.Frame(ready_ack=ack))

    async def report(self, **states: int) -> None:
        """Report provider states that changed."""
        changed = [
            pb.ProviderState(provider_id=provider_id, state=state)  # type: ignore[arg-type]
            for provider_id, state in states.items()
        ]
        await self.send(pb.Frame(provider_states=pb.ProviderStates(providers=changed)))

    async def heartbeat(self, run_ids: Iterable[int] | None = None) -> None:
        """Beat once, with the runs it knows or those it is told to name."""
        named = sorted(self.runs if run_ids is None else run_ids)
        await self.send(pb.Frame(heartbeat=pb.Heartbeat(messages_read=self.messages_read, run_ids=named)))

    def beat_every(self, interval_s: float) -> None:
        """Beat in the background, as a Node does, until frozen or closed."""

        async def beat() -> None:
            while self._may_read.is_set():
                await self.heartbeat()
                await asyncio.sleep(interval_s)

        self._beats = asyncio.create_task(beat())

    def freeze(self) -> None:
        """Stop reading and beating, and keep the connection: the process hangs."""
        self._may_read.clear()  # a write under way is left alone: cancelling it would end the stream

    def thaw(self) -> None:
        """Read again."""
        self._may_read.set()

    async def send(self, *frames: pb.Frame) -> None:
        """Send frames in one message."""
        async with self._write_lock:
            await self._call.write(pb.Batch(frames=frames).SerializeToString())

    async def send_late(self, *frames: pb.Frame) -> None:
        """Send frames on a session that the Edge may have ended: whether gRPC takes them is a matter of luck."""
        with contextlib.suppress(grpc.aio.BaseError, asyncio.InvalidStateError, asyncio.CancelledError):
            await self.send(*frames)

    async def send_bytes(self, message: bytes) -> None:
        """Send a message that need not be one."""
        async with self._write_lock:
            await self._call.write(message)

    async def half_close(self) -> None:
        """Say that nothing more comes, as a Node that leaves does."""
        await self._call.done_writing()

    async def close(self) -> None:
        """Cut the connection."""
        self._may_read.set()
        tasks = [task for task in (self._beats, *self._scripts) if task is not None]
        for task in tasks:
            task.cancel()
        if self._call is not None:
            self._call.cancel()
        if self._reader is not None:
            tasks.append(self._reader)
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._channel is not None:
            await self._channel.close()

    # Waiting.

    async def frame(self, kind: str) -> pb.Frame:
        """Wait for a session frame of a kind and take it out of `frames`."""

        def take() -> pb.Frame | None:
            for index, frame in enumerate(self.frames):
                if frame.WhichOneof("body") == kind:
                    return self.frames.pop(index)
            return None

        return await self.until(take, f"a frame {kind}")

    async def next_run(self) -> FakeRun:
        """Wait for a run to be opened."""
        return await self.until(lambda: self._new_runs.popleft() if self._new_runs else None, "a run")

    async def ended(self) -> None:
        """Wait for the stream's end."""
        await self.until(lambda: self.has_ended or None, "the end of the stream")

    async def until(self, look: Callable[[], T | None], what: str) -> T:
        """Wait until `look` returns something; fail past the limit."""
        deadline = asyncio.get_running_loop().time() + LIMIT_S
        while (found := look()) is None:
            self._changed.clear()
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                raise AssertionError(f"{self.node_id}: waited {LIMIT_S} s in vain for {what}")
            try:
                await asyncio.wait_for(self._changed.wait(), left)
            except TimeoutError:
                continue
        return found

    # Reading.

    async def _read(self) -> None:
        try:
            while True:
                await self._may_read.wait()
                message = await self._call.read()
                if message is grpc.aio.EOF:
                    break
                self.messages_read += 1
                for frame in pb.Batch.FromString(message).frames:
                    self._take(frame)
                self._changed.set()
        except (grpc.aio.AioRpcError, asyncio.CancelledError):
            pass  # the test closed it, or the Edge did: `has_ended` says so
        finally:
            self.has_ended = True
            self._changed.set()

    def _take(self, frame: pb.Frame) -> None:
        kind = frame.WhichOneof("body")
        run = self.runs.get(frame.run_id)
        if kind in ("tunnel_request", "run_request"):
            run = self.runs[frame.run_id] = FakeRun(self, frame)
            if self.on_run is None:
                self._new_runs.append(run)
            else:
                self._scripts.append(asyncio.create_task(self.on_run(run)))
        elif not frame.run_id:
            self.frames.append(frame)
        elif run is not None and kind == "request_body":
            run.body += frame.request_body.piece
            run.is_complete = frame.request_body.complete
        elif run is not None and kind == "window":
            run.window += frame.window.bytes
        elif run is not None and kind == "cancel":
            run.is_cancelled = True
