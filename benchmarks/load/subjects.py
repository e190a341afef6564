"""The gateways that are measured: each one is a set of processes in front of the same upstream.

The subject's own process is pinned to one core and everything else to the other, so that its CPU time is its own.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

SUBJECT_CORE = {0}
OTHER_CORES = {1}
READY_LIMIT_S = 20.0

HAPROXY_CONFIG = """\
global
  nbthread 1
  maxconn 4000
{log_global}
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
  option http-no-delay
{log_defaults}
frontend front
  bind 127.0.0.1:{port}
{work}
  default_backend back
backend back
  option http-keep-alive
  http-reuse always
  server upstream 127.0.0.1:{upstream} maxconn 4000
"""

# The same work as the Edge does for a request: a log line, a request id, a hash of the token, two answer headers.
SAME_WORK = """\
  unique-id-format %{+X}o\\ %ci:%cp_%fi:%fp_%Ts_%rt:%pid
  unique-id-header x-request-id
  http-request set-var(txn.token) req.hdr(authorization),sha2(256),hex
  http-response set-header x-request-id %[unique-id]
  http-response set-header x-iop-provider upstream
"""

EDGE_CONFIG = """\
edge: {{id: bench, listen: "127.0.0.1:{link}"}}
openai: {{listen: "127.0.0.1:{port}"}}
admin: {{listen: "127.0.0.1:{admin}"}}
models: [{{id: bench, providers: {{p1: served, p2: served}}}}]
nodes:
  - id: bench-node
    token_hash_sha256: {token_hash}
    providers:
      - {{id: p1, type: vllm, endpoint: "http://127.0.0.1:{upstream}", models: [served], capacity: 4000}}
      - {{id: p2, type: vllm, endpoint: "http://127.0.0.1:{upstream}", models: [served], capacity: 4000}}
"""

NODE_CONFIG = """\
id: bench-node
edge: {{address: "127.0.0.1:{link}"}}
token_env: IOP_NODE_TOKEN
"""


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        return port


def cpu_ns(pid: int) -> int:
    """CPU time of a process, all threads, from the scheduler's own accounting."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total


@dataclass
class Subject:
    """One gateway: its client port, and its processes by role. `gateway` is the one that is pinned and compared."""

    name: str
    port: int
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def cpu_ns(self) -> dict[str, int]:
        """CPU time so far by role."""
        return {role: cpu_ns(process.pid) for role, process in self.processes.items()}

    def stop(self) -> None:
        """End the processes."""
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def start(
    command: list[str], cores: set[int], log: Path, environment: dict[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a process on the given cores with its output in a file."""
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env={**os.environ, **(environment or {})})
    os.sched_setaffinity(process.pid, cores)
    return process


def wait_for(check: Callable[[], bool], what: str, log: Path) -> None:
    """Poll until a condition holds."""
    deadline = time.monotonic() + READY_LIMIT_S
    while not check():
        if time.monotonic() > deadline:
            raise SystemExit(f"{what} did not come up:\n{log.read_text()[-3000:]}")
        time.sleep(0.05)


def is_listening(port: int) -> bool:
    """True when something accepts on the port."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


def start_upstream(folder: Path) -> Subject:
    """The upstream itself: "direct" in the tables."""
    port = free_port()
    log = folder / "upstream.log"
    process = start([sys.executable, "-m", "benchmarks.load.upstream", str(port)], OTHER_CORES, log)
    wait_for(lambda: is_listening(port), "upstream", log)
    return Subject("direct", port, {"upstream": process})


def start_haproxy(folder: Path, upstream: int, same_work: bool) -> Subject:
    """HAProxy on one thread, bare or doing the Edge's work."""
    binary = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
    if binary is None:
        raise SystemExit("haproxy expected on PATH (Debian: apt-get install haproxy); the ratios are against it")
    name = "haproxy-same-work" if same_work else "haproxy-bare"
    port = free_port()
    config, log = folder / f"{name}.cfg", folder / f"{name}.log"
    config.write_text(
        HAPROXY_CONFIG.format(
            port=port,
            upstream=upstream,
            log_global=f"  log {folder}/log.sock local0 info" if same_work else "",
            log_defaults="  log global\n  option httplog" if same_work else "",
            work=SAME_WORK if same_work else "",
        )
    )
    process = start([binary, "-db", "-f", str(config)], SUBJECT_CORE, log)
    wait_for(lambda: is_listening(port), name, log)
    return Subject(name, port, {"gateway": process})


def start_edge(folder: Path, upstream: int, name: str = "edge", node_module: str = "iop_fast.cli") -> Subject:
    """Edge and Node of this checkout; the Node may run by another module."""
    from iop_fast.cli.admin_client import AdminError, get_json

    port, link, admin = free_port(), free_port(), free_port()
    token = secrets.token_urlsafe(16)
    edge, node, log = (folder / f"{name}-{file}" for file in ("edge.yaml", "node.yaml", "log"))
    token_hash = hashlib.sha256(token.encode()).hexdigest()
    edge.write_text(EDGE_CONFIG.format(port=port, link=link, admin=admin, upstream=upstream, token_hash=token_hash))
    node.write_text(NODE_CONFIG.format(link=link))
    iop = [sys.executable, "-m"]
    processes = {"gateway": start([*iop, "iop_fast.cli", "edge", "-c", str(edge)], SUBJECT_CORE, log)}
    processes["node"] = start([*iop, node_module, "node", "-c", str(node)], OTHER_CORES, log, {"IOP_NODE_TOKEN": token})
    subject = Subject(name, port, processes)

    def is_ready() -> bool:
        try:
            rows = get_json(f"127.0.0.1:{admin}", "/status")["providers"]
        except AdminError:
            return False
        return all(row["effective"]["capacity"] for row in rows)

    try:
        wait_for(is_ready, "edge and node", log)
    except BaseException:
        subject.stop()
        raise
    return subject
