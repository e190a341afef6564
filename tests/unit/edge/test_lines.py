"""Lines written beside the loop: in order, bounded, rotated, never half."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest

from iop_fast.edge.lines import BATCH_LINES, PIPE_BYTES, LineWriter, RotatedFile, write_to

LIMIT_S = 10.0


def test_lines_come_in_order_and_all_by_close() -> None:
    blocks: list[bytes] = []
    writer = LineWriter("t", blocks.append)
    for number in range(BATCH_LINES + 3):
        writer.put(b"%d\n" % number)
    writer.flush()
    writer.put(b"last\n")
    writer.close()
    assert b"".join(blocks).split() == [b"%d" % number for number in range(BATCH_LINES + 3)] + [b"last"]
    assert (writer.pending, writer.dropped, writer.failed) == (0, 0, 0)


def test_a_writer_that_hangs_loses_lines_and_holds_nobody(caplog: pytest.LogCaptureFixture) -> None:
    entered, go = threading.Event(), threading.Event()
    blocks: list[bytes] = []

    def write(block: bytes) -> None:
        entered.set()
        assert go.wait(LIMIT_S)
        blocks.append(block)

    writer = LineWriter("t", write, lines_max=4)
    writer.put(b"a\n")
    writer.flush()
    assert entered.wait(LIMIT_S)
    for _ in range(5):
        writer.put(b"b\n")
    assert (writer.pending, writer.dropped) == (4, 2)
    go.set()
    with caplog.at_level(logging.WARNING):
        writer.close()
    assert b"".join(blocks) == b"a\nb\nb\nb\n"
    assert caplog.records[-1].getMessage() == "lines_lost"


def test_a_failing_write_is_said_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    def write(block: bytes) -> None:
        raise OSError(28, "No space left on device")

    with caplog.at_level(logging.WARNING):
        writer = LineWriter("t", write)
        for _ in range(3):
            writer.put(b"a\n")
            writer.flush()
        writer.close()
    assert writer.failed == 3
    assert [record.getMessage() for record in caplog.records] == ["lines_not_written", "lines_lost"]


def test_writes_to_a_shared_pipe_hold_whole_lines() -> None:
    read_end, write_end = os.pipe()
    sizes: list[int] = []
    real = os.write

    def spy(descriptor: int, block: bytes) -> int:
        sizes.append(len(block))
        assert block.endswith(b"\n")
        return real(descriptor, block)

    lines = b"".join(b"%04d %s\n" % (number, b"x" * (number % 300)) for number in range(150))
    long = b"y" * (PIPE_BYTES + 10) + b"\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("iop_fast.edge.lines.os.write", spy)
        write_to(write_end)(lines + long)
    os.close(write_end)
    with os.fdopen(read_end, "rb") as pipe:
        assert pipe.read() == lines + long
    assert max(sizes[:-1]) <= PIPE_BYTES


def test_a_full_file_makes_way_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "usage.jsonl"
    file = RotatedFile(str(path), 10, 3)
    for letter in b"abcd":
        file.write(bytes([letter]) * 7 + b"\n")
    file.close()
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["usage.jsonl", "usage.jsonl.1", "usage.jsonl.2"]
    assert path.read_bytes() == b"ddddddd\n"
    assert (tmp_path / "usage.jsonl.2").read_bytes() == b"bbbbbbb\n"
    assert path.stat().st_mode & 0o777 == 0o640


def test_one_file_alone_begins_anew(tmp_path: Path) -> None:
    file = RotatedFile(str(tmp_path / "u"), 10, 1)
    file.write(b"aaaaaaa\n")
    file.write(b"bbbbbbb\n")
    file.close()
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"bbbbbbb\n"]


def test_a_file_goes_on_where_it_was_and_survives_being_moved(tmp_path: Path) -> None:
    path = tmp_path / "u"
    path.write_bytes(b"old\n")
    file = RotatedFile(str(path), 100, 2)
    file.write(b"new\n")
    path.rename(tmp_path / "elsewhere")
    file.write(b"newer\n")
    file.close()
    assert (tmp_path / "elsewhere").read_bytes() == b"old\nnew\n"
    assert path.read_bytes() == b"newer\n"


def test_a_full_disk_leaves_no_part_of_a_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RotatedFile(str(tmp_path / "u"), 1000, 2)
    file.write(b"whole\n")
    real = os.write

    def half(descriptor: int, block: bytes) -> int:
        monkeypatch.setattr("iop_fast.edge.lines.os.write", full)
        return real(descriptor, block[:3])

    def full(descriptor: int, block: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("iop_fast.edge.lines.os.write", half)
    with pytest.raises(OSError, match="No space"):
        file.write(b"another\n")
    monkeypatch.setattr("iop_fast.edge.lines.os.write", real)
    file.write(b"third\n")
    file.close()
    assert (tmp_path / "u").read_bytes() == b"whole\nthird\n"
