"""`iop probe` says by its exit code whether a program is ready."""

from __future__ import annotations

import http.server
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from click.testing import CliRunner

from iop_fast.cli.probe import probe


class Answers(http.server.BaseHTTPRequestHandler):
    """Runs, and is not ready."""

    def do_GET(self) -> None:
        is_live = self.path == "/livez"
        body = b"live\n" if is_live else b"not ready: draining\n"
        self.send_response(200 if is_live else 503)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


@contextmanager
def server() -> Iterator[str]:
    """A server on a free port; its address."""
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"127.0.0.1:{made.server_port}"
        finally:
            made.shutdown()
            thread.join()


@pytest.mark.parametrize("by_variable", [False, True])
def test_readiness_and_life_are_two_questions(by_variable: bool) -> None:
    with server() as address:
        words, environment = ([], {"IOP_PROBE": address}) if by_variable else ([address], {})
        ready = CliRunner().invoke(probe, words, env=environment)
        live = CliRunner().invoke(probe, ["--live", *words], env=environment)
    assert (ready.exit_code, ready.output) == (1, f"Error: {address}/readyz: 503 not ready: draining\n")
    assert (live.exit_code, live.output) == (0, "live\n")


def test_nobody_who_answers_is_not_ready() -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        address = f"127.0.0.1:{held.getsockname()[1]}"
    found = CliRunner().invoke(probe, [address])
    assert found.exit_code == 1
    assert found.output.startswith(f"Error: {address}/readyz: ")
    assert "refused" in found.output


def test_an_address_that_is_none_is_said() -> None:
    found = CliRunner().invoke(probe, ["8090"])
    assert found.exit_code == 1
    assert "host:port or unix:/path" in found.output
