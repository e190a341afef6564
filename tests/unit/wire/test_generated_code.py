"""The committed Python form of the protocol is what the generator makes of proto/iop/runtime.proto."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from iop_fast.wire import runtime_pb2 as pb

ROOT = Path(__file__).resolve().parents[3]


def test_the_generated_files_are_fresh() -> None:
    command = [sys.executable, "-m", "scripts.gen_proto", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_messages_know_the_path_they_are_imported_under() -> None:
    assert pb.Frame.__module__ == "iop_fast.wire.runtime_pb2"


def test_run_frames_are_numbered_from_sixteen() -> None:
    """The codec writes run frames' tags as two bytes and tells them from session frames by number."""
    numbers = {field.name: field.number for field in pb.Frame.DESCRIPTOR.oneofs_by_name["body"].fields}
    session = {name for name, number in numbers.items() if number < 16}
    assert session == {
        "register_request",
        "register_response",
        "config_piece",
        "ready_ack",
        "refresh_request",
        "refresh_response",
        "heartbeat",
        "provider_states",
        "draining",
    }
    assert sorted(numbers.values()) == [*range(2, 11), *range(16, 26)]
