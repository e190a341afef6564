"""A refresh as a transaction: what it changes, what it leaves, and what its report says."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from iop_fast._core.admission import Outcome
from iop_fast.edge.refresh import Asked
from iop_fast.edge.refresh_report import Impact, Status
from tests.unit.edge.refresh.refresh_world import (
    RefreshWorld,
    changed,
    node_of,
    provider_of,
    refresh_world,
    run,
    settings_of,
    settle,
    until,
)
from tests.unit.edge.worlds import NS_PER_S

CAPACITY = ("nodes", 0, "providers", 0, "capacity")
RESTART = {"edge": {"name": "other"}}


def paths(world_report: Any) -> list[str]:
    return [change["path"] for change in world_report.as_plain()["changed_paths"]]


# Applied


def test_a_live_change_is_applied_pushed_and_reported(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            one, two = await world.ready()
            report = await world.apply(changed(settings_of(), *CAPACITY, to=3))
            assert report.as_plain() == {
                "mode": "apply",
                "status": "applied",
                "revision": 2,
                "file_sha256": world.runtime.file_sha256,
                "changed_nodes": ["n1"],
                "changed_providers": ["p1"],
                "changed_models": [],
                "changed_paths": [
                    {
                        "path": "nodes[n1].providers[p1].capacity",
                        "kind": "changed",
                        "apply": "live",
                        "before": 1,
                        "after": 3,
                    }
                ],
                "changed_paths_total": 1,
                "restart_required_paths": [],
                "errors": [],
                "warnings": [],
                "node_pushes": [{"node_id": "n1", "payload_revision": 2, "status": "acked", "reason": ""}],
                "impact": {
                    "leases_above_capacity": 0,
                    "long_leases_above_capacity": 0,
                    "waiters_granted": 0,
                    "waiters_evicted_timeout": 0,
                    "waiters_evicted_unavailable": 0,
                },
            }
            assert world.row("p1").capacity == 3
            assert world.runtime.revision == 2
            assert world.links.current("n1").pushes.observed_revision == 2  # type: ignore[union-attr]
            assert world.links.current("n2").pushes.observed_revision == 1  # type: ignore[union-attr]
            assert one.pushed() == two.pushed() == []

    run(work())


def test_a_dry_run_says_the_same_and_does_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            await world.ready()
            world.write(changed(settings_of(), *CAPACITY, to=3))
            before = world.everything()
            dry = (await world.refresh("dry_run")).as_plain()
            assert world.everything() == before
            assert (dry["mode"], dry["status"], dry["revision"]) == ("dry_run", "applied", 1)
            assert dry["node_pushes"] == [
                {"node_id": "n1", "payload_revision": 2, "status": "pending", "reason": "dry run: nothing was sent"}
            ]
            done = (await world.apply(changed(settings_of(), *CAPACITY, to=3))).as_plain()
            same = set(dry) - {"mode", "revision", "node_pushes"}
            assert {key: dry[key] for key in same} == {key: done[key] for key in same}

    run(work())


def test_a_dry_run_judges_a_candidate_and_not_the_file(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            candidate = yaml.safe_dump(changed(settings_of(), *CAPACITY, to=7))
            assert paths(await world.refresh("dry_run", candidate)) == ["nodes[n1].providers[p1].capacity"]
            broken = await world.refresh("dry_run", "models: 1\n")
            assert broken.status is Status.INVALID
            assert {finding.file for finding in broken.findings} == {"candidate"}
            assert (await world.refresh("dry_run")).status is Status.NO_CHANGE

    run(work())


def test_leases_are_kept_and_a_lowered_capacity_cuts_nobody(tmp_path: Path) -> None:
    """B04: the counter is resized and not replaced; raising it wakes the waiters at once, in order."""

    async def work() -> None:
        settings = changed(settings_of(), *CAPACITY, to=4)
        async with refresh_world(tmp_path, settings) as world:
            await world.ready()
            running = [world.submit("one") for _ in range(4)]
            waiting = [world.submit("one") for _ in range(3)]
            report = await world.apply(changed(settings, *CAPACITY, to=2))
            assert report.impact == Impact(leases_above_capacity=2)
            assert (world.row("p1").in_flight, world.row("p1").capacity, world.row("p1").queued) == (4, 2, 3)
            for caller in running[:2]:
                world.release(caller)
                assert [one.lease for one in waiting] == [None] * 3
            world.release(running[2])
            assert [one.lease is not None for one in waiting] == [True, False, False]
            report = await world.apply(changed(settings, *CAPACITY, to=4))
            assert report.impact == Impact(waiters_granted=2)
            assert all(one.lease is not None for one in waiting)
            assert world.row("p1").in_flight == 4

    run(work())


def test_a_removed_model_ends_its_waiters_at_once_and_lets_its_requests_finish(tmp_path: Path) -> None:
    """B09: alias A removed while its requests wait."""

    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            await world.ready()
            running, waiting, other = world.submit("one"), world.submit("one"), world.submit("both")
            assert other.lease is not None
            last = world.submit("both")
            settings = settings_of()
            del settings["models"][1]
            report = await world.apply(settings)
            assert report.as_plain()["changed_models"] == ["one"]
            assert report.as_plain()["node_pushes"] == []
            assert report.impact == Impact(waiters_evicted_unavailable=1)
            assert waiting.outcome is Outcome.EVICTED_UNAVAILABLE
            assert (running.outcome, last.outcome, last.lease) == (None, None, None)
            assert "one" not in world.runtime.models
            world.release(running)
            assert last.lease is not None
            assert world.row("p1").in_flight == 1

    run(work())


@pytest.mark.parametrize(("key", "value"), [("enabled", False), ("health", "down"), ("capacity", 0)])
def test_waiters_without_a_live_candidate_end_at_once_and_others_wait_on(
    tmp_path: Path, key: str, value: object
) -> None:
    """B09: with nobody left the end is `unavailable`, with a full sibling the wait goes on."""

    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            await world.ready()
            running = [world.submit("both"), world.submit("both")]
            stranded, lucky = world.submit("one"), world.submit("both")
            report = await world.apply(changed(settings_of(), "nodes", 0, "providers", 0, key, to=value))
            assert stranded.outcome is Outcome.EVICTED_UNAVAILABLE
            assert report.impact.waiters_evicted_unavailable == 1
            assert (lucky.lease, lucky.outcome) == (None, None)
            assert world.submit("one").outcome is Outcome.REJECTED_UNAVAILABLE
            world.release(next(one for one in running if world.provider_of(one) == "p2"))
            assert world.provider_of(lucky) == "p2"

    run(work())


def test_the_deadline_of_those_waiting_moves_with_the_timeout(tmp_path: Path) -> None:
    """B08: enqueue time plus the new timeout; 0 is none."""

    async def work() -> None:
        async with refresh_world(tmp_path, settings_of(provider_pool={"queue_timeout_ms": 30_000})) as world:
            await world.ready()
            world.submit("one")
            early = world.submit("one")
            enqueued_ns = world.clock.now_ns()
            world.clock.advance_to(enqueued_ns + NS_PER_S)
            late = world.submit("one")
            assert world.next_deadline_ns == enqueued_ns + 30 * NS_PER_S
            await world.apply(settings_of(provider_pool={"queue_timeout_ms": 60_000}))
            assert world.next_deadline_ns == enqueued_ns + 60 * NS_PER_S
            await world.apply(settings_of(provider_pool={"queue_timeout_ms": 0}))
            assert world.next_deadline_ns == 0
            report = await world.apply(settings_of(provider_pool={"queue_timeout_ms": 1_000}))
            assert report.impact == Impact(waiters_evicted_timeout=1)
            assert early.outcome is Outcome.EVICTED_TIMEOUT
            assert (late.outcome, world.next_deadline_ns) == (None, enqueued_ns + 2 * NS_PER_S)

    run(work())


def test_the_last_long_slot_that_leaves_frees_those_who_wait_for_one(tmp_path: Path) -> None:
    async def work() -> None:
        long_slots = provider_of("p1", capacity=2, long_context_capacity=1)
        settings = settings_of(nodes=[node_of("n1", long_slots), node_of("n2", provider_of("p2"))])
        async with refresh_world(tmp_path, settings) as world:
            await world.ready()
            first, second = world.submit("one", long=True), world.submit("one", long=True)
            assert first.lease is not None
            assert second.lease is None
            report = await world.apply(changed(settings, "nodes", 0, "providers", 0, "long_context_capacity", to=0))
            assert report.impact == Impact(waiters_granted=1, long_leases_above_capacity=1)
            assert second.lease is not None

    run(work())


# Nothing changed


@pytest.mark.parametrize("kind", ["same bytes", "comment", "key order", "entry order", "spelled out"])
def test_no_change_replaces_the_runtime_and_leaves_everything(tmp_path: Path, kind: str) -> None:
    """B04: a hundred reloads of the same meaning: revision, rotation, order, deadlines and Nodes are as they were."""

    def rewritten() -> str:
        settings = settings_of()
        if kind == "entry order":
            settings["models"].reverse()
            settings["nodes"].reverse()
            settings["models"][-1]["providers"] = {"p2": "served", "p1": "served"}
        if kind == "spelled out":
            settings["provider_pool"] = {"max_queue": 0, "queue_timeout_ms": 30_000}
        text = str(yaml.safe_dump(settings, sort_keys=kind == "key order"))
        return f"# {kind}\n{text}" if kind == "comment" else text

    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            nodes = await world.ready()
            running = [world.submit("both"), world.submit("both")]
            waiting = [world.submit("both") for _ in range(3)]
            rows, deadline = world.gate.snapshot(), world.next_deadline_ns
            order = list(world.runtime.models), [entry.key for entry in world.runtime.catalog.providers]
            for _ in range(100 if kind == "same bytes" else 3):
                before = world.runtime
                report = await world.apply(rewritten())
                assert (report.status, report.revision) == (Status.NO_CHANGE, 1)
                assert (report.diff.changes, report.node_pushes, report.impact) == ((), [], Impact())
                assert world.runtime is not before
            assert world.runtime.file_sha256 == report.file_sha256
            assert (world.gate.snapshot(), world.next_deadline_ns) == (rows, deadline)
            assert order == (list(world.runtime.models), [entry.key for entry in world.runtime.catalog.providers])
            assert all(node.pushed() == [] for node in nodes)
            for place, caller in enumerate(running):
                world.release(caller)
                assert [one.lease is not None for one in waiting] == [True] * (place + 1) + [False] * (2 - place)
            assert [world.provider_of(one) for one in waiting[:2]] == [world.provider_of(one) for one in running]

    run(work())


def test_the_rotation_goes_on_over_refreshes(tmp_path: Path) -> None:
    """B05: ties fall in turn, whatever is refreshed in between."""

    async def work() -> None:
        providers = [provider_of(f"p{number}", capacity=4) for number in range(1, 6)]
        settings = settings_of(
            models=[{"id": "m", "providers": {str(one["id"]): "served" for one in providers}}],
            nodes=[node_of("n1", *providers)],
        )
        async with refresh_world(tmp_path, settings) as world:
            await world.ready()
            taken = []
            for number in range(50):
                if number % 5 == 2:
                    pool = {"max_queue": 16 + number}
                    await world.apply({**settings, "nodes": settings["nodes"][::-1], "provider_pool": pool})
                caller = world.submit("m")
                taken.append(world.provider_of(caller))
                world.release(caller)
            assert taken == [f"p{number % 5 + 1}" for number in range(50)]

    run(work())


# Refused


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("models: [", "(2, "),
        ("models: 1\n", "(1, "),
        (yaml.safe_dump({**settings_of(), "unknown": 1}), "unknown"),
        (yaml.safe_dump(changed(settings_of(), *CAPACITY, to=-1)), "nodes[n1].providers[p1].capacity"),
        (yaml.safe_dump(changed(settings_of(), "nodes", 0, "providers", 0, "endpoint", to=None)), "endpoint"),
        ("\xff", "UTF-8"),
    ],
)
def test_an_invalid_file_changes_nothing_and_is_told_with_its_place(tmp_path: Path, text: str, where: str) -> None:
    """B14: one bad part refuses the whole edit."""

    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            await world.ready()
            world.submit("one")
            world.submit("one")
            world.file.write_bytes(text.encode("latin-1"))
            before = world.everything()
            dry, report = await world.refresh("dry_run"), await world.refresh()
            assert world.everything() == before
            assert (report.status, report.revision, dry.status) == (Status.INVALID, 1, Status.INVALID)
            assert (report.diff.changes, report.node_pushes) == ((), [])
            errors = report.as_plain()["errors"]
            assert errors == dry.as_plain()["errors"]
            assert any(where in f"{error} ({error['line']}, {error['column']})" for error in errors), errors
            assert {error["file"] for error in errors} == {str(world.file)}

    run(work())


def test_a_file_that_is_gone_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            await world.ready()
            world.file.unlink()
            before = world.everything()
            report = await world.refresh()
            assert (report.status, report.file_sha256) == (Status.INVALID, "")
            assert "cannot be read" in report.findings[0].message
            os.mkfifo(world.file)
            assert (await world.refresh()).status is Status.INVALID
            assert world.everything() == before

    run(work())


def test_one_restart_required_path_holds_everything_back(tmp_path: Path) -> None:
    """B14: a good live change beside one that needs a restart: all or nothing."""

    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            await world.ready()
            world.submit("one")
            world.write({**changed(settings_of(), *CAPACITY, to=5), **RESTART})
            before = world.everything()
            dry, report = await world.refresh("dry_run"), await world.refresh()
            assert world.everything() == before
            assert report.status is dry.status is Status.RESTART_REQUIRED
            plain = report.as_plain()
            assert plain["restart_required_paths"] == ["edge.name"]
            assert [(one["path"], one["apply"]) for one in plain["changed_paths"]] == [
                ("edge.name", "restart"),
                ("nodes[n1].providers[p1].capacity", "live"),
            ]
            assert (plain["revision"], plain["node_pushes"], report.impact) == (1, [], Impact())
            assert {key: value for key, value in plain.items() if key != "mode"} == {
                key: value for key, value in dry.as_plain().items() if key != "mode"
            }

    run(work())


def test_a_commit_that_admission_refuses_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            nodes = await world.ready()
            world.write(changed(settings_of(), *CAPACITY, to=5))
            before = world.everything()

            def refuse(plan: object) -> None:
                raise ValueError("scripted")

            with monkeypatch.context() as patch:
                patch.setattr(type(world.gate), "reconfigure", lambda self, plan: refuse(plan))
                with pytest.raises(ValueError, match="scripted"):
                    await world.refresh()
            assert world.everything() == before
            assert all(node.pushed() == [] for node in nodes)
            assert (await world.apply(changed(settings_of(), *CAPACITY, to=5))).revision == 2

    run(work())


def test_secrets_are_said_to_have_changed_and_never_shown(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            fresh = "ab" * 32
            world.write(changed(settings_of(), "nodes", 0, "token_hash_sha256", to=fresh))
            plain = (await world.refresh()).as_plain()
            assert plain["changed_paths"] == [
                {
                    "path": "nodes[n1].token_hash_sha256",
                    "kind": "changed",
                    "apply": "restart",
                    "before": None,
                    "after": None,
                }
            ]
            assert fresh not in str(plain)
            assert fresh not in str([entry.as_plain() for entry in world.refresher.history])

    run(work())


# If-Match


def test_a_stale_precondition_changes_nothing(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            running = world.runtime.file_sha256
            settings = changed(settings_of(), *CAPACITY, to=5)
            world.write(settings)
            coming = (await world.refresh("dry_run")).file_sha256
            before = world.everything()
            for tags in (["2"], ["0" * 64], [""], [running.upper()], ["2", "3"]):
                assert (await world.refresh("apply", None, *tags)).status is Status.STALE
            assert (await world.refresh("dry_run", None, "7")).status is Status.STALE
            assert world.everything() == before
            for tags in (["1"], [running], [coming], ["9", "1"], ["*"]):
                assert (await world.refresh("dry_run", None, *tags)).status is Status.APPLIED
            assert (await world.refresh("apply", None, running)).revision == 2
            assert (await world.refresh("apply", None, running)).status is Status.STALE
            assert (await world.refresh("apply", None, "1")).status is Status.STALE
            world.file.unlink()
            assert (await world.refresh("apply", None, "1")).status is Status.STALE
            assert (await world.refresh("apply", None, "2")).status is Status.INVALID

    run(work())


# Signals


def test_signals_that_come_while_one_waits_are_one_refresh(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            world.write(changed(settings_of(), *CAPACITY, to=3))
            for _ in range(50):
                world.refresher.apply_by_signal()
            await until(lambda: len(world.refresher.history) == 1, "the refresh")
            assert (world.refresher.history[0].source, world.runtime.revision) == ("signal", 2)
            world.refresher.apply_by_signal()
            await until(lambda: len(world.refresher.history) == 2, "another one")
            assert world.refresher.history[0].report["status"] == "no_change"

    run(work())


def test_a_signal_that_comes_while_the_file_is_read_asks_for_another_refresh(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            world.refresher.apply_by_signal()
            await until(lambda: not world.refresher._is_signal_waiting, "the first one's turn")
            world.write(changed(settings_of(), *CAPACITY, to=3))
            world.refresher.apply_by_signal()
            await until(lambda: len(world.refresher.history) == 2, "both")
            assert world.runtime.config.nodes[0].providers[0].capacity == 3

    run(work())


def test_the_end_of_what_signals_asked_for_is_told_once_and_when_all_of_it_is_done(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            told: list[int] = []
            world.refresher.on_signals_answered = lambda: told.append(len(world.refresher.history))
            world.refresher.apply_by_signal()
            while world.refresher._is_signal_waiting:  # noqa: ASYNC110
                await asyncio.sleep(0)  # in every turn of the loop: it must not be over before the second one comes
            world.refresher.apply_by_signal()
            await until(lambda: bool(told), "the end")
            await world.refresher.refresh(Asked("apply", "http"))  # of no concern to who sent the signals
            assert told == [2]

    run(work())


def test_a_signal_for_a_broken_file_is_logged_with_its_findings(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            world.write("models: 1\n")
            world.refresher.apply_by_signal()
            await until(lambda: len(world.refresher.history) == 1, "the refresh")
            await settle()
            world.write({**settings_of(), **RESTART})
            world.refresher.apply_by_signal()
            await until(lambda: len(world.refresher.history) == 2, "the other")
            await settle()
            assert world.runtime.revision == 1

    run(work())
    assert {"config_finding", "restart_required"} <= {record.message for record in caplog.records}


def test_a_signal_whose_refresh_fails_is_logged_and_the_next_one_works(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:

            def fail(*_: object) -> None:
                raise RuntimeError("scripted")

            with monkeypatch.context() as patch:
                patch.setattr("iop_fast.edge.refresh.plan_refresh", fail)
                world.refresher.apply_by_signal()
                await until(lambda: any(record.message == "refresh_failed" for record in caplog.records), "the failure")
            assert world.refresher.history == []
            world.refresher.apply_by_signal()
            await until(lambda: len(world.refresher.history) == 1, "the next one")

    run(work())


def test_stopping_ends_what_a_signal_started(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            node = await world.node("n1")
            world.write(changed(settings_of(), *CAPACITY, to=3))
            world.refresher.apply_by_signal()
            await node.wait_pushed()
            await world.refresher.stop()
            assert world.refresher.history[0].report["status"] == "applied"

    run(work())


def test_the_worlds_of_these_tests_hold_their_invariants(tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            assert isinstance(world, RefreshWorld)
            world.gate._admission.verify()

    run(work())


def test_a_payload_that_no_node_takes_refuses_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path) as world:
            world.write(changed(settings_of(), *CAPACITY, to=5))
            before = world.everything()
            with monkeypatch.context() as patch:
                patch.setattr("iop_fast.wire.payload.INLINE_PAYLOAD_BYTES", 10)
                patch.setattr("iop_fast.wire.payload.MAX_PAYLOAD_BYTES", 20)
                report = await world.refresh()
            assert report.status is Status.INVALID
            assert "payload too large: expected at most 20 bytes" in report.findings[0].message
            assert world.everything() == before

    run(work())
