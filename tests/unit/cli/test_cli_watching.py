"""`iop queue`, `runs`, `explain`, `top`, `logs` and `completion`, over answers of an admin listener."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.console import Console

from iop_fast.cli import admin_options, top
from iop_fast.cli.main import main
from iop_fast.cli.tables import seconds

ROOT = Path(__file__).resolve().parents[3]

WAITER = {
    "place": 1,
    "request": "ab" * 16,
    "principal": "Team A",
    "model": "chat",
    "class": "long",
    "needs": ["/v1/chat/completions"],
    "age_ms": 12_300,
    "is_readmitted": True,
    "blocked_by": {"full": 1, "disabled": 1},
    "why": "1 full, 1 disabled",
}
LINE = {"model": "chat", "class": "long", "needs": ["tools"], "waiting": 3, "oldest_ms": 12_300, "why": "1 full"}
QUEUE = {
    "waiting": 3,
    "max_queue": 16,
    "timeout_ms": 30_000,
    "oldest_ms": 12_300,
    "waiters": [WAITER],
    "lines": [LINE],
    "lines_total": 2,
}
EMPTY = {**QUEUE, "waiting": 0, "timeout_ms": 0, "waiters": [], "lines": [], "lines_total": 0}
RUN = {
    "run": 7,
    "request": "cd" * 16,
    "principal": "anonymous",
    "model": "chat",
    "node_id": "gpu",
    "provider_id": "vllm-1",
    "class": "normal",
    "state": "streaming",
    "queue_ms": 0,
    "age_ms": 61_500,
    "ttfb_ms": 80,
    "estimated_tokens": 12,
    "bytes_out": 4096,
}
CANDIDATE = {
    "node_id": "gpu",
    "provider_id": "vllm-1",
    "served": "qwen",
    "verdict": "full",
    "reason": "full",
    "priority": 0,
    "in_flight": 4,
    "capacity": 4,
    "long_in_flight": 0,
    "long_capacity": 1,
    "queued": 3,
}
EXPLAINED = {
    "model": "chat",
    "tokens": 5,
    "class": "normal",
    "needs": [],
    "decision": "wait",
    "position": 4,
    "why": "1 full",
    "retry_after_s": None,
    "candidates": [CANDIDATE],
    "candidates_total": 1,
}
PROVIDER = {
    "provider_id": "vllm-1",
    "node_id": "gpu",
    "type": "vllm",
    "link": "ready",
    "enabled": True,
    "health": {"healthy": True, "reported": "up", "reason": ""},
    "configured": {"capacity": 4, "long_capacity": 1},
    "effective": {"in_flight": 3, "capacity": 4, "long_in_flight": 0, "long_capacity": 1, "queued": 3},
}
STATUS = {
    "edge": {"id": "edge-1", "is_draining": False, "uptime_ms": 61_000},
    "config": {"revision": 7},
    "providers": [PROVIDER, {**PROVIDER, "provider_id": "vllm-2", "link": "offline"}],
    "counters": {"requests": {"ok": 10, "queue_timeout": 0}},
    "usage": {"rows": [{"prompt_tokens": 100, "completion_tokens": 20}]},
}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Pages of an admin listener by path; what was asked for stands under "asked"."""
    pages: dict[str, Any] = {"/queue": QUEUE, "/runs": {"total": 2, "runs": [RUN]}, "/explain": EXPLAINED}
    pages |= {"/status": STATUS, "asked": []}

    def get(admin: str, path: str) -> Any:
        pages["asked"].append(path)
        return pages[path.partition("?")[0]]

    monkeypatch.setattr(admin_options, "get_json", get)
    return pages


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(arguments))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_the_queue_reads_in_order_and_says_why(answers: Mapping[str, Any]) -> None:
    code, output = invoke("queue")
    assert code == 0
    assert output.splitlines() == [
        "3 of 16 waiting, oldest 12.3 s, timeout 30.0 s",
        "",
        "#  AGE     MODEL  CLASS  PRINCIPAL  REQUEST                           PROVIDERS",
        f"1  12.3 s  chat   long   Team A     {'ab' * 16}  1 full, 1 disabled, once more",
        "",
        "2 more; those that are alike, by line:",
        "",
        "MODEL  CLASS  WAITING  OLDEST  NEEDS",
        "chat   long   3        12.3 s  tools",
        "1 more lines",
    ]
    assert answers["asked"] == ["/queue?limit=20"]


