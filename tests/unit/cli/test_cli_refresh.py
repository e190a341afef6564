"""`iop refresh` without an Edge: what it sends, how it reads a report, which exit code it means."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from iop_fast.cli.admin_client import DEFAULT_ADMIN
from iop_fast.cli.main import main
from iop_fast.cli.refresh import admin_of, exit_code, render
from iop_fast.config.diff import Change, Diff
from iop_fast.edge.refresh_report import Impact, NodePush, Report, Status
from iop_fast.errors import Finding


def report(status: Status = Status.APPLIED, mode: Any = "apply", **more: Any) -> dict[str, Any]:
    return Report(mode=mode, status=status, revision=4, file_sha256="f" * 64, **more).as_plain()


CHANGES = Diff(
    (
        Change("edge.listen", "changed", "restart", (), "127.0.0.1:8081", "127.0.0.1:9081"),
        Change("models[new]", "added", "live", (("models", "new"),)),
        Change("models[old]", "removed", "live", (("models", "old"),)),
        Change("models[x].context_window_tokens", "added", "live", (("models", "x"),), None, 4096),
        Change("nodes[n].token_hash_sha256", "changed", "restart", (("nodes", "n"),)),
    )
)


@contextmanager
def edge_that_answers(status: int, answer: bytes) -> Iterator[tuple[str, list[tuple[str, Any]]]]:
    """A listener with one answer; its address, and what it was asked."""
    asked: list[tuple[str, Any]] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            asked.append((self.path, json.loads(body)))
            self.send_response(status)
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def invoke(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["refresh", *arguments])


def test_an_apply_asks_for_the_edges_own_file() -> None:
    with edge_that_answers(200, json.dumps(report(Status.NO_CHANGE)).encode()) as (admin, asked):
        result = invoke("--admin", admin)
    assert (result.exit_code, result.output) == (0, "no change: revision 4 runs what the file says\n")
    assert asked == [("/refresh", {"mode": "apply"})]


def test_a_dry_run_sends_the_candidate_and_names_it_in_the_findings(tmp_path: Path) -> None:
    candidate = tmp_path / "next.yaml"
    candidate.write_text("models: 1 # \u00e9\n", encoding="utf-8")
    finding = Finding("candidate", 1, 9, "error", "models", "expected a list")
    answer = json.dumps(report(Status.INVALID, "dry_run", findings=[finding])).encode()
    with edge_that_answers(200, answer) as (admin, asked):
        result = invoke("--admin", admin, "--dry-run", "-c", str(candidate))
    assert asked == [("/refresh", {"mode": "dry_run", "config": "models: 1 # \u00e9\n"})]
    assert result.output == (
        f"{candidate}:1:9: error: models: expected a list\ninvalid: 1 error, nothing would be applied\n"
    )
    assert result.exit_code == 2


def test_the_edge_is_found_by_the_candidates_own_address(tmp_path: Path) -> None:
    candidate = tmp_path / "next.yaml"
    with edge_that_answers(200, json.dumps(report(mode="dry_run")).encode()) as (admin, asked):
        candidate.write_text(f"admin: {{listen: '{admin}'}}\n")
        assert invoke("--dry-run", "-c", str(candidate)).exit_code == 0
    assert len(asked) == 1
    candidate.write_text("models: [\n")
    assert admin_of(candidate) == DEFAULT_ADMIN


def test_a_candidate_that_is_no_text_is_the_edges_to_judge(tmp_path: Path) -> None:
    candidate = tmp_path / "next.yaml"
    candidate.write_bytes(b"a: \xff\n")
    with edge_that_answers(200, json.dumps(report(mode="dry_run")).encode()) as (admin, asked):
        assert invoke("--admin", admin, "--dry-run", "-c", str(candidate)).exit_code == 0
    assert asked[0][1]["config"].encode("utf-8", "surrogateescape") == b"a: \xff\n"


def test_a_candidate_is_for_dry_runs(tmp_path: Path) -> None:
    result = invoke("-c", str(tmp_path / "next.yaml"))
    assert result.exit_code == 2
    assert "an apply reads the Edge's own file" in result.output.replace("\n", " ")
    result = invoke("--dry-run", "-c", str(tmp_path / "none.yaml"), "--admin", "127.0.0.1:1")
    assert result.exit_code == 2
    assert "none.yaml:1:1: error: cannot be read" in result.output


def test_the_report_as_json_is_the_edges() -> None:
    told = report(diff=CHANGES)
    with edge_that_answers(409, json.dumps(told).encode()) as (admin, _):
        result = invoke("--admin", admin, "--json")
    assert json.loads(result.output) == told


@pytest.mark.parametrize(
    ("status", "answer", "said"),
    [
        (403, b'{"error": {"code": "forbidden", "message": "not from here"}}', "answered 403: not from here"),
        (500, b"oops", "not JSON"),
        (200, b"[]", "no report"),
        (200, b"{}", "no report"),
    ],
)
def test_other_answers_are_told_plainly(status: int, answer: bytes, said: str) -> None:
    with edge_that_answers(status, answer) as (admin, _):
        result = invoke("--admin", admin)
    assert result.exit_code == 1
    assert said in result.output


def test_without_an_edge_it_says_how_to_name_one() -> None:
    result = invoke("--admin", "127.0.0.1:1")
    assert result.exit_code == 5
    assert "name its admin address by --admin" in result.output


# Reading a report


def test_a_difference_reads_like_one() -> None:
    assert render(report(Status.RESTART_REQUIRED, "dry_run", diff=CHANGES)) == [
        '~ edge.listen: "127.0.0.1:8081" -> "127.0.0.1:9081"  (needs a restart)',
        "+ models[new]",
        "- models[old]",
        "+ models[x].context_window_tokens: 4096",
        "~ nodes[n].token_hash_sha256: changed  (needs a restart)",
        "restart required by 2 paths: nothing would be applied",
    ]


def test_what_it_does_to_those_who_wait_and_to_the_nodes_is_said() -> None:
    pushes = [NodePush("a", 4, "acked", ""), NodePush("b", 4, "pending", "offline")]
    impact = Impact(
        leases_above_capacity=1, waiters_granted=2, waiters_evicted_timeout=3, waiters_evicted_unavailable=4
    )
    diff = Diff((Change("provider_pool.max_queue", "changed", "live", (), 16, 17),))
    lines = render(report(diff=diff, node_pushes=pushes, impact=impact))
    assert lines == [
        "~ provider_pool.max_queue: 16 -> 17",
        "waiting requests: 2 started, 3 ended with 504 queue_timeout, 4 ended with 503 provider_unavailable",
        "running requests, all of which finish: 1 above the new capacity",
        "node a: acked",
        "node b: pending: offline",
        "applied as revision 4: 1 change, 2 nodes concerned",
    ]
    dry = render(report(mode="dry_run", diff=diff, node_pushes=pushes, impact=Impact(waiters_granted=1)))
    assert dry == [
        "~ provider_pool.max_queue: 16 -> 17",
        "waiting requests: 1 would start",
        "can be applied live: 1 change, 2 nodes concerned",
    ]


@pytest.mark.parametrize(
    ("told", "code"),
    [
        (report(), 0),
        (report(Status.NO_CHANGE), 0),
        (report(node_pushes=[NodePush("a", 4, "acked", "")]), 0),
        (report(node_pushes=[NodePush("a", 4, "acked", ""), NodePush("b", 4, "refused", "no")]), 4),
        (report(node_pushes=[NodePush("a", 4, "pending", "offline")]), 4),
        (report(mode="dry_run", node_pushes=[NodePush("a", 4, "pending", "dry run")]), 0),
        (report(Status.RESTART_REQUIRED), 3),
        (report(Status.RESTART_REQUIRED, "dry_run"), 3),
        (report(Status.INVALID), 2),
        (report(Status.INVALID, "dry_run"), 2),
        (report(Status.STALE), 1),
    ],
)
def test_exit_codes(told: dict[str, Any], code: int) -> None:
    assert exit_code(told) == code
