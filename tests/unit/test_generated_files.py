"""What scripts/generated.py does with files that others wrote by hand, removed or left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts import generated
from scripts.generated import stale, write_or_check


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[Path, str]:
    monkeypatch.setattr(generated, "ROOT", tmp_path)
    (tmp_path / "fresh").write_text("1")
    (tmp_path / "changed").write_text("by hand")
    return {tmp_path / name: "1" for name in ("fresh", "changed", "missing")}


def test_a_check_writes_nothing(files: dict[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert write_or_check(files, ["--check"], "make it") == 1
    said = capsys.readouterr()
    assert said.err == "changed is stale: run `make it`\nmissing is stale: run `make it`\n"
    assert [path.name for path in stale(files)] == ["changed", "missing"]


def test_what_is_stale_is_written_and_nothing_else(files: dict[Path, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert write_or_check(files, []) == 0
    assert capsys.readouterr().out == "wrote changed\nwrote missing\n"
    assert stale(files) == []
    assert write_or_check(files, ["--check"]) == 0
