"""An Edge's link side on virtual time: real core, gate, links and registration over in-memory streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from random import Random
from typing import Any

from iop_fast._core.admission import SnapshotRow
from iop_fast._core.ledger import Lease
from iop_fast._core.wait_queue import Waiter
from iop_fast.config.catalog import Catalog, CatalogModel, CatalogProvider
from iop_fast.config.payload import AdapterSettings, NodePayload, ProviderPayload, RuntimeSettings, TimeoutSettings
from iop_fast.config.schema import EdgeConfig
from iop_fast.edge.gate import Gate
from iop_fast.edge.link import NodeLink
from iop_fast.edge.links import LinkLimits, Links
from iop_fast.edge.needs import SURFACE_CHAT
from iop_fast.edge.registration import Registrar
from iop_fast.edge.runtime import Runtime
from iop_fast.edge.state import EdgeState
from iop_fast.seams import End, Head, TunnelRequest
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.worlds import TestStream, VirtualLoop

TOKEN = "node-token"


def provider(provider_id: str, node_id: str = "n1", **changes: Any) -> CatalogProvider:
    """A provider of the catalog; capacity 4 and health auto unless said otherwise."""
    values: dict[str, Any] = {
        "node_id": node_id,
        "provider_id": provider_id,
        "type": "vllm",
        "adapter_type": "openai_compat",
        "label": "",
        "capacity": 4,
        "long_context_capacity": 0,
        "priority": 0,
        "enabled": True,
        "health": "auto",
    }
    return CatalogProvider(**{**values, **changes})


def payload_of(providers: Iterable[CatalogProvider]) -> NodePayload:
    """The payload that tells a Node of these providers."""
    return NodePayload(
        RuntimeSettings(0, 0),
        (),
        tuple(
            ProviderPayload(
                id=entry.provider_id,
                type=entry.type,
                label=entry.label,
                adapter_type=entry.adapter_type,
                adapter="",
                settings=AdapterSettings("", "openai_compat", "http://127.0.0.1:1", "", "", "", ()),
                models=("served",),
                timeouts=TimeoutSettings(5000, 600000, 600000),
                enabled=entry.enabled,
                health=entry.health,
                capacity=entry.capacity,
                long_context_capacity=entry.long_context_capacity,
                priority=entry.priority,
            )
            for entry in providers
        ),
    )


def build_runtime(providers: list[CatalogProvider], revision: int = 1, previous: Runtime | None = None) -> Runtime:
    """A Runtime whose one model `m` is served by every provider."""
    nodes = list(dict.fromkeys(entry.node_id for entry in providers))
    config = EdgeConfig.model_validate(
        {"nodes": [{"id": node, "token_hash_sha256": sha256(TOKEN.encode()).hexdigest()} for node in nodes]}
    )
    catalog = Catalog(tuple(providers), {"m": CatalogModel("m", {entry.key: "served" for entry in providers}, None)})
    payloads = {node: payload_of(entry for entry in providers if entry.node_id == node) for node in nodes}
    return Runtime.build(config, catalog, payloads, revision=revision, previous=previous)


class Peer:
    """The Node's end of one stream, driven by the test."""

    def __init__(self, world: LinkWorld, node_id: str, instance_id: str) -> None:
        self.world = world
        self.node_id = node_id
        self.instance_id = instance_id
        self.stream = TestStream()
        self.messages_read = 0
        self.frames: list[pb.Frame] = []
        self.response = pb.RegisterResponse()
        self.registered = 0  # how often the transport was told so
        address = f"10.0.0.1:{world.next_port()}"
        self.serving = world.loop.create_task(
            world.registrar.serve(self.stream, address, on_registered=self._on_registered)
        )

    def _on_registered(self) -> None:
        self.registered += 1

    def send(self, *frames: pb.Frame) -> None:
        """Say something and let the Edge take it."""
        self.stream.feed(pb.Batch(frames=frames).SerializeToString())
        self.world.loop.settle()

    def register(self, **changes: Any) -> pb.RegisterResponse:
        """Register and return the answer."""
        fields: dict[str, Any] = {
            "node_id": self.node_id,
            "token": TOKEN,
            "instance_id": self.instance_id,
            "protocol": "1.0",
            "software": "test 1",
        }
        self.send(pb.Frame(register_request=pb.RegisterRequest(**{**fields, **changes})))
        frames = self.take("register_response")
        assert len(frames) == 1
        self.response = frames[0].register_response
        return self.response

    def ack(self, states: Mapping[str, int] | None = None, generation: int = 0, revision: int = 0) -> None:
        """Say ready; every provider of the payload is up unless told otherwise."""
        if states is None:
            states = {entry.id: pb.ProviderState.UP for entry in self.response.payload.providers}
        ack = pb.ReadyAck(
            generation=generation or self.response.generation,
            payload_revision=revision or self.response.payload_revision,
            providers=provider_states(states),
        )
        self.send(pb.Frame(ready_ack=ack))

    def report(self, **states: int) -> None:
        self.send(pb.Frame(provider_states=pb.ProviderStates(providers=provider_states(states))))

    def beat(self, *run_ids: int, messages_read: int | None = None) -> None:
        """A heartbeat that names these runs."""
        self.read()
        count = self.messages_read if messages_read is None else messages_read
        self.send(pb.Frame(heartbeat=pb.Heartbeat(messages_read=count, run_ids=run_ids)))

    def read(self) -> list[pb.Frame]:
        """Read what the Edge wrote; return everything not taken yet."""
        for message in self.stream.sent[self.messages_read :]:
            self.frames += pb.Batch.FromString(message).frames
        self.messages_read = len(self.stream.sent)
        return self.frames

    def take(self, kind: str) -> list[pb.Frame]:
        """Take the frames of one kind out of what was read."""
        found = [frame for frame in self.read() if frame.WhichOneof("body") == kind]
        self.frames = [frame for frame in self.frames if frame.WhichOneof("body") != kind]
        return found

    @property
    def link(self) -> NodeLink | None:
        """This stream's session while it is the current one."""
        link = self.world.links.current(self.node_id)
        return link if link is not None and link.generation == self.response.generation else None


