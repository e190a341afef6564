"""`iop up` as a newcomer meets it: what it prints works, it ends when it is told to, and nothing outlives it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from tests.integration.edge_harness import config, make_certificate
from tests.integration.fleet import free_ports

READY_LIMIT_S = 30.0
# Less than any drain: who ends within it did not wait for the stream that runs.
AT_ONCE_S = 10.0


class Up:
    """A running `iop up`, of the echo model unless options are given. Its children are known once it is ready."""

    def __init__(self, log: Path, *options: str) -> None:
        self.log = log
        self.port, link_port, admin_port = free_ports(3)
        ports = ["--port", str(self.port), "--link-port", str(link_port), "--admin-port", str(admin_port)]
        with log.open("wb") as output:
            self.running = subprocess.Popen(
                [sys.executable, "-m", "iop_fast.cli", "up", *(options or ("--model", "echo", *ports))],
                stdout=output,
                stderr=output,
            )
        self.children: list[int] = []

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_ready(self) -> None:
        until(lambda: "Ctrl-C stops it." in self.said, READY_LIMIT_S, "iop up is ready")
        pid = self.running.pid
        self.children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        assert len(self.children) == 2

    def has_children(self) -> bool:
        """True while a child runs; one that was not reaped yet runs no more."""
        return any(state_of(child) not in ("", "Z") for child in self.children)

    def long_stream(self) -> socket.socket:
        """Begin a stream of more than a minute and wait for its first bytes."""
        prompt = {"role": "user", "content": "word " * 5000}
        body = json.dumps({"model": "echo", "stream": True, "messages": [prompt]}).encode()
        client = socket.create_connection(("127.0.0.1", self.port), READY_LIMIT_S)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: up\r\nContent-Length: %d\r\n\r\n" % len(body)
        client.sendall(head + body)
        assert client.recv(4096).startswith(b"HTTP/1.1 200 OK\r\n")
        return client


def state_of(pid: int) -> str:
    """State of a process as the kernel names it, "" for none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""


def until(look: Callable[[], bool], limit_s: float, what: str) -> None:
    deadline = time.monotonic() + limit_s
    while not look():
        assert time.monotonic() < deadline, f"not seen within {limit_s} s: {what}"
        time.sleep(0.02)


@contextmanager
def up(folder: Path, *options: str) -> Iterator[Up]:
    """Run it; whatever is left at the end is killed, and the log is shown when the test fails."""
    made = Up(folder / "up.log", *options)
    try:
        made.wait_ready()
        yield made
    except BaseException:
        print(made.said)
        raise
    finally:
        made.running.kill()
        made.running.wait()
        for child in made.children:
            if state_of(child):
                os.kill(child, signal.SIGKILL)


def test_the_lines_it_prints_work_as_printed(tmp_path: Path) -> None:
    pytest.importorskip("openai")
    with up(tmp_path) as it:
        blocks = re.findall(r"^  \S.*?(?=^$)", it.said.partition("ready: ")[2], re.MULTILINE | re.DOTALL)
        curl, program = (re.sub("^  ", "", block, flags=re.MULTILINE) for block in blocks)
        install, _, program = program.partition("\n")
        assert install == f"{sys.executable} -m pip install --quiet openai"
        answer = subprocess.run(["bash", "-c", curl], capture_output=True, text=True, timeout=READY_LIMIT_S, check=True)
        assert "hello" in answer.stdout
        assert answer.stdout.endswith("data: [DONE]\n\n")
        answer = subprocess.run(
            ["bash", "-c", program], capture_output=True, text=True, timeout=READY_LIMIT_S, check=True
        )
        assert answer.stdout == "hello\n"
        page = re.search(r"^What runs and what waits: (http://\S+/)$", it.said, re.MULTILINE)
        assert page is not None
        with urllib.request.urlopen(page[1], timeout=READY_LIMIT_S) as opened:
            assert b'id="headline"' in opened.read()
        it.running.send_signal(signal.SIGINT)
        assert it.running.wait(AT_ONCE_S) == 0
        assert not it.has_children()


@pytest.mark.parametrize("has_tls", [False, True])
def test_a_fleet_of_ones_own_runs_on_free_ports_and_without_tls_of_its_link(tmp_path: Path, has_tls: bool) -> None:
    cert, key = make_certificate(tmp_path)
    tls = {"tls": {"cert_file": str(cert), "key_file": str(key)}} if has_tls else {}
    echo = {"id": "echo-1", "type": "native", "profile": "echo", "models": ["served"], "capacity": 1}
    file = tmp_path / "edge.yaml"
    file.write_text(yaml.safe_dump(config({"n1": [echo]}, edge=tls, openai=tls)))
    with up(tmp_path, "-c", str(file)) as it:
        found = re.search(r"^ready: model m on (\S+)$", it.said, re.MULTILINE)
        assert found is not None
        assert found[1].startswith("https://127.0.0.1:" if has_tls else "http://127.0.0.1:")
        trust = ssl.create_default_context(cafile=str(cert))
        body = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hello"}]}).encode()
        asked = urllib.request.Request(f"{found[1]}/chat/completions", body, {"Content-Type": "application/json"})
        with urllib.request.urlopen(asked, timeout=READY_LIMIT_S, context=trust) as answer:
            assert json.load(answer)["choices"][0]["message"]["content"] == "hello"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_does_not_wait_for_a_stream(tmp_path: Path, number: signal.Signals) -> None:
    with up(tmp_path) as it, it.long_stream():
        it.running.send_signal(number)
        until(lambda: '"draining"' in it.said, AT_ONCE_S, "the Node drains")
        assert it.running.poll() is None
        it.running.send_signal(number)
        assert it.running.wait(AT_ONCE_S) == 0
        assert not it.has_children()
        assert "Traceback" not in it.said


def test_two_signals_in_one_breath_are_no_fault(tmp_path: Path) -> None:
    with up(tmp_path) as it:
        it.running.send_signal(signal.SIGTERM)
        it.running.send_signal(signal.SIGINT)
        assert it.running.wait(AT_ONCE_S) == 0
        assert not it.has_children()
        assert "Traceback" not in it.said


def test_nothing_outlives_it_however_it_dies(tmp_path: Path) -> None:
    with up(tmp_path) as it, it.long_stream():
        it.running.kill()
        it.running.wait()
        until(lambda: not it.has_children(), AT_ONCE_S, "the children are gone")
