"""A few rounds of the torture of the cli adapter; `make cli-torture` runs more."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

import pytest
import uvloop

from tests.soak.cli import torture


def test_nothing_is_left_of_the_ugliest_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """B29."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seed = Random().getrandbits(32)
    print(f"seed {seed}")
    uvloop.run(torture(3, seed))
