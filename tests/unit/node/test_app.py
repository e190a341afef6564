"""The Node's program around its parts: token, refusals, exit codes."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from iop_fast.config.loader import load_node_text
from iop_fast.config.schema import NodeConfig
from iop_fast.node.app import EXIT_FAILED, EXIT_REFUSED, Node, StartError, read_token, run_node


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """The program sets up logging for a process of its own: put it back."""
    root, ours = logging.getLogger(), logging.getLogger("iop_fast")
    handlers, levels = list(root.handlers), (root.level, ours.level)
    yield
    root.handlers[:] = handlers
    root.setLevel(levels[0])
    ours.setLevel(levels[1])


def config(text: str = "token_env: TOKEN") -> NodeConfig:
    return load_node_text(f"id: n1\nedge: {{address: '127.0.0.1:1'}}\n{text}\n", "node.yaml").config


def test_the_token_comes_from_the_environment() -> None:
    assert read_token(config(), {"TOKEN": " abc\n"}) == "abc"


@pytest.mark.parametrize("environ", [{}, {"TOKEN": ""}, {"TOKEN": "  "}])
def test_a_variable_that_is_not_set_is_said(environ: dict[str, str]) -> None:
    with pytest.raises(StartError, match="token_env: variable TOKEN is not set"):
        read_token(config(), environ)


@pytest.mark.parametrize("token", ["a b", "caf\xe9", "x" * 5000, "a\x00b"])
def test_a_token_that_no_header_could_hold_is_refused_without_being_repeated(token: str) -> None:
    with pytest.raises(StartError) as caught:
        read_token(config(), {"TOKEN": token})
    assert token not in str(caught.value)


def test_the_token_comes_from_a_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "token"
    file.write_text("abc\n")
    file.chmod(0o600)
    assert read_token(config(f"token_file: {file}"), {}) == "abc"
    assert caplog.text == ""
    file.chmod(0o644)
    assert read_token(config(f"token_file: {file}"), {}) == "abc"
    assert "token_file_readable_by_others" in caplog.text


@pytest.mark.parametrize("content", [None, ""])
def test_a_token_file_that_is_missing_or_empty_is_said(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
    with pytest.raises(StartError, match="token_file"):
        read_token(config(f"token_file: {file}"), {})


def test_findings_are_printed_and_the_exit_code_is_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "node.yaml"
    file.write_text("id: n1\nedgee: {}\n")
    assert asyncio.run(run_node(file)) == EXIT_REFUSED
    printed = capsys.readouterr().err
    assert f"{file}:2:1: error: edgee" in printed
    assert "Traceback" not in printed


def test_a_missing_token_ends_with_2_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TOKEN", raising=False)
    file = tmp_path / "node.yaml"
    file.write_text("id: n1\nedge: {address: '127.0.0.1:1'}\ntoken_env: TOKEN\n")
    assert asyncio.run(run_node(file)) == EXIT_REFUSED
    assert (
        capsys.readouterr().err == "iop node: token_env: variable TOKEN is not set, expected the Node's token in it\n"
    )


def test_a_probe_listener_that_cannot_be_had_ends_with_1_and_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "abc")
    file = tmp_path / "node.yaml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file.write_text(
            f"id: n1\nedge: {{address: '127.0.0.1:1'}}\ntoken_env: TOKEN\nobserve: {{listen: '127.0.0.1:{port}'}}\n"
        )
        assert asyncio.run(run_node(file)) == EXIT_FAILED
    printed = capsys.readouterr().err
    assert printed.startswith("iop node: observe.listen:")
    assert "Traceback" not in printed


def test_probes_and_metrics_are_served_while_the_edge_is_away() -> None:
    async def scrape() -> dict[str, tuple[int, str]]:
        node = Node(config("token_env: TOKEN\nobserve: {listen: '127.0.0.1:0'}"), "abc", environ={})
        await node.start()
        got: dict[str, tuple[int, str]] = {}
        async with aiohttp.ClientSession() as client:
            for path in ("livez", "readyz", "readyz?verbose", "metrics", "status"):
                async with client.get(f"http://127.0.0.1:{node.observe_port}/{path}") as answer:
                    got[path] = (answer.status, await answer.text())
        assert not node.is_ready
        await node.stop()
        return got

    got: dict[str, Any] = asyncio.run(scrape())
    assert got["livez"] == (200, "live\n")
    assert got["readyz"][0] == 503
    assert got["readyz?verbose"] == (503, '{"ready":false,"checks":{"session":false,"session_ready":false}}\n')
    assert got["status"][0] == 404
    assert "iop_node_ready 0.0\n" in got["metrics"][1]
    assert "abc" not in got["metrics"][1]
