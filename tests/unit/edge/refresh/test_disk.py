"""The file on disk is looked at often and read only when it can have changed."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest

from iop_fast.edge import disk
from iop_fast.edge.disk import DiskFile


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes each reading of the file."""
    seen: list[str] = []
    read_file = disk.read_file

    def read(path: str) -> bytes:
        seen.append(path)
        return read_file(path)

    monkeypatch.setattr(disk, "read_file", read)
    return seen


def test_a_settled_file_is_read_once(tmp_path: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "YOUNG_NS", 0)
    file = tmp_path / "edge.yaml"
    file.write_text("a")
    watched = DiskFile(str(file))
    for _ in range(5):
        assert watched.look() == (sha256(b"a").hexdigest(), "")
    assert len(reads) == 1
    file.write_text("ab")
    assert watched.look() == (sha256(b"ab").hexdigest(), "")
    assert len(reads) == 2
    replacement = tmp_path / "next.yaml"
    replacement.write_text("xy")
    replacement.rename(file)
    assert watched.look() == (sha256(b"xy").hexdigest(), "")


def test_a_file_that_has_just_changed_is_read_again(tmp_path: Path, reads: list[str]) -> None:
    """Two writes within one tick of the file system's clock look the same."""
    file = tmp_path / "edge.yaml"
    file.write_text("a")
    watched = DiskFile(str(file))
    watched.look()
    watched.look()
    assert len(reads) == 2


def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"
    watched = DiskFile(str(file))
    assert watched.look()[0] == ""
    assert "cannot be read" in watched.look()[1]
    file.mkdir()
    assert watched.look() == ("", "is not a regular file, expected a YAML file")
    file.rmdir()
    file.write_text("a")
    assert watched.look() == (sha256(b"a").hexdigest(), "")
