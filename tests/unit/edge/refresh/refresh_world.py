"""An Edge without sockets whose configuration stands in a file: real parts, a clock the test moves, Nodes it scripts.

The loop is a real one, because a refresh plans in a thread. Nothing here waits for time to pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from copy import deepcopy
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import yaml

from iop_fast._core.admission import Outcome, SnapshotRow
from iop_fast._core.clock import VirtualClock
from iop_fast._core.ledger import Lease
from iop_fast._core.wait_queue import Waiter
from iop_fast.config.catalog import build_catalog
from iop_fast.config.loader import load_edge
from iop_fast.config.payload import compile_payloads
from iop_fast.edge.links import LinkLimits, Links
from iop_fast.edge.needs import SURFACE_CHAT
from iop_fast.edge.refresh import Asked, Refresher
from iop_fast.edge.refresh_report import Mode, Report
from iop_fast.edge.registration import Registrar
from iop_fast.edge.runtime import Runtime
from iop_fast.edge.state import EdgeState
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.payload import payload_from_message
from tests.unit.edge.worlds import NS_PER_S, OpenGate, TestStream

LIMIT_S = 10.0

T = TypeVar("T")


def settings_of(**changes: Any) -> dict[str, Any]:
    """Two Nodes with a provider each, one model on both and one on each; `changes` replace sections."""
    made: dict[str, Any] = {
        "models": [
            {"id": "both", "providers": {"p1": "served", "p2": "served"}},
            {"id": "one", "providers": {"p1": "served"}},
            {"id": "two", "providers": {"p2": "served"}},
        ],
        "nodes": [node_of("n1", provider_of("p1")), node_of("n2", provider_of("p2"))],
    }
    return {**made, **changes}


def token_of(node_id: str) -> str:
    """A Node's token."""
    return f"token of {node_id}"