class Request:
    """An owner and a run: what an exchange is to admission and to a link, recorded."""

    def __init__(self, world: LinkWorld, *, opens: bool = True) -> None:
        self.world = world
        self.opens = opens
        self.lease: Lease | None = None
        self.waiter: Waiter | None = None
        self.outcome: object = None
        self.link: NodeLink | None = None
        self.provider_id = ""
        self.log: list[Any] = []
        self.fails_on = ""

    # Owner

    def on_granted(self, lease: Lease) -> None:
        self.lease = lease
        self.waiter = None
        if self.opens:
            self.open()

    def on_evicted(self, outcome: object) -> None:
        self.outcome = outcome
        self.waiter = None

    # EdgeRun

    def on_sent(self, message_number: int) -> None:
        self._note("sent", message_number)

    def on_answer(self, taken: bool, head: Head | None, data: list[bytes], end: End | None) -> None:
        self._note("answer", (taken, head, b"".join(data), end))
        if end is not None:
            self.release()

    def on_window(self, byte_count: int) -> None:
        self._note("window", byte_count)

    def on_link_lost(self) -> None:
        self._note("lost", None if self.lease is None else self.lease.is_held)

    def _note(self, kind: str, value: object) -> None:
        self.log.append((kind, value))
        if self.fails_on == kind:
            raise ValueError(f"scripted failure of {kind}")

    # What the test does with it

    @property
    def run_id(self) -> int:
        assert self.lease is not None
        return self.lease.lease_id

    @property
    def kinds(self) -> list[str]:
        return [kind for kind, _ in self.log]

    @property
    def end(self) -> End | None:
        """The end that it got, if any."""
        ends = [value[3] for kind, value in self.log if kind == "answer" and value[3] is not None]
        assert len(ends) <= 1, ends
        return ends[0] if ends else None

    def open(self) -> None:
        assert self.lease is not None
        node_id, self.provider_id = self.world.gate.provider_key(self.lease)
        self.link = self.world.links.for_lease(node_id, self.lease.generation)
        assert self.link is not None
        self.open_on(self.link)

    def open_on(self, link: NodeLink) -> None:
        headers = [(b"content-type", b"application/json")]
        request = TunnelRequest("p1", b"POST", b"/v1/chat/completions", headers, b"{}", True, 2, "served", False)
        link.open(self.run_id, self, request._replace(provider_id=self.provider_id))

    def release(self) -> None:
        if self.lease is not None and self.lease.is_held:
            self.world.gate.release(self.lease)


class LinkWorld:
    """One Edge, as far as its links go."""

    def __init__(self, loop: VirtualLoop, providers: list[CatalogProvider]) -> None:
        self.loop = loop
        runtime = build_runtime(providers)
        self.links = Links(LinkLimits.of(runtime.config.edge.link))
        self.gate = Gate(runtime.plan(self.links.is_reported_up), loop.clock, loop, verify=True)
        self.edge = EdgeState(runtime, self.gate, self.links, loop.clock, Random(1))
        self.registrar = Registrar(self.edge, self.links, loop)
        self._peers: list[Peer] = []

    def next_port(self) -> int:
        return 40000 + len(self._peers)

    def peer(self, node_id: str = "n1", instance_id: str = "i1") -> Peer:
        """A stream that has said nothing yet."""
        peer = Peer(self, node_id, instance_id)
        self._peers.append(peer)
        self.loop.settle()
        return peer

    def ready(self, node_id: str = "n1", instance_id: str = "i1", states: Mapping[str, int] | None = None) -> Peer:
        """A registered and acked Node."""
        peer = self.peer(node_id, instance_id)
        peer.register()
        peer.ack(states)
        return peer

    def submit(self, *, opens: bool = True) -> Request:
        """A request for `m`: granted, queued or refused at once."""
        request = Request(self, opens=opens)
        result = self.gate.submit(request, "m", False, SURFACE_CHAT)
        if isinstance(result, Lease):
            request.on_granted(result)
        elif isinstance(result, Waiter):
            request.waiter = result
        else:
            request.outcome = result
        self.loop.settle()
        return request

    def refresh(self, providers: list[CatalogProvider]) -> None:
        """Take over another configuration, without pushing it."""
        before = self.edge.runtime
        self.edge.swap(build_runtime(providers, before.revision + 1, before), self.links.is_reported_up)

    def row(self, provider_id: str = "p1") -> SnapshotRow:
        return next(row for row in self.gate.snapshot() if row.provider_id == provider_id)

    def close(self) -> None:
        """End every stream and wait for what served it."""
        self.links.close_all("the test is over")
        self.gate.close()
        for peer in self._peers:
            peer.stream.end()
        self.loop.settle()
        assert all(peer.serving.done() for peer in self._peers)
        for peer in self._peers:
            peer.serving.result()


def provider_states(states: Mapping[str, int]) -> list[pb.ProviderState]:
    return [
        pb.ProviderState(provider_id=provider_id, state=state)  # type: ignore[arg-type]
        for provider_id, state in states.items()
    ]
