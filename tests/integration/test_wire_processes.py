"""Edge and Node as processes, each with the transport that its file names: either answers through either."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.fakes.openai_backend import FakeBackend
from tests.integration.edge_harness import provider, run, until
from tests.integration.fleet import fleet
from tests.integration.wire_pairs import PAIRS, Pair


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_an_edge_and_a_node_need_not_have_the_same_transport(pair: Pair, tmp_path: Path) -> None:
    async def work() -> None:
        async with FakeBackend() as backend:
            nodes = {"n1": [provider("p1", 1, endpoint=backend.url)]}
            async with fleet(tmp_path, nodes, edge={"link": {"transport": pair.edge}}) as f:
                node = await f.start_node("n1", link={"transport": pair.node})
                assert (await f.chat(user="x" * 300_000))[0] == 200
                assert f.edge is not None
                f.edge.signal(signal.SIGTERM)
                assert await f.edge.end() == 0
                await f.start_edge()
                await until(lambda: f.has_link("n1", "ready"), "the Node is back")
                assert (await f.chat())[0] == 200
                loaded = {kind: loads_grpc(f.started[number].pid) for kind, number in (("edge", -1), ("node", 1))}
                assert loaded == {"edge": pair.edge == "grpcio", "node": pair.node == "grpcio"}
                node.signal(signal.SIGTERM)
                assert await node.end() == 0

    run(work())


def loads_grpc(pid: int) -> bool:
    """Whether a process has the library in memory."""
    return "cygrpc" in Path(f"/proc/{pid}/maps").read_text()