def test_an_empty_queue_is_one_line(answers: dict[str, Any]) -> None:
    answers["/queue"] = EMPTY
    assert invoke("queue") == (0, "0 of 16 waiting, no timeout\n")


def test_runs_say_whose_where_and_since_when(answers: dict[str, Any]) -> None:
    code, output = invoke("runs", "--limit", "1")
    lines = output.splitlines()
    assert (code, answers["asked"], lines[-1]) == (0, ["/runs?limit=1"], "1 more")
    assert lines[0].split() == [
        "PROVIDER", "NODE", "MODEL", "CLASS", "PRINCIPAL", "SINCE", "STATE", "IN", "OUT", "REQUEST"
    ]  # fmt: skip
    assert lines[1].split()[:5] == ["vllm-1", "gpu", "chat", "normal", "anonymous"]
    assert lines[1].endswith(f"1 min 1 s  streaming  12  4096  {'cd' * 16}")
    answers["/runs"] = {"total": 0, "runs": []}
    assert invoke("runs") == (0, "nothing runs\n")


@pytest.mark.parametrize(
    ("change", "code", "said"),
    [
        ({}, 0, "a normal request for chat would wait, as number 4 of those who wait for the same providers"),
        ({"decision": "run", "position": 0}, 0, "would run at once"),
        ({"decision": "queue_full", "retry_after_s": 7}, 1, "the queue is full; a slot is likely to be free in 7 s"),
        ({"decision": "provider_unavailable", "position": None}, 1, "no provider of the model is available"),
        ({"decision": "unsupported_by_model", "position": None}, 1, "no provider of the model can do it"),
    ],
)
def test_explain_says_what_would_become_of_it(
    change: dict[str, Any], code: int, said: str, answers: dict[str, Any]
) -> None:
    answers["/explain"] = {**EXPLAINED, **change}
    found, output = invoke("explain", "chat", "--tokens", "5", "--needs", "tools")
    assert found == code
    assert said in output
    assert "vllm-1    gpu   qwen    0         4/4      0/1   3       full" in output
    assert answers["asked"] == ["/explain?model=chat&tokens=5&needs=tools"]


@pytest.mark.parametrize("command", [["queue"], ["runs"], ["explain", "chat"], ["top"]])
def test_machines_get_the_answer_itself(command: list[str], answers: dict[str, Any]) -> None:
    code, output = invoke(*command, "--json")
    expected = {"status": STATUS, "queue": QUEUE} if command == ["top"] else answers[f"/{command[0]}"]
    assert (code, json.loads(output)) == (0, expected)


def test_an_argument_of_any_bytes_is_asked_for(answers: dict[str, Any]) -> None:
    code, _ = invoke("explain", os.fsdecode(b"\xff"))
    assert (code, answers["asked"]) == (0, ["/explain?model=%FF&tokens=0"])


@pytest.mark.parametrize(
    "command", [["queue"], ["runs"], ["explain", "m"], ["top"], ["logs", "levels"], ["logs", "level", "info"]]
)
def test_without_an_edge_the_exit_code_says_so(command: list[str]) -> None:
    code, output = invoke(*command, "--admin", "127.0.0.1:1")
    assert code == 5
    assert "no Edge answers at 127.0.0.1:1" in output


def test_top_is_one_frame_where_there_is_no_terminal(answers: Mapping[str, Any]) -> None:
    code, output = invoke("top")
    assert code == 0
    assert "running 6  waiting 3 of 16, oldest 12.3 s" in output
    assert "since the start: ok 10  tokens 120" in output
    assert "███·" in output
    assert "node offline" in output
    assert "2 more" in output


@pytest.mark.parametrize("command", [["status"], ["top"], ["queue"], ["runs"], ["explain", "chat"]], ids=" ".join)
def test_what_others_wrote_is_shown_and_not_obeyed(command: list[str], answers: dict[str, Any]) -> None:
    evil = "its process ended: [/INST] \x1b[2J\x9b31m\r\nprovider up\u202e\u200b"
    shown = "its process ended: [/INST] \\x1b[2J\\x9b31m\\r\\nprovider up\\u202e\\u200b"
    down = {**PROVIDER, "health": {"healthy": False, "reported": "broken", "reason": evil}}
    down |= {"priority": 0, "effective": {**PROVIDER["effective"]}}  # type: ignore[dict-item]
    answers["/status"] = {
        **STATUS,
        "edge": {**STATUS["edge"], "software": "iop_fast 0.1.0"},
        "queue": {"waiting": 0, "max_queue": 16, "queue_timeout_ms": 30_000},
        "nodes": [{"node_id": "gpu", "link": "ready", "session": None}],
        "providers": [down],
    }
    answers["/queue"] = {**QUEUE, "waiters": [{**WAITER, "principal": evil}]}
    answers["/runs"] = {"total": 1, "runs": [{**RUN, "principal": evil}]}
    answers["/explain"] = {**EXPLAINED, "candidates": [{**CANDIDATE, "reason": evil}]}
    code, output = invoke(*command)
    assert code == 0
    assert all(line.isprintable() for line in output.split("\n"))
    assert "".join(shown.split()) in "".join(output.split()) or command == ["top"]
    assert "[/INST]" in output