def node_of(node_id: str, *providers: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A Node of the file."""
    return {
        "id": node_id,
        "token_hash_sha256": sha256(token_of(node_id).encode()).hexdigest(),
        "providers": list(providers),
        **more,
    }


def provider_of(provider_id: str, **more: Any) -> dict[str, Any]:
    """A provider of the file, of capacity 1 unless told otherwise."""
    known = {"id": provider_id, "type": "vllm", "endpoint": "http://127.0.0.1:1", "models": ["served"], "capacity": 1}
    return {**known, **more}


def changed(settings: Mapping[str, Any], *path: str | int, to: Any) -> dict[str, Any]:
    """A copy of a configuration with another value at a place."""
    made = deepcopy(dict(settings))
    holder: Any = made
    for part in path[:-1]:
        holder = holder.setdefault(part, {}) if isinstance(holder, dict) else holder[part]
    holder[path[-1]] = to
    return made


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a test; what the loop could only report fails it."""
    failures: list[dict[str, Any]] = []

    async def watched() -> T:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        return await asyncio.wait_for(work, 60)

    result = asyncio.run(watched())
    assert failures == []
    return result


class Caller:
    """A request, as far as admission knows it."""

    def __init__(self) -> None:
        self.lease: Lease | None = None
        self.outcome: Outcome | None = None

    def on_granted(self, lease: Lease) -> None:
        self.lease = lease

    def on_evicted(self, outcome: Outcome) -> None:
        self.outcome = outcome


class ScriptedNode:
    """The Node's end of one session."""

    def __init__(self, world: RefreshWorld, node_id: str) -> None:
        self.world = world
        self.node_id = node_id
        self.stream = TestStream()
        self.response = pb.RegisterResponse()
        self._read = 0
        self._frames: list[pb.Frame] = []
        self.serving = asyncio.create_task(world.registrar.serve(self.stream, "10.0.0.1:1"))

    async def register(self) -> None:
        """Register and take the answer."""
        request = pb.RegisterRequest(
            node_id=self.node_id, token=token_of(self.node_id), instance_id=f"i-{self.node_id}", protocol="1.0"
        )
        await self.send(pb.Frame(register_request=request))
        (frame,) = self.take("register_response")
        self.response = frame.register_response
        assert not self.response.refusal, self.response.detail

    async def ack(self) -> None:
        """Say ready, every provider up, with the revision of the registration."""
        states = [pb.ProviderState(provider_id=one.id, state=pb.ProviderState.UP) for one in self.providers]
        ack = pb.ReadyAck(
            generation=self.response.generation, payload_revision=self.response.payload_revision, providers=states
        )
        await self.send(pb.Frame(ready_ack=ack))

    async def answer(self, revision: int, error: str = "") -> None:
        """Answer a push."""
        answer = pb.NodeConfigRefreshResponse(payload_revision=revision, applied=not error, error=error)
        await self.send(pb.Frame(refresh_response=answer))

    async def send(self, frame: pb.Frame) -> None:
        self.stream.feed(pb.Batch(frames=[frame]).SerializeToString())
        await settle()

    def take(self, kind: str) -> list[pb.Frame]:
        """Take the frames of one kind out of what the Edge wrote."""
        for message in self.stream.sent[self._read :]:
            self._frames += pb.Batch.FromString(message).frames
        self._read = len(self.stream.sent)
        found = [frame for frame in self._frames if frame.WhichOneof("body") == kind]
        self._frames = [frame for frame in self._frames if frame.WhichOneof("body") != kind]
        return found

    def pushed(self) -> list[pb.NodeConfigRefreshRequest]:
        """The pushes that came since the last look."""
        return [frame.refresh_request for frame in self.take("refresh_request")]

    async def wait_pushed(self) -> pb.NodeConfigRefreshRequest:
        """Wait for one push."""
        found: list[pb.NodeConfigRefreshRequest] = []
        await until(lambda: bool(found or found.extend(self.pushed()) or found), f"a push to {self.node_id}")
        (push,) = found
        return push

    @property
    def providers(self) -> Any:
        return payload_from_message(self.response.payload).providers

    async def leave(self) -> None:
        """End the session."""
        self.stream.end()
        await self.serving


class RefreshWorld:
    """One Edge, as far as its configuration, admission and links go."""

    def __init__(self, file: Path) -> None:
        loaded = load_edge(file)
        config = loaded.config
        loop = asyncio.get_running_loop()
        self.file = file
        self.clock = VirtualClock(1_000 * NS_PER_S)
        self.links = Links(LinkLimits.of(config.edge.link))
        runtime = Runtime.build(config, build_catalog(config), compile_payloads(config), file_sha256=loaded.sha256)
        self.gate = OpenGate(runtime.plan(self.links.is_reported_up), self.clock, loop, verify=True)
        self.state = EdgeState(runtime, self.gate, self.links, self.clock, Random(1))
        self.registrar = Registrar(self.state, self.links, loop)
        self.refresher = Refresher(self.state, self.links, str(file), loop)
        self.nodes: list[ScriptedNode] = []
        self.callers: list[Caller] = []

    @property
    def runtime(self) -> Runtime:
        return self.state.runtime

    def write(self, settings: Mapping[str, Any] | str) -> None:
        """Replace the file."""
        text = settings if isinstance(settings, str) else yaml.safe_dump(dict(settings), sort_keys=False)
        self.file.write_text(text, encoding="utf-8")

    async def refresh(self, mode: Mode = "apply", text: str | None = None, *tags: str) -> Report:
        """Refresh; nobody answers a push unless the test does it meanwhile."""
        return await self.refresher.refresh(Asked(mode, "http", text, frozenset(tags) if tags else None))

    async def apply(self, settings: Mapping[str, Any] | str, *, answer: bool = True) -> Report:
        """Write the file and apply it; ready Nodes take what is pushed."""
        self.write(settings)
        asking = asyncio.create_task(self.refresh())
        while answer and not asking.done():
            for node in self.nodes:
                for push in node.pushed():
                    await node.answer(push.payload_revision)
            await asyncio.sleep(0.001)
        return await asking

    async def node(self, node_id: str, *, ack: bool = True) -> ScriptedNode:
        """A registered Node, ready unless told otherwise."""
        node = ScriptedNode(self, node_id)
        self.nodes.append(node)
        await node.register()
        if ack:
            await node.ack()
        return node

    async def ready(self) -> list[ScriptedNode]:
        """Every Node of the file, ready."""
        return [await self.node(node.id) for node in self.runtime.config.nodes]

    def submit(self, model: str, *, long: bool = False) -> Caller:
        """A request: it runs, waits, or was refused."""
        caller = Caller()
        self.callers.append(caller)
        result = self.gate.submit(caller, model, long, SURFACE_CHAT)
        if isinstance(result, Lease):
            caller.lease = result
        elif not isinstance(result, Waiter):
            caller.outcome = result
        return caller

    def release(self, caller: Caller) -> None:
        assert caller.lease is not None
        assert self.gate.release(caller.lease)

    def row(self, provider_id: str) -> SnapshotRow:
        return next(row for row in self.gate.snapshot() if row.provider_id == provider_id)

    def provider_of(self, caller: Caller) -> str:
        assert caller.lease is not None
        return self.gate.provider_key(caller.lease)[1]

    @property
    def next_deadline_ns(self) -> int:
        return self.gate._admission.next_deadline_ns

    def everything(self) -> tuple[object, ...]:
        """What a refused refresh must leave as it was, the Runtime object itself included."""
        sent = [len(node.stream.sent) for node in self.nodes]
        return (
            self.runtime,
            self.gate.snapshot(),
            self.gate.counters(),
            self.gate.max_queue,
            self.next_deadline_ns,
            sent,
        )

    async def close(self) -> None:
        await self.refresher.stop()
        self.links.close_all("the test is over")
        self.gate.close()
        for node in self.nodes:
            node.stream.end()
        await asyncio.gather(*(node.serving for node in self.nodes))


@asynccontextmanager
async def refresh_world(folder: Path, settings: Mapping[str, Any] | None = None) -> AsyncIterator[RefreshWorld]:
    """A world whose file holds `settings`, or those of `settings_of`."""
    file = folder / "edge.yaml"
    text = yaml.safe_dump(dict(settings_of() if settings is None else settings), sort_keys=False)
    await asyncio.to_thread(file.write_text, text)
    world = RefreshWorld(file)
    try:
        yield world
    finally:
        await world.close()


async def settle() -> None:
    """Let everything happen that is due."""
    for _ in range(12):
        await asyncio.sleep(0)


async def until(look: Any, what: str) -> None:
    """Wait until `look` says yes; fail past the limit."""
    deadline = asyncio.get_running_loop().time() + LIMIT_S
    while not look():
        assert asyncio.get_running_loop().time() < deadline, f"not seen within {LIMIT_S} s: {what}"
        await asyncio.sleep(0.001)
