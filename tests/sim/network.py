"""The way between one Node's host and the Edge: dialling, the pipes in use, and what happens to them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING
from zlib import crc32

from iop_fast._hot.frames import encode_frame
from iop_fast.seams import MessageStream
from iop_fast.wire import runtime_pb2 as pb
from tests.sim.pipes import Lane, Pipe

if TYPE_CHECKING:
    from tests.sim.machines import NodeProgram
    from tests.sim.world import World

# What an attempt takes to a host that does not answer.
CONNECT_LIMIT_S = 5.0


class Network:
    """All pipes of one host, and the faults of the next one."""

    def __init__(self, world: World, node_id: str) -> None:
        self.is_cut_off = False  # nothing gets through and nobody is told
        self.next_ack = ""  # what happens to the ready ack of the next session: "" | lost | late | twice | stale
        self.pipes: list[tuple[NodeProgram, Pipe]] = []
        self._world = world
        self._node_id = node_id
        self._dialled = 0

    async def dial(self, program: NodeProgram) -> NodeEnd:
        """Open a stream, in the Node's process; raise ConnectionError."""
        world = self._world
        await asyncio.sleep(world.script.link_delay_s)
        if self.is_cut_off or world.edge.process.is_frozen:
            await asyncio.sleep(CONNECT_LIMIT_S)
            raise ConnectionError("no answer")
        if not world.edge.is_listening:
            raise ConnectionError("connection refused")
        self._dialled += 1
        pipe = Pipe(world.loop, delay_s=world.script.link_delay_s, window_bytes=world.script.link_window_bytes)
        self._forget_old()
        self.pipes.append((program, pipe))
        world.pipes.append(pipe)
        name = f"{program.name}/{self._dialled}"
        world.note(f"{name} dials")
        world.edge.accept(Recorder(world, f"edge>{name}", pipe.edge), name)
        ack, self.next_ack = self.next_ack, ""
        return NodeEnd(world, f"{name}>edge", pipe.node, ack)

    def open_pipes(self, program: NodeProgram | None = None) -> list[Pipe]:
        """The pipes in use, of one process or of all."""
        self._forget_old()
        return [pipe for owner, pipe in self.pipes if program is None or owner is program]

    def lanes(self) -> list[Lane]:
        """Both directions of every pipe in use."""
        return [lane for pipe in self.open_pipes() for lane in (pipe.to_edge, pipe.to_node)]

    def lose(self, program: NodeProgram, is_host_gone: bool) -> None:
        """A process is gone."""
        for pipe in self.open_pipes(program):
            if is_host_gone:
                pipe.silence()
            else:
                pipe.lose()
        self.pipes = [(owner, pipe) for owner, pipe in self.pipes if owner is not program]

    def _forget_old(self) -> None:
        self.pipes = [(owner, pipe) for owner, pipe in self.pipes if not (pipe.edge.is_closed and pipe.node.is_closed)]


class Recorder:
    """A MessageStream that notes what is written to it."""

    def __init__(self, world: World, name: str, stream: MessageStream) -> None:
        self._world = world
        self._name = name
        self._stream = stream

    async def read(self) -> bytes | None:
        return await self._stream.read()

    async def write(self, message: bytes) -> None:
        self._world.note(f"{self._name} {len(message)} bytes {crc32(message):08x}")
        await self._stream.write(message)

    def abandon(self) -> None:
        self._stream.abandon()


class NodeEnd(Recorder):
    """A Node's end of a stream, where its ready ack can get lost, come late, come twice or after one that is stale.

    A late ack travels at the head of the second message after its own, which is a heartbeat or later: nothing is
    written that the Node did not write in between. A stale ack goes in the place of the true one, which is late then.
    The world is told of the true one when it leaves.
    """

    def __init__(self, world: World, name: str, stream: MessageStream, ack: str) -> None:
        super().__init__(world, name, stream)
        self._fault = ack
        self._is_acked = False
        self._kept: pb.Frame | None = None
        self._kept_for = 0

    async def write(self, message: bytes) -> None:
        if not self._is_acked:
            message = self._look_for_ack(message)
        elif self._kept is not None:
            self._kept_for -= 1
            if self._kept_for == 0:
                kept, self._kept = self._kept, None
                message = self._true_ack(kept) + message
        if message:
            await super().write(message)

    def _look_for_ack(self, message: bytes) -> bytes:
        frames = list(pb.Batch.FromString(message).frames)
        ack = next((frame for frame in frames if frame.WhichOneof("body") == "ready_ack"), None)
        if ack is None:
            return message
        self._is_acked = True
        frames.remove(ack)
        others = b"".join(encode_frame(frame.SerializeToString()) for frame in frames)
        if not self._fault:
            return others + self._true_ack(ack)
        self._world.count(f"ack_{self._fault}")
        if self._fault == "lost":
            return others
        if self._fault == "twice":
            return others + self._true_ack(ack) * 2
        self._kept, self._kept_for = ack, 2
        if self._fault == "late":
            return others
        stale = pb.Frame()
        stale.CopyFrom(ack)
        stale.ready_ack.generation -= 1
        return others + encode_frame(stale.SerializeToString())

    def _true_ack(self, ack: pb.Frame) -> bytes:
        self._world.acks[ack.ready_ack.generation] = None
        return encode_frame(ack.SerializeToString())
