"""Hand-made faults do not rot: each one's piece stands in the source, once."""

from __future__ import annotations

import pytest

from tests.mutants import core, sim
from tests.mutants.faults import ROOT, Mutant, mutated


@pytest.mark.parametrize("mutant", sim.MUTANTS, ids=lambda mutant: f"{mutant.module}: {mutant.name}")
def test_a_fault_in_session_and_dispatch_code_can_be_made(mutant: Mutant) -> None:
    path = sim.source_of(mutant)
    assert mutated(mutant, path) != path.read_text()


@pytest.mark.parametrize("mutant", core.MUTANTS, ids=lambda mutant: f"{mutant.module}: {mutant.name}")
def test_a_fault_in_the_core_can_be_made(mutant: Mutant) -> None:
    path = ROOT / "src_pyx" / f"{mutant.module}.pyx"
    assert mutated(mutant, path) != path.read_text()


def test_the_names_are_their_own() -> None:
    for mutants in (sim.MUTANTS, core.MUTANTS):
        assert len({(mutant.module, mutant.name) for mutant in mutants}) == len(mutants)
