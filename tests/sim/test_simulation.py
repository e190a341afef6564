"""Worlds of many seeds stay in order, repeat exactly, and a world that is not in order is found out."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from iop_fast.edge.link import NodeLink
from iop_fast.seams import End
from iop_fast.wire import runtime_pb2 as pb
from tests.sim.clients import Client
from tests.sim.machines import WatchedGate
from tests.sim.run import fault_names, run_batch
from tests.sim.script import write_script
from tests.sim.servers import SimRun
from tests.sim.world import Broken, World

ROOT = Path(__file__).resolve().parents[2]

SEEDS = 80


def test_worlds_of_many_seeds_stay_in_order_and_meet_every_fault() -> None:
    counts, virtual_s, broken = run_batch(0, SEEDS)
    assert not broken, "\n".join(map(str, broken))
    assert virtual_s > SEEDS * 40
    missed = [name for name in fault_names() if not counts[name]]
    assert not missed, f"never met in {SEEDS} worlds: {missed}"


def test_a_world_repeats_exactly() -> None:
    first, second = World(3), World(3)
    first.run()
    second.run()
    assert len(first.trace) > 100
    assert first.trace == second.trace
    assert first.counts == second.counts


def test_a_world_repeats_exactly_in_another_process_with_other_hashes() -> None:
    command = [sys.executable, "-m", "tests.sim.run", "--seed", "5", "--trace"]
    outputs = [
        subprocess.run(
            command,
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert "sha256" in outputs[0]
    assert outputs[0] == outputs[1]


def test_worlds_of_different_seeds_differ() -> None:
    assert write_script(1) != write_script(2)


# What the checks find.


def find(what: str, seeds: range) -> str:
    """Run worlds until one is found to be broken in this way; return all it says."""
    for seed in seeds:
        try:
            World(seed).run()
        except Broken as error:
            if what in str(error):
                return str(error)
    raise AssertionError(f"no world of {seeds} has found: {what}")


def test_a_broken_world_says_how_to_see_it_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken-off answer that is ended properly looks whole."""

    monkeypatch.setattr(Client, "abort", lambda client: client.send(None, [], True))
    text = find("the answer looks whole", range(20))
    seed = text.partition(":")[0].removeprefix("seed ")
    assert f"python -m tests.sim.run --seed {seed} --trace" in text


def test_a_slot_that_comes_back_too_early_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """B01: the Node confirms a cancel before the provider's connection is closed."""

    def cancel(run: SimRun) -> None:
        cancel_well(run)
        if not run.is_over:
            run._sink.on_end(End(pb.RunEnd.CANCELLED, "cancelled", None))

    cancel_well = SimRun.cancel
    monkeypatch.setattr(SimRun, "cancel", cancel)
    find("came back while its provider works", range(30))


def test_a_request_that_is_sent_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that was lost when its provider may have seen it is admitted again."""

    monkeypatch.setattr(NodeLink, "_on_opening_sent", lambda *_: None)
    find("seen by 2 providers", range(80))


def test_a_slot_that_nobody_gives_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """B01: a lease is dropped instead."""
    monkeypatch.setattr(WatchedGate, "release", lambda *_: True)
    find("lease_dropped_unreleased", range(5))
