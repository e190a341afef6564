"""The long walks of the admission core, a few steps of each; and the mutants' pieces still stand in the source."""

import random

import pytest

from tests.model.random_steps import random_plan
from tests.mutants.core import MUTANTS
from tests.mutants.faults import ROOT
from tests.soak import core, exhaust


@pytest.mark.parametrize("seed", range(4))
def test_random_worlds(seed: int) -> None:
    seen = core.run_world(seed, 150)
    assert seen["ended submitted"] > 0


def test_a_seed_repeats_its_world() -> None:
    assert core.run_world(11, 60) == core.run_world(11, 60)
    assert random_plan(random.Random(3)) == random_plan(random.Random(3))


def test_the_first_steps_of_the_exhaustive_walk(capsys: pytest.CaptureFixture[str]) -> None:
    assert exhaust.main(["2"]) == 0
    assert "depth 2: 57 states" in capsys.readouterr().out


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutants_piece_stands_once(mutant: object) -> None:
    source = (ROOT / "src_pyx" / f"{mutant.module}.pyx").read_text()  # type: ignore[attr-defined]
    assert source.count(mutant.old) == 1  # type: ignore[attr-defined]
