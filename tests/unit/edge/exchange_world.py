"""The Edge's request path on virtual time: real service, exchange, gate, core and scan; scripted client and Nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from random import Random
from types import TracebackType
from typing import Any

from iop_fast.config.catalog import Catalog, CatalogModel, CatalogProvider, principals_of
from iop_fast.config.payload import NodePayload, RuntimeSettings
from iop_fast.config.schema import EdgeConfig
from iop_fast.edge.exchange import Exchange
from iop_fast.edge.runtime import Runtime
from iop_fast.edge.service import EdgeService
from iop_fast.edge.state import EdgeState
from iop_fast.seams import EdgeRun, End, Head, Receiver, RequestHead, RunOpening, RunSaid, TunnelRequest
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.worlds import OpenGate, VirtualLoop

Fields = list[tuple[bytes, bytes]]

UNIX_TIME = 1_700_000_000

OK = End(RunEnd.OK, "", None)
JSON_HEAD = Head(200, b"OK", [(b"Content-Type", b"application/json")])
SSE_HEAD = Head(200, b"OK", [(b"Content-Type", b"text/event-stream; charset=utf-8")])


class FakeDownstream:
    """A client's side that keeps what it is sent and holds the contract of `Downstream`."""

    def __init__(self) -> None:
        self.heads: list[Head] = []
        self.sends: list[tuple[Head | None, list[bytes], bool]] = []
        self.is_ended = False
        self.is_aborted = False
        self.is_gone = False
        self.is_writable = True
        self.refuses_heads = False
        self.on_send: Any = None

    @property
    def is_open(self) -> bool:
        return not (self.is_ended or self.is_aborted or self.is_gone)

    def send(self, head: Head | None, pieces: Sequence[bytes], end: bool) -> None:
        assert not self.is_ended, "sent after the answer's end"
        assert not self.is_aborted, "sent after the answer was cut"
        if self.refuses_heads and head is not None:
            self.refuses_heads = False
            raise ValueError("a head that cannot be written")
        assert (head is None) == bool(self.heads), "the head comes once and first"
        if head is not None:
            self.heads.append(head)
        self.sends.append((head, list(pieces), end))
        self.is_ended = end
        if self.on_send is not None:
            self.on_send()

    def abort(self) -> None:
        assert not self.is_ended
        self.is_aborted = True

    @property
    def status(self) -> int:
        return self.heads[0].status if self.heads else 0

    @property
    def body(self) -> bytes:
        return b"".join(piece for _, pieces, _ in self.sends for piece in pieces)

    def field(self, name: bytes) -> bytes | None:
        """The one value of a field; None where it is absent."""
        values = [value for key, value in self.heads[0].headers if key.lower() == name]
        assert len(values) <= 1, values
        return values[0] if values else None

    @property
    def error(self) -> dict[str, Any]:
        """OpenAI's error object."""
        error: dict[str, Any] = json.loads(self.body)["error"]
        return error


