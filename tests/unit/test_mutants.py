"""Hand-made faults do not rot: each one's piece stands in the source, once."""

from __future__ import annotations

import pytest

from tests.mutants import core, sim


@pytest.mark.parametrize("mutant", sim.MUTANTS, ids=lambda mutant: f"{mutant.module}: {mutant.name}")
def test_a_fault_in_session_and_dispatch_code_can_be_made(mutant: sim.Mutant) -> None:
    source = (sim.ROOT / "iop_fast" / f"{mutant.module}.py").read_text()
    assert sim.mutated(mutant) != source


@pytest.mark.parametrize("mutant", core.MUTANTS, ids=lambda mutant: f"{mutant.module}: {mutant.name}")
def test_a_fault_in_the_core_can_be_made(mutant: core.Mutant) -> None:
    source = (core.ROOT / "src_pyx" / f"{mutant.module}.pyx").read_text()
    assert source.count(mutant.old) == 1
    assert mutant.new != mutant.old


def test_the_names_are_their_own() -> None:
    for mutants in (sim.MUTANTS, core.MUTANTS):
        assert len({(mutant.module, mutant.name) for mutant in mutants}) == len(mutants)
