"""What docs/ollama.md tells a newcomer works, with a server in Ollama's place."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from iop_fast.config.loader import load_edge_text
from tests.integration.edge_harness import TOKEN_HASH
from tests.integration.fleet import free_ports
from tests.integration.test_up import Up

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "ollama.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)[0]


@pytest.fixture
def ollama_port() -> Iterator[int]:
    """A server that speaks Ollama's API, as a process."""
    command = [sys.executable, "-m", "tests.fakes.fake_ollama", "--model", "qwen3:8b"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        yield int(server.stdout.readline().split()[1])
    finally:
        server.terminate()
        server.wait(10)
        server.stdout.close()


def test_the_first_answer(tmp_path: Path, ollama_port: int) -> None:
    """Three commands: build, the file, `iop up -c`."""
    build, written, up = re.fullmatch(
        r"(make build)\n(cat .*\nYAML\n)(\.venv/bin/iop up -c ollama\.yaml)\n", COMMANDS, re.DOTALL
    ).groups()  # type: ignore[union-attr]
    assert (build, up) == ("make build", ".venv/bin/iop up -c ollama.yaml")
    subprocess.run(["sh", "-c", written.replace("11434", str(ollama_port))], cwd=tmp_path, check=True)
    file = tmp_path / "ollama.yaml"
    ports = free_ports(3)
    listeners = {
        name: {"listen": f"127.0.0.1:{port}"} for name, port in zip(("openai", "edge", "admin"), ports, strict=True)
    }
    file.write_text(file.read_text() + yaml.safe_dump(listeners))  # the usual ports may be taken here
    program = Up(tmp_path / "up.log", "-c", str(file))
    try:
        program.wait_ready()
        curl = re.search(r"^  (curl .*?\\\n.*)$", program.said, re.MULTILINE)
        assert curl is not None, program.said
        answered = subprocess.run(["sh", "-c", curl[1]], capture_output=True, text=True, timeout=20, check=True).stdout
        events = [json.loads(line[6:]) for line in answered.splitlines() if line.startswith("data: {")]
        assert "".join(event["choices"][0]["delta"].get("content") or "" for event in events) == "hello"
        assert answered.endswith("data: [DONE]\n\n")
    finally:
        program.running.terminate()
        assert program.running.wait(20) is not None


def test_the_block_on_the_context_window_is_a_part_of_a_file() -> None:
    block = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)[0]
    node = {"id": "n", "token_hash_sha256": TOKEN_HASH, **yaml.safe_load(block)}
    text = yaml.safe_dump({"models": [{"id": "m", "providers": {"box-ollama": "qwen3:8b"}}], "nodes": [node]})
    assert load_edge_text(text, "f").warnings == ()
