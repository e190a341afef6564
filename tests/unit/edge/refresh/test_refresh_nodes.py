"""A refresh and the Nodes that it concerns: what is pushed, what the report says of them, whose turn it is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml

from iop_fast._core.admission import Outcome
from iop_fast.edge.refresh import HISTORY_MAX, WAITING_MAX, Busy
from iop_fast.edge.refresh_report import NodePush, Status
from iop_fast.wire.payload import payload_from_message
from tests.unit.edge.refresh.refresh_world import (
    changed,
    node_of,
    provider_of,
    refresh_world,
    run,
    settings_of,
    settle,
    until,
)

CAPACITY = ("nodes", 0, "providers", 0, "capacity")


# Nodes


def test_every_concerned_node_is_told_of_and_the_rest_is_left_alone(tmp_path: Path) -> None:
    """B14: refused, silent, lost, offline, accepted, draining: each is reported for itself."""

    async def work() -> None:
        names = ["acked", "drains", "lost", "offline", "pending", "refused", "silent", "untouched"]
        nodes = [node_of(name, provider_of(f"p-{name}")) for name in names]
        models = [{"id": "m", "providers": {f"p-{name}": "served" for name in names}}]
        settings = settings_of(models=models, nodes=nodes, edge={"link": {"push_answer_ms": 300}})
        async with refresh_world(tmp_path, settings) as world:
            made = {name: await world.node(name, ack=name != "pending") for name in names if name != "offline"}
            drains = made["drains"]
            await drains.send(type(drains.take("heartbeat")[0])(draining={"limit_ms": 1}))
            after = settings
            for place, name in enumerate(names):
                if name != "untouched":
                    after = changed(after, "nodes", place, "providers", 0, "priority", to=3)
            world.write(after)
            asking = asyncio.create_task(world.refresh())
            await until(lambda: world.runtime.revision == 2, "the commit")
            await settle()
            await made["acked"].answer(2)
            await made["refused"].answer(2, "no such profile")
            await made["lost"].leave()
            report = await asking
            assert {push.node_id: (push.status, push.reason) for push in report.node_pushes} == {
                "acked": ("acked", ""),
                "drains": ("pending", "draining; it gets the newest configuration when it registers again"),
                "lost": (
                    "pending",
                    "the session ended before the answer; it gets the newest configuration when it registers again",
                ),
                "offline": ("pending", "offline; it gets the newest configuration when it registers"),
                "pending": ("pending", "not ready yet; it gets the newest configuration when it is"),
                "refused": ("refused", "no such profile; it keeps what it runs until it registers again"),
                "silent": ("pending", "no answer within 300 ms"),
            }
            assert [push.node_id for push in report.node_pushes] == sorted(set(names) - {"untouched"})
            assert all(not made[name].pushed() for name in ("drains", "pending", "untouched"))
            assert len(made["silent"].pushed()) == 1
            again = await world.node("refused")
            assert again.response.payload_revision == 2
            assert again.providers[0].priority == 3

    run(work())


def test_a_refresh_between_register_and_ack_is_pushed_in_the_turn_of_the_ack(tmp_path: Path) -> None:
    """The ack names the revision of the registration and is valid; what changed meanwhile follows as a push."""

    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            node = await world.node("n1", ack=False)
            for capacity in (3, 4):
                report = await world.apply(changed(settings_of(), *CAPACITY, to=capacity))
                assert report.node_pushes == [
                    NodePush(
                        "n1", capacity - 1, "pending", "not ready yet; it gets the newest configuration when it is"
                    )
                ]
            assert node.pushed() == []
            assert world.submit("one").outcome is Outcome.REJECTED_UNAVAILABLE
            await node.ack()
            assert world.row("p1").link == "ready"
            (push,) = node.pushed()
            assert (push.payload_revision, payload_from_message(push.payload).providers[0].capacity) == (3, 4)
            link = world.links.current("n1")
            assert link is not None
            assert link.pushes.observed_revision == 1
            await node.answer(3)
            assert link.pushes.observed_revision == 3
            assert [world.submit("one").lease is not None for _ in range(5)] == [True] * 4 + [False]

    run(work())


def test_a_later_refresh_does_not_wait_for_the_answers_to_an_earlier_one(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            node = await world.node("n1")
            world.write(changed(settings_of(), *CAPACITY, to=3))
            first = asyncio.create_task(world.refresh())
            assert (await node.wait_pushed()).payload_revision == 2
            world.write(changed(settings_of(), *CAPACITY, to=4))
            second = asyncio.create_task(world.refresh())
            assert (await node.wait_pushed()).payload_revision == 3
            await node.answer(2, "busy")
            await node.answer(3)
            assert [push.status for push in (await first).node_pushes] == ["refused"]
            assert [push.status for push in (await second).node_pushes] == ["acked"]

    run(work())


# Turns


def test_concurrent_refreshes_take_turns(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            texts = [yaml.safe_dump(changed(settings_of(), *CAPACITY, to=2 + number)) for number in range(4)]
            world.write(texts[0])
            reports = await asyncio.gather(
                *(world.refresh("apply" if number % 2 else "dry_run", None) for number in range(20))
            )
            applied = [one for one in reports if one.mode == "apply"]
            assert [one.status for one in applied] == [Status.APPLIED] + [Status.NO_CHANGE] * 9
            assert {one.revision for one in applied} == {2}
            assert reports[0].status is Status.APPLIED  # the dry run before the first apply
            assert all(one.status is Status.NO_CHANGE for one in reports[2:] if one.mode == "dry_run")

    run(work())


def test_no_more_than_a_few_wait_for_their_turn(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            asked = [asyncio.create_task(world.refresh("dry_run")) for _ in range(WAITING_MAX + 1)]
            await asyncio.sleep(0)
            refused = [asyncio.create_task(world.refresh("dry_run")) for _ in range(3)]
            outcomes = await asyncio.gather(*asked, *refused, return_exceptions=True)
            assert sum(isinstance(one, Busy) for one in outcomes) == 3
            assert (await world.refresh("dry_run")).status is Status.NO_CHANGE

    run(work())


def test_a_refresh_that_nobody_waits_for_any_more_is_told_of_in_the_history(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            node = await world.node("n1")
            world.write(changed(settings_of(), *CAPACITY, to=3))
            asking = asyncio.create_task(world.refresh())
            await node.wait_pushed()
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            assert world.runtime.revision == 2
            assert world.refresher.history[0].report["status"] == "applied"
            assert (await world.refresh()).status is Status.NO_CHANGE

    run(work())


def test_the_history_keeps_the_last_reports_with_source_and_times(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            for number in range(HISTORY_MAX + 3):
                await world.apply(settings_of(provider_pool={"max_queue": 20 + number}))
            history = [entry.as_plain() for entry in world.refresher.history]
            assert len(history) == HISTORY_MAX
            assert [entry["report"]["revision"] for entry in history] == list(range(HISTORY_MAX + 4, 4, -1))
            assert set(history[0]) == {"at", "source", "steps", "report"}
            assert history[0]["source"] == "http"
            assert list(history[0]["steps"]) == [
                f"{step}_ms"
                for step in ("wait", "read", "validate", "compare", "build", "rehearse", "commit", "push", "settle")
            ]

    run(work())