def test_a_frame_fits_its_terminal_and_has_the_busiest() -> None:
    idle = {**PROVIDER["effective"], "in_flight": 0, "queued": 0}  # type: ignore[dict-item]
    rows = [{**PROVIDER, "provider_id": f"idle-{number}", "effective": idle} for number in range(100)]
    sample = top.Sample(0.0, {**STATUS, "providers": [*rows, PROVIDER]}, QUEUE)
    console = Console(width=100, file=io.StringIO(), record=True)
    console.print(top.frame(sample, None, 20))
    lines = console.export_text().splitlines()
    assert len(lines) <= 20
    assert any(line.startswith("vllm-1") for line in lines)
    assert "91 more providers" in lines


def test_rates_are_what_came_between_two_looks() -> None:
    later = {**STATUS, "counters": {"requests": {"ok": 14, "queue_timeout": 2}}}
    before, now = top.Sample(10.0, STATUS, QUEUE), top.Sample(12.0, later, QUEUE)
    assert top.rates(now, before) == "a second: ok 2.0, queue_timeout 1.0  tokens 0"
    assert top.rates(before, before) == "a second: nothing  tokens 0"


@pytest.mark.parametrize(
    ("used", "capacity", "bar"), [(0, 4, "····"), (1, 1000, "█" + "·" * 19), (5, 4, "████"), (0, 0, "")]
)
def test_a_bar_is_never_empty_while_a_slot_is_used(used: int, capacity: int, bar: str) -> None:
    assert top.bar(used, capacity).plain == bar


TOP_PROGRAM = """
import sys
from iop_fast.cli import admin_options
from tests.unit.cli.test_cli_watching import QUEUE, STATUS
pages = {"/queue": QUEUE, "/status": STATUS}
admin_options.get_json = lambda admin, path: pages[path.partition("?")[0]]
from iop_fast.cli.main import main
main(["top", "--interval", "0.2"], prog_name="iop")
"""


@pytest.mark.parametrize("key", [b"q", b"\x03"])
def test_top_in_a_terminal_ends_by_its_key_and_leaves_the_terminal_as_it_was(key: bytes) -> None:
    leader, follower = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "100", "LINES": "30"}
    before = subprocess.run(["stty", "-a"], stdin=follower, capture_output=True, check=True).stdout
    child = subprocess.Popen(
        [sys.executable, "-c", TOP_PROGRAM], stdin=follower, stdout=follower, stderr=follower, cwd=ROOT, env=environment
    )
    shown = b""
    deadline = time.monotonic() + 20
    try:
        while b"a second:" not in shown:
            assert time.monotonic() < deadline, shown
            if select.select([leader], [], [], 0.5)[0]:
                shown += os.read(leader, 65536)
        os.write(leader, key)
        while child.poll() is None:
            assert time.monotonic() < deadline, "it goes on"
            if select.select([leader], [], [], 0.05)[0]:
                shown += os.read(leader, 65536)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 0
    assert b"vllm-1" in shown
    assert subprocess.run(["stty", "-a"], stdin=follower, capture_output=True, check=True).stdout == before
    os.close(leader)
    os.close(follower)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_how_to_complete(shell: str) -> None:
    code, output = invoke("completion", shell)
    assert code == 0
    assert "_IOP_COMPLETE" in output


def test_completion_offers_the_commands() -> None:
    environment = {"_IOP_COMPLETE": "bash_complete", "COMP_WORDS": "iop re", "COMP_CWORD": "1"}
    result = CliRunner().invoke(main, env=environment, prog_name="iop")
    assert result.output == "plain,refresh\n"


def test_a_duration_reads_as_one_looks_at_it() -> None:
    assert [seconds(ms) for ms in (0, 250, 12_345, 185_000, 7_800_000)] == [
        "0.00 s",
        "0.25 s",
        "12.3 s",
        "3 min 5 s",
        "2 h 10 min",
    ]