class FakeLink:
    """One session with one Node, driven by the test."""

    def __init__(self, world: ExchangeWorld, node_id: str, generation: int) -> None:
        self.world = world
        self.node_id = node_id
        self.generation = generation
        self.is_up = True
        self.has_room = True
        self.takes_body = True
        self.waiting: list[int] = []
        self.held: dict[int, int] = {}
        self.sends_at_once = True  # the opening frame is put into a message as soon as it is queued
        self.runs: dict[int, EdgeRun] = {}
        self.sent: set[int] = set()
        self.openings: dict[int, Any] = {}
        self.bodies: dict[int, bytearray] = {}
        self.complete: set[int] = set()
        self.grants: dict[int, list[int]] = {}
        self.cancelled: list[int] = []
        self.withdrawn: list[int] = []
        self.forgotten: list[int] = []

    # What an exchange calls.

    def open(self, run_id: int, run: EdgeRun, opening: TunnelRequest | RunOpening) -> None:
        assert self.is_up
        assert run_id not in self.openings, "a run id was used twice"
        assert len(opening.body) <= 65536
        self.runs[run_id] = run
        self.openings[run_id] = opening
        self.bodies[run_id] = bytearray(opening.body)
        if opening.body_complete:
            self.complete.add(run_id)
        if self.sends_at_once:
            self.world.loop.call_soon(self.say_sent, run_id)

    def send_body(self, run_id: int, piece: bytes, complete: bool) -> None:
        assert run_id in self.runs
        assert run_id not in self.complete
        assert 0 < len(piece) <= 65536
        self.bodies[run_id] += piece
        if complete:
            self.complete.add(run_id)

    def wait_to_send(self, run_id: int) -> None:
        assert run_id in self.runs
        self.waiting.append(run_id)

    def hold(self, run_id: int, byte_count: int) -> None:
        assert run_id in self.runs
        self.held[run_id] = byte_count

    def grant(self, run_id: int, byte_count: int) -> None:
        assert run_id in self.runs
        self.grants.setdefault(run_id, []).append(byte_count)

    def cancel(self, run_id: int) -> None:
        assert run_id in self.runs
        self.cancelled.append(run_id)

    def withdraw(self, run_id: int) -> bool:
        if run_id not in self.runs or run_id in self.sent:
            return False
        del self.runs[run_id]
        self.withdrawn.append(run_id)
        return True

    def forget(self, run_id: int) -> None:
        if self.runs.pop(run_id, None) is not None:
            self.forgotten.append(run_id)

    # What the test does.

    def say_sent(self, run_id: int) -> None:
        run = self.runs.get(run_id)
        if run is not None and run_id not in self.sent:
            self.sent.add(run_id)
            run.on_sent(1)

    @property
    def run_ids(self) -> list[int]:
        """Runs in the table, in the order of their opening."""
        return list(self.runs)

    @property
    def last(self) -> int:
        """The run opened last."""
        return next(reversed(self.openings))

    def answer(
        self,
        run_id: int,
        head: Head | None = None,
        *data: bytes,
        taken: bool = False,
        end: End | None = None,
        status: int | None = None,
    ) -> None:
        """Deliver one message's frames to a run. `status` is short for an end with that status."""
        run = self.runs.get(run_id)
        if run is None:
            return
        if status is not None:
            end = End(status, "detail for the log", None)
        run.on_answer(taken, head, list(data), end)
        if end is not None:
            self.runs.pop(run_id, None)

    def say(
        self, run_id: int, *said: RunSaid, taken: bool = False, byte_count: int = 0, end: End | None = None
    ) -> None:
        """Deliver one message's events of a normalized run, as the dispatch of a real session does."""
        run = self.runs.get(run_id)
        if run is None:
            return
        if said:
            run.on_events(taken, list(said), byte_count or 10 * len(said), end)
        else:
            run.on_answer(taken, None, [], end)
        if end is not None:
            self.runs.pop(run_id, None)

    def lose(self) -> None:
        """The session ends: in the order that a real one keeps."""
        self.is_up = False
        self.world.links.pop(self.node_id, None)
        runs = list(self.runs.values())
        self.runs.clear()
        self.world.gate.node_down(self.node_id, self.generation)
        for run in runs:
            run.on_link_lost()


class FakeLinks(dict[str, FakeLink]):
    """Current sessions by Node."""

    def for_lease(self, node_id: str, generation: int) -> FakeLink | None:
        link = self.get(node_id)
        return link if link is not None and link.generation == generation and link.is_up else None


class Call:
    """One request of a client."""

    def __init__(self, receiver: Receiver, downstream: FakeDownstream) -> None:
        self.receiver = receiver
        self.downstream = downstream

    @property
    def exchange(self) -> Exchange:
        assert isinstance(self.receiver, Exchange)
        return self.receiver

    def leave(self) -> None:
        """The client goes away."""
        self.downstream.is_gone = True
        self.receiver.on_client_gone()


def provider_spec(node_id: str, provider_id: str, **changes: Any) -> CatalogProvider:
    values: dict[str, Any] = {
        "node_id": node_id,
        "provider_id": provider_id,
        "type": "vllm",
        "adapter_type": "openai_compat",
        "label": "",
        "capacity": 1,
        "long_context_capacity": 0,
        "priority": 0,
        "enabled": True,
        "health": "up",
    }
    return CatalogProvider(**{**values, **changes})


def runtime_of(
    providers: Sequence[CatalogProvider],
    models: Mapping[str, Mapping[str, str]],
    config: Mapping[str, Any],
    revision: int = 1,
    policies: Mapping[str, Any] | None = None,
) -> Runtime:
    """A Runtime whose `models` map a model id to provider ids and served names, `policies` to generation policies."""
    by_id = {entry.provider_id: entry for entry in providers}
    entries: list[dict[str, Any]] = [{"id": model, "providers": dict(served)} for model, served in models.items()]
    for entry in entries:
        if policies is not None and entry["id"] in policies:
            entry["generation"] = policies[entry["id"]]
    parsed = EdgeConfig.model_validate({"models": entries, **config})
    catalog = Catalog(
        tuple(providers),
        {
            entry.id: CatalogModel(
                entry.id,
                {by_id[provider_id].key: name for provider_id, name in entry.providers.items()},
                entry.context_window_tokens,
            )
            for entry in parsed.models
        },
        principals_of(parsed.openai),
    )
    nodes = dict.fromkeys(entry.node_id for entry in providers)
    payloads = {node: NodePayload(RuntimeSettings(0, 0), (), ()) for node in nodes}
    return Runtime.build(parsed, catalog, payloads, revision=revision)


