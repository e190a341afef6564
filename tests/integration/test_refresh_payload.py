"""A payload far above gRPC's default message limit is pushed to a Node that serves a stream meanwhile."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import yaml

from iop_fast.edge.refresh import Asked
from iop_fast.edge.refresh_report import Status
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.payload import PayloadAssembler
from tests.fakes.fake_node import FakeNode
from tests.integration.edge_harness import CHAT, bench, config, provider, run, until

PROVIDERS = 250
# One list, which the file writes once and refers to: a small file with a large meaning.
MODELS = ["served", *(f"{'a-long-name-of-a-served-model' * 8}-{number}" for number in range(80))]


def settings(capacity: int) -> dict[str, Any]:
    many = [provider(f"p{number}", capacity, models=MODELS) for number in range(PROVIDERS)]
    made = config({"n1": many})
    made["models"][0]["providers"] = {"p0": "served"}
    return made


def dump(capacity: int) -> str:
    return str(yaml.dump(settings(capacity), Dumper=yaml.CSafeDumper))


async def assemble(node: FakeNode, request: pb.NodeConfigRefreshRequest) -> Any:
    """Put the pieces of a push together."""
    whole = PayloadAssembler(request.payload_revision, request.payload_bytes, request.payload_sha256)
    while True:
        payload = whole.feed((await node.frame("config_piece")).config_piece)
        if payload is not None:
            return payload


def test_a_payload_over_4_mib_reaches_the_node_and_harms_no_stream(tmp_path: Path) -> None:
    """B13: configuration of a fleet, in pieces; two pushes in a row keep their order."""
    file = tmp_path / "edge.yaml"

    async def work() -> None:
        await asyncio.to_thread(file.write_text, dump(1))
        async with bench(settings(1), file) as b:
            node = b.node("n1")
            await node.register()
            registered = await assemble(node, node.response)  # type: ignore[arg-type]
            await node.ack([pb.ProviderState(provider_id=one.id, state=1) for one in registered.providers])
            await until(lambda: b.edge.links.was_ready, "the node is ready")
            asking = asyncio.ensure_future(
                b.client.post(b.http(CHAT), json={"model": "m", "stream": True, "messages": []})
            )
            stream = await node.next_run()
            await stream.taken()
            await stream.head(200, (b"content-type", b"text/event-stream"))
            answer = await asking

            reports = []
            for capacity in (2, 3):
                await asyncio.to_thread(file.write_text, dump(capacity))
                reports.append(asyncio.ensure_future(b.edge.refresher.refresh(Asked("apply", "http"))))
                await until(lambda capacity=capacity: b.edge.state.runtime.revision == capacity, "the commit")
            for number in range(5):
                await stream.data(b"data: %d\n\n" % number)
                assert await answer.content.readexactly(9) == b"data: %d\n\n" % number
            for revision in (2, 3):
                request = (await node.frame("refresh_request")).refresh_request
                assert (request.payload_revision, request.HasField("payload")) == (revision, False)
                assert request.payload_bytes > 4 * 1024 * 1024
                payload = await assemble(node, request)
                assert {one.capacity for one in payload.providers} == {revision}
                await node.send(
                    pb.Frame(refresh_response=pb.NodeConfigRefreshResponse(payload_revision=revision, applied=True))
                )
            for report in await asyncio.gather(*reports):
                assert report.status is Status.APPLIED
                assert [push.status for push in report.node_pushes] == ["acked"]
            await stream.end()
            assert await answer.read() == b""
            await b.idle()

    run(work())
