"""The `iop` command without running programs: check, token, status rendering, help."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from iop_fast.cli import admin_client, admin_options
from iop_fast.cli.admin_client import AdminError, get_json
from iop_fast.cli.main import COMMANDS, main
from iop_fast.cli.status import render

ROOT = Path(__file__).resolve().parents[3]


def invoke(*arguments: str, **options: object) -> tuple[int, str]:
    """Run a command in this process; its exit code and everything that it printed."""
    result = CliRunner().invoke(main, list(arguments), **options)  # type: ignore[arg-type]
    return result.exit_code, result.output


def test_help_lists_every_command_without_importing_one() -> None:
    code = (
        "import sys; from iop_fast.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        "heavy = {'grpc', 'aiohttp', 'pydantic', 'uvloop', 'asyncio', 'rich', 'prometheus_client', 'yaml', 'orjson'}\n"
        "print(sorted({name.split('.')[0] for name in sys.modules} & heavy))"
    )
    began = time.perf_counter()
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout
    print(f"iop --help took {(time.perf_counter() - began) * 1000:.0f} ms, the interpreter's start included")
    for name in COMMANDS:
        assert f"  {name} " in output
    assert output.endswith("[]\n")


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    code, output = invoke(name, "--help")
    assert code == 0
    assert COMMANDS[name][2].rstrip(".").split(",")[0] in output


def test_an_unknown_command_is_refused() -> None:
    code, output = invoke("launch")
    assert code == 2
    assert "No such command" in output


def test_check_accepts_the_shipped_files() -> None:
    code, output = invoke("check", str(ROOT / "configs" / "edge.yaml"), str(ROOT / "configs" / "edge.minimal.yaml"))
    assert (code, output.count("accepted as edge configuration")) == (0, 2)
    code, output = invoke("check", "--kind", "node", str(ROOT / "configs" / "node.yaml"))
    assert (code, output.count("accepted as node configuration")) == (0, 1)


def test_check_prints_every_finding_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"
    file.write_text(
        "models:\n  - {id: m, providers: {p: served}}\n"
        "nodes:\n  - id: n\n    token_hash_sha256: short\n    providers:\n"
        '      - {id: p, type: vllm, endpoint: "http://127.0.0.1:1", models: [served], capacity: -1, colour: red}\n'
    )
    code, output = invoke("check", str(file))
    assert code == 2
    lines = output.splitlines()
    assert any(line.startswith(f"{file}:5:") and "token_hash_sha256" in line for line in lines)
    assert any(line.startswith(f"{file}:7:") and "capacity" in line for line in lines)
    assert any(line.startswith(f"{file}:7:") and "colour" in line for line in lines)


def test_a_token_and_its_hash_belong_together() -> None:
    code, output = invoke("token")
    assert code == 0
    secret, digest = (line.split()[1] for line in output.splitlines())
    assert hashlib.sha256(secret.encode()).hexdigest() == digest
    code, output = invoke("token", "hash", input=f"{secret}\n")
    assert output == f"token_hash_sha256: {digest}\n"


def test_an_empty_token_is_refused() -> None:
    code, output = invoke("token", "hash", input="\n")
    assert code == 2
    assert "got an empty line" in output


def test_status_says_that_no_edge_answers() -> None:
    code, output = invoke("status", "--admin", "127.0.0.1:1")
    assert code == 5
    assert "no Edge answers at 127.0.0.1:1" in output


def test_a_name_that_no_host_can_have_is_said_plainly() -> None:
    with pytest.raises(AdminError, match=r"no Edge answers at a\.\.b:80"):
        get_json("a..b:80", "/status")


def test_what_speaks_no_http_is_said_plainly_and_not_shown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def speak() -> None:
            peer = server.accept()[0]
            peer.recv(65536)
            peer.sendall(b"\x00\x1b[2J\x07\n")
            peer.close()

        speaker = threading.Thread(target=speak)
        speaker.start()
        with pytest.raises(AdminError) as caught:
            get_json(address, "/status")
        speaker.join()
    assert str(caught.value) == f"what answers at {address} is no admin listener; name its address by --admin"


PAGES = [["status"], ["queue"], ["runs"], ["explain", "chat"], ["top"], ["logs", "levels"]]


@pytest.mark.parametrize("command", PAGES, ids=" ".join)
@pytest.mark.parametrize(
    "answer",
    [
        (200, b'{"text": "hi"}'),
        (200, b"[]"),
        (404, b"404: Not Found"),
        (404, b'{"error": {"message": "no such path", "type": "x"}}'),
    ],
    ids=["object", "list", "text", "openai"],
)
def test_another_server_is_told_from_an_edge(
    command: list[str], answer: tuple[int, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(admin_client, "exchange", lambda *_: answer)
    code, output = invoke(*command, "--admin", "127.0.0.1:9")
    assert code == 5
    assert output.startswith("Error: what answers at 127.0.0.1:9 ")


def test_what_an_error_says_does_not_reach_the_terminal_raw(monkeypatch: pytest.MonkeyPatch) -> None:
    body = json.dumps({"error": {"code": "model_not_found", "message": "no\x1b[2J\nError: yes\u202e"}}).encode()
    monkeypatch.setattr(admin_client, "exchange", lambda *_: (404, body))
    code, output = invoke("explain", "x", "--admin", "127.0.0.1:9")
    assert code == 1
    assert output.endswith("no\\x1b[2J\\nError: yes\\u202e\n")


def test_an_address_that_is_none_is_a_command_line_refused() -> None:
    code, output = invoke("status", "--admin", "http://127.0.0.1:8082")
    assert code == 2
    assert "host:port or unix:/path" in output


@pytest.mark.parametrize(
    "admin", ["8082", "localhost:", ":8082", "http://localhost:8082", "host:port", "localhost:0", "localhost:65536"]
)
def test_an_address_that_is_none_is_named(admin: str) -> None:
    with pytest.raises(AdminError, match="host:port or unix:/path"):
        get_json(admin, "/status")


def test_status_takes_the_address_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(admin_options, "get_json", lambda admin, path: asked.append(admin) or SNAPSHOT)
    text = (ROOT / "configs" / "edge.minimal.yaml").read_text()
    file = tmp_path / "edge.yaml"
    file.write_text(f'admin: {{listen: "127.0.0.1:4711"}}\n{text}')
    code, output = invoke("status", "-c", str(file), "--json")
    assert (code, asked, json.loads(output)) == (0, ["127.0.0.1:4711"], SNAPSHOT)


SESSION = {"address": "127.0.0.1:5000", "runs": 3, "silent_ms": 1500}


def provider(name: str, **changes: object) -> dict[str, object]:
    """One provider row of a snapshot."""
    row: dict[str, object] = {
        "provider_id": name,
        "node_id": "gpu",
        "type": "vllm",
        "link": "ready",
        "enabled": True,
        "priority": 0,
        "health": {"healthy": True, "reported": "up", "reason": ""},
        "effective": {"in_flight": 3, "capacity": 4, "long_in_flight": 0, "long_capacity": 1, "queued": 2},
    }
    return {**row, **changes}


SNAPSHOT = {
    "edge": {"id": "edge-1", "is_draining": True, "software": "iop_fast 0.1.0", "uptime_ms": 61_000},
    "config": {"revision": 7},
    "queue": {"waiting": 2, "max_queue": 16, "queue_timeout_ms": 30000},
    "nodes": [
        {"node_id": "gpu", "link": "ready", "session": SESSION},
        {"node_id": "closet", "link": "offline", "session": None},
    ],
    "providers": [
        provider("a"),
        provider("b", enabled=False),
        provider("c", link="offline"),
        provider("d", health={"healthy": False, "reported": "unreachable", "reason": "connection refused"}),
    ],
}


def test_status_reads_like_a_table() -> None:
    assert render(SNAPSHOT) == [
        "edge edge-1 (draining), iop_fast 0.1.0, up 61 s, revision 7",
        "queue 2 of 16 waiting, timeout 30000 ms",
        "",
        "NODE    LINK     FROM            RUNS  HEARD",
        "gpu     ready    127.0.0.1:5000  3     1.5 s ago",
        "closet  offline  -               -     -",
        "",
        "PROVIDER  NODE  TYPE  RUNNING  LONG  QUEUED  PRIORITY  STATE",
        "a         gpu   vllm  3/4      0/1   2       0         up",
        "b         gpu   vllm  3/4      0/1   2       0         disabled",
        "c         gpu   vllm  3/4      0/1   2       0         node offline",
        "d         gpu   vllm  3/4      0/1   2       0         down: connection refused",
    ]


def test_check_takes_its_file_as_the_other_commands_do() -> None:
    code, output = invoke("check", "-c", str(ROOT / "configs" / "edge.yaml"))
    assert (code, output.count("accepted as edge configuration")) == (0, 1)
    code, output = invoke("check")
    assert code == 2
    assert "a configuration file expected" in output


def test_up_takes_no_model_and_no_port_beside_a_file(tmp_path: Path) -> None:
    for option in (("--model", "echo"), ("--port", "8080")):
        code, output = invoke("up", "-c", str(tmp_path / "edge.yaml"), *option)
        assert code == 2
        assert "give no model and no port beside it" in output