class ExchangeWorld:
    """One Edge behind its front: one provider `p1` of capacity 1 on Node `n1` unless told otherwise."""

    def __init__(
        self,
        providers: Sequence[CatalogProvider] | None = None,
        models: Mapping[str, Mapping[str, str]] | None = None,
        *,
        ready: bool = True,
        policies: Mapping[str, Any] | None = None,
        **config: Any,
    ) -> None:
        self.loop = VirtualLoop()
        self.providers = list(providers) if providers is not None else [provider_spec("n1", "p1")]
        self.models = (
            dict(models) if models is not None else {"m": {entry.provider_id: "served-m" for entry in self.providers}}
        )
        self.config = config
        runtime = runtime_of(self.providers, self.models, config, policies=policies)
        self.gate = OpenGate(runtime.plan(lambda key: True), self.loop.clock, self.loop, verify=True)
        self.links = FakeLinks()
        self.edge = EdgeState(runtime, self.gate, self.links, self.loop.clock, Random(7), lambda: UNIX_TIME)
        self.service = EdgeService(self.edge)
        self._generation = 0
        if ready:
            for node_id in dict.fromkeys(entry.node_id for entry in self.providers):
                self.connect(node_id)

    def __enter__(self) -> ExchangeWorld:
        self.loop.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.gate.close()
        self.loop.__exit__(kind, error, at)

    def connect(self, node_id: str = "n1") -> FakeLink:
        """A Node becomes ready."""
        self._generation += 1
        link = self.links[node_id] = FakeLink(self, node_id, self._generation)
        assert self.gate.node_ready(node_id, self._generation, {})
        return link

    @property
    def link(self) -> FakeLink:
        """The session of the first Node."""
        return self.links[self.providers[0].node_id]

    def refresh(self, providers: Sequence[CatalogProvider], models: Mapping[str, Mapping[str, str]]) -> None:
        runtime = runtime_of(providers, models, self.config, self.edge.runtime.revision + 1)
        self.edge.swap(runtime, lambda key: True)

    def open(
        self,
        *,
        path: bytes = b"/v1/chat/completions",
        method: bytes = b"POST",
        headers: Fields | None = None,
        query: bytes = b"",
        length: int | None = None,
    ) -> Call:
        """Begin a request; its body follows."""
        downstream = FakeDownstream()
        head = RequestHead(method, path, query, list(headers or []), length)
        return Call(self.service.open(head, downstream), downstream)

    def post(self, body: bytes | Mapping[str, Any] | None = None, *, model: str = "m", **head: Any) -> Call:
        """A whole request, as one piece; a chat of one message for `model` unless told otherwise."""
        if body is None:
            body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        call = self.open(length=len(content), **head)
        call.receiver.on_body(content)
        call.receiver.on_body_complete()
        self.loop.settle()
        return call

    def get(self, path: bytes, method: bytes = b"GET", headers: Fields | None = None) -> FakeDownstream:
        """A request without a body."""
        call = self.open(path=path, method=method, headers=headers)
        call.receiver.on_body_complete()
        return call.downstream

    @property
    def in_flight(self) -> int:
        return sum(row.in_flight for row in self.gate.snapshot())

    def assert_idle(self) -> None:
        """Nothing is held, waited for or remembered."""
        self.loop.settle()
        assert [row.in_flight for row in self.gate.snapshot()] == [0] * len(self.providers)
        assert [row.long_in_flight for row in self.gate.snapshot()] == [0] * len(self.providers)
        assert self.gate.waiting == 0
        assert self.edge.budget.used == 0
        assert len(self.edge.cancelling) == 0
        assert all(not link.runs for link in self.links.values())
        assert self.gate.counters()["reclaimed"] == 0
        assert "broken" not in self.edge.counters


TWO_NODES = [provider_spec("n1", "p1"), provider_spec("n2", "p2")]


def assert_error(call: Call, status: int, code: str) -> None:
    """The whole answer is that error."""
    downstream = call.downstream
    assert (downstream.status, downstream.error["code"]) == (status, code)
    assert downstream.is_ended
    assert downstream.field(b"x-request-id") is not None
    assert downstream.field(b"content-length") == b"%d" % len(downstream.body)
