"""The snapshot and readiness, from real parts on virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from iop_fast.edge.admin import Readiness
from iop_fast.edge.ages import Ticker
from iop_fast.edge.front.listener import Front
from iop_fast.edge.service import EdgeService
from iop_fast.edge.status import Sources, edge_status
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.link_world import LinkWorld, provider
from tests.unit.edge.worlds import NS_PER_S, VirtualLoop


@pytest.fixture
def world() -> Iterator[LinkWorld]:
    with VirtualLoop() as loop:
        made = LinkWorld(
            loop,
            [
                provider("p1", capacity=3, long_context_capacity=1, priority=-2, label="seulgivibe_claude"),
                provider("p2", "n2", health="up", enabled=False),
            ],
        )
        yield made
        made.close()


def look(world: LinkWorld) -> dict[str, Any]:
    clock, loop = world.loop.clock, world.loop
    limits = world.edge.runtime.config.openai.limits
    front = Front(EdgeService(world.edge), limits, clock, loop, ticker=Ticker(clock, loop))
    return edge_status(Sources(world.edge, world.links, front, "edge.yaml", 1_000 * NS_PER_S))


def test_an_offline_provider_keeps_its_identity_and_counts_nothing(world: LinkWorld) -> None:
    status = look(world)
    assert [row["provider_id"] for row in status["providers"]] == ["p1", "p2"]
    assert status["providers"][0] == {
        "node_id": "n1",
        "provider_id": "p1",
        "type": "vllm",
        "label": "seulgivibe_claude",
        "link": "offline",
        "enabled": True,
        "priority": -2,
        "health": {"healthy": False, "file": "auto", "reported": "unreported", "reason": "its node is offline"},
        "configured": {"capacity": 3, "long_capacity": 1},
        "effective": {"capacity": 0, "long_capacity": 0, "in_flight": 0, "long_in_flight": 0, "queued": 0},
    }
    assert status["nodes"][0]["session"] is None
    assert not status["nodes"][0]["connected"]
    assert status["config"] == {"revision": 1, "file": "edge.yaml", "file_sha256": ""}
    assert status["http"] == {"connections": 0, "buffered_bytes": 0}
    assert status["queue"] == {"waiting": 0, "max_queue": 16, "queue_timeout_ms": 30000}


def test_a_ready_node_shows_its_session_and_its_providers_their_work(world: LinkWorld) -> None:
    peer = world.ready()
    world.ready("n2", "i2")
    for _ in range(4):
        world.submit()
    world.loop.run_for(2)
    peer.beat(*[1, 2, 3])
    status = look(world)
    node = status["nodes"][0]
    assert (node["connected"], node["link"]) == (True, "ready")
    assert (node["session"]["generation"], node["session"]["runs"], node["session"]["silent_ms"]) == (1, 3, 0)
    assert node["session"]["age_ms"] == 2000
    assert node["payload"] == {"revision": 1, "sent": 1, "observed": 1, "pending": False, "error": ""}
    first, second = status["providers"]
    assert first["effective"] == {
        "capacity": 3,
        "long_capacity": 1,
        "in_flight": 3,
        "long_in_flight": 0,
        "queued": 1,
    }
    assert first["health"] == {"healthy": True, "file": "auto", "reported": "up", "reason": ""}
    assert (second["enabled"], second["health"]["reason"]) == (False, "the file says up")
    assert status["queue"]["waiting"] == 1
    assert status["edge"]["uptime_ms"] == 2000
    assert status["counters"]["admission"]["granted"] == 3
    assert status["counters"]["links"]["accepted"] == 2


def test_an_accepted_node_is_not_connected(world: LinkWorld) -> None:
    world.peer().register()
    node = look(world)["nodes"][0]
    assert (node["connected"], node["link"], node["payload"]["observed"]) == (False, "accepted", None)
    assert look(world)["providers"][0]["link"] == "offline"


def test_health_says_why(world: LinkWorld) -> None:
    peer = world.ready()
    state = pb.ProviderState(provider_id="p1", state=pb.ProviderState.UNREACHABLE, reason="connection refused")
    peer.send(pb.Frame(provider_states=pb.ProviderStates(providers=[state])))
    health = look(world)["providers"][0]["health"]
    assert health == {"healthy": False, "file": "auto", "reported": "unreachable", "reason": "connection refused"}
    reported = [{"provider_id": "p1", "state": "unreachable", "reason": "connection refused"}]
    assert [node["providers"] for node in look(world)["nodes"]] == [reported, []]
    peer.report(p1=pb.ProviderState.UP)
    health = look(world)["providers"][0]["health"]
    assert (health["healthy"], health["reason"]) == (False, "up again, not for long enough yet")
    world.loop.run_for(3)
    assert look(world)["providers"][0]["health"]["healthy"]


def test_a_pending_and_a_refused_push_show(world: LinkWorld) -> None:
    peer = world.ready()
    world.refresh([provider("p1", capacity=9), provider("p2", "n2")])
    world.links.push_changed()
    assert look(world)["nodes"][0]["payload"] == {
        "revision": 2,
        "sent": 2,
        "observed": 1,
        "pending": True,
        "error": "",
    }
    answer = pb.NodeConfigRefreshResponse(payload_revision=2, applied=False, error="no such profile")
    peer.send(pb.Frame(refresh_response=answer))
    payload = look(world)["nodes"][0]["payload"]
    assert (payload["observed"], payload["pending"], payload["error"]) == (1, False, "no such profile")


def test_ready_after_the_first_node_and_unready_while_draining(world: LinkWorld) -> None:
    readiness = Readiness(world.edge, world.links, world.loop.clock)
    assert readiness.reasons() == ["listeners are not bound yet"]
    readiness.note_listening()
    assert readiness.reasons() == ["no node has become ready yet"]
    peer = world.peer()
    peer.register()
    assert readiness.reasons() == ["no node has become ready yet"]
    peer.ack()
    assert readiness.reasons() == []
    peer.stream.end()
    world.loop.settle()
    assert readiness.reasons() == []
    world.edge.start_draining()
    assert readiness.reasons() == ["draining"]


def test_ready_without_any_node_after_its_grace(world: LinkWorld) -> None:
    readiness = Readiness(world.edge, world.links, world.loop.clock)
    readiness.note_listening()
    world.loop.run_for(9.9)
    assert readiness.reasons() != []
    world.loop.run_for(0.2)
    assert readiness.reasons() == []
