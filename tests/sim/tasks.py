"""Providers of normalized runs: the servers of `servers`, asked by tasks and answering by events."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from iop_fast.config.payload import AdapterSettings, ProviderPayload
from iop_fast.node.adapters import Surroundings
from iop_fast.seams import Head, RunSink, RunTask, TunnelRequest
from iop_fast.wire import runtime_pb2 as pb
from tests.sim.clients import CLIENT_FIELD
from tests.sim.servers import ERROR_EVENT, SimAdapter, SimRun, make_adapter

if TYPE_CHECKING:
    from tests.sim.machines import NodeProgram
    from tests.sim.world import World

REFUSAL = "as the provider says it"


class TaskAdapter(SimAdapter):
    """The adapter of one server of normalized runs in one Node's process."""

    upstream: Any = None  # it takes no tunnels

    def run_adapter(self, provider: ProviderPayload) -> TaskAdapter:
        return self

    def start(self, task: RunTask, sink: RunSink) -> TaskRun:
        return TaskRun(self, task, sink)


class TaskRun(SimRun):
    """One task of a Node at its provider. What it says is characters; how they are written is the Edge's business."""

    is_normalized = True

    def __init__(self, adapter: TaskAdapter, task: RunTask, sink: RunSink) -> None:
        self.task = task
        self.has_refused = False
        number = task.messages[0].parts[0].text.partition(":")[0].encode()
        like = TunnelRequest("", b"", b"", [(CLIENT_FIELD, number)], b"", True, 0, task.model, task.stream)
        super().__init__(adapter, like, sink)

    def _check_request(self) -> None:
        client, task = self.client, self.task
        [message] = task.messages
        served = f"{client.script.model}@{self._server.key[1]}"
        given = (task.model, task.stream, message.role, [part.text for part in message.parts], dict(task.parameters))
        if given != (served, client.script.is_stream, "user", [client.text], {"user": "x" * client.script.padding}):
            client.fail(f"the provider got another task: {str(given)[:300]}")

    def _answer(self, kind: str) -> None:
        if kind in ("error_answer", "early_answer"):
            self._world.count("refused_run")
            self.has_refused = True
            self.is_completed = not self._is_cancelling
            self._end(pb.RunEnd.REFUSED, REFUSAL, 429)
        else:
            self._world.count("normalized_run")
            self._left = self.behaviour.chunks
            self._next_chunk()

    def _say(self, data: bytes) -> None:
        if not self._is_cancelling:
            text = data.decode()
            self.sent += data
            self._sink.on_text(text)

    def _complete(self) -> None:
        if not self._is_cancelling:
            self._sink.on_finish("stop")
        super()._complete()

    def judge_whole(self, head: Head, body: bytes) -> str:
        if self.has_refused:
            error = json.loads(body)["error"]
            right = (head.status, error["message"], error["code"]) == (429, REFUSAL, "rate_limit_exceeded")
            return "" if right else f"run {self.run_id} refused, its client got {head.status} {body!r}"
        if not self.task.stream:
            [choice] = json.loads(body)["choices"]
            said = choice["message"]["content"]
        else:
            *events, done, rest = body.split(b"\n\n")
            if (done, rest) != (b"data: [DONE]", b""):
                return "a stream that ends without its mark"
            said, reasons = read(events)
            if reasons != ["stop"]:
                return f"a stream that ends by {reasons}"
        return "" if said.encode() == self.sent else f"got {len(said)} characters of {len(self.sent)}"

    def judge_cut(self, head: Head, body: bytes) -> str:
        *events, rest = body.split(b"\n\n")
        if events and ERROR_EVENT.fullmatch(events[-1] + b"\n\n"):
            events.pop()
        if rest or b"data: [DONE]" in events:
            return f"a cut stream that ends by {body[-100:]!r}"
        said, _ = read(events)
        return "" if self.sent.startswith(said.encode()) else f"a cut stream is not what run {self.run_id} said"


def read(events: list[bytes]) -> tuple[str, list[str]]:
    """Return the characters and the finish reasons of chunks; comments are left out."""
    choices = [json.loads(event[6:])["choices"][0] for event in events if event.startswith(b"data: ")]
    said = "".join(choice["delta"].get("content") or "" for choice in choices)
    return said, [choice["finish_reason"] for choice in choices if choice["finish_reason"]]


def make_tasked(world: World, program: NodeProgram, settings: AdapterSettings, around: Surroundings) -> TaskAdapter:
    """Be a Node's maker of adapters of normalized runs."""
    made = make_adapter(world, program, settings, around)
    return TaskAdapter(world, program, made.server, around)
