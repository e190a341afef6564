"""The model pages say what stands behind each model now."""

from __future__ import annotations

import json
from typing import Any

from tests.unit.edge.exchange_world import ExchangeWorld, provider_spec


def listed(world: ExchangeWorld) -> dict[str, Any]:
    return {entry["id"]: entry["iop"] for entry in json.loads(world.get(b"/v1/models").body)["data"]}


def test_live_candidates_and_long_slots_follow_the_fleet() -> None:
    providers = [
        provider_spec("n1", "p1", capacity=4, long_context_capacity=2),
        provider_spec("n2", "p2", capacity=2, long_context_capacity=1),
        provider_spec("n2", "off", enabled=False),
    ]
    models = {"m": {"p1": "s", "p2": "s", "off": "s"}, "team/m:8b": {"p2": "s"}}
    with ExchangeWorld(providers, models) as world:
        assert listed(world) == {
            "m": {"live_candidates": 2, "long_slots": 3},
            "team/m:8b": {"live_candidates": 1, "long_slots": 1},
        }
        world.links["n2"].lose()
        world.loop.run_for(0.3)
        assert listed(world)["team/m:8b"] == {"live_candidates": 0, "long_slots": 0}
        one = json.loads(world.get(b"/v1/models/team%2Fm%3A8b").body)
        assert (one["id"], one["object"], one["iop"]["live_candidates"]) == ("team/m:8b", "model", 0)


def test_pages_are_kept_for_a_moment_and_not_over_a_refresh() -> None:
    with ExchangeWorld() as world:
        before = world.get(b"/v1/models").body
        world.link.lose()
        assert world.get(b"/v1/models").body == before
        world.refresh(world.providers, {"n": {"p1": "s"}})
        assert listed(world) == {"n": {"live_candidates": 0, "long_slots": 0}}
        assert world.get(b"/v1/models/m").status == 404
