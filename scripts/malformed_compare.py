"""The table of hostile HTTP inputs (tests/fakes/http_inputs.py) sent to our front, through HAProxy and through nginx.

For each input: the statuses of all answers, and what was taken for a request (for the proxies, what they passed on). At
the end, what is worth reading: inputs that two servers cut into different requests, and inputs of which we serve what
another refuses. Exit code 1 when our front and a proxy cut the same bytes differently. usage: malformed_compare.py [-v]
"""

from __future__ import annotations

import asyncio
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

ROOT = Path(__file__).resolve().parents[1]
STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9]{2})[ \r]")
FOLLOWS = b"GET /follows HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
SILENCE_S = 0.5

HAPROXY = """
global
    log stdout format raw local0 emerg
defaults
    mode http
    timeout client 3s
    timeout server 3s
    timeout connect 1s
frontend in
    bind 127.0.0.1:{port}
    default_backend out
backend out
    http-reuse never
    server one 127.0.0.1:{backend}
"""
NGINX = """
daemon off;
master_process off;
error_log /dev/null crit;
pid {folder}/nginx.pid;
events {{ worker_connections 128; }}
http {{
    access_log off;
    client_body_temp_path {folder}/a; proxy_temp_path {folder}/b; fastcgi_temp_path {folder}/c;
    uwsgi_temp_path {folder}/d; scgi_temp_path {folder}/e;
    server {{
        listen 127.0.0.1:{port};
        client_max_body_size 32m;
        location / {{ proxy_pass http://127.0.0.1:{backend}; proxy_http_version 1.1; proxy_request_buffering off; }}
    }}
}}
"""


class Seen(NamedTuple):
    """What one server made of an input: the statuses of its answers, and the requests (method, body) it took."""

    statuses: tuple[int, ...]
    requests: tuple[tuple[bytes, bytes], ...]


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def talk(port: int, sent: bytes) -> tuple[int, ...]:
    """Send an input and one good request behind it; the statuses of everything that comes back."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent + FOLLOWS)
    answers = b""
    with suppress(ConnectionError, TimeoutError):
        while data := await asyncio.wait_for(reader.read(65_536), SILENCE_S):
            answers += data
    writer.transport.abort()
    return tuple(int(status) for status in STATUS.findall(answers))


async def look(port: int, sent: bytes, service: Any) -> Seen:
    """One input at one server, all of which end at the same recording service."""
    service.served.clear()
    statuses = await talk(port, sent)
    requests = tuple((one.method, one.body) for one in service.served if one.path != b"/follows")
    return Seen(statuses, requests)


async def wait_for(port: int) -> None:
    """Return once somebody listens."""
    for _ in range(100):
        with suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.05)
    raise RuntimeError(f"nobody listens on port {port}")


def start(folder: Path, backend: int) -> tuple[dict[str, int], list[subprocess.Popen[bytes]]]:
    """Start both proxies."""
    ports = {"haproxy": free_port(), "nginx": free_port()}
    haproxy, nginx = folder / "haproxy.cfg", folder / "nginx.conf"
    haproxy.write_text(HAPROXY.format(port=ports["haproxy"], backend=backend))
    nginx.write_text(NGINX.format(port=ports["nginx"], backend=backend, folder=folder))
    commands = (["haproxy", "-f", haproxy], ["nginx", "-p", folder, "-c", nginx])
    return ports, [subprocess.Popen(command, stderr=subprocess.DEVNULL) for command in commands]


def cut_differently(one: Seen, other: Seen) -> bool:
    """True when two servers took different requests from the same bytes, not merely fewer of them."""
    count = min(len(one.requests), len(other.requests))
    return one.requests[:count] != other.requests[:count]


def report(found: dict[str, dict[str, Seen]], is_verbose: bool) -> int:
    """Print what is worth reading; return the exit code."""
    different, laxer, same = [], [], 0
    for name, seen in found.items():
        ours = seen["ours"]
        line = "  ".join(f"{who} {list(one.statuses)} {len(one.requests)}" for who, one in seen.items())
        if is_verbose:
            print(f"{name:50} {line}")
        others = [seen["haproxy"], seen["nginx"]]
        if any(cut_differently(ours, other) for other in others):
            different.append(f"{name:50} {line}")
        elif any(len(ours.requests) > len(other.requests) for other in others):
            laxer.append(f"{name:50} {line}")
        elif all(len(ours.requests) == len(other.requests) for other in others):
            same += 1
    print(f"\n{len(found)} inputs; all three take the same requests: {same}")
    print(f"cut differently: {len(different)}", *different, sep="\n  ")
    print(f"served by us, refused by another: {len(laxer)}", *laxer, sep="\n  ")
    return 1 if different else 0


async def work(is_verbose: bool) -> int:
    """Run every input at every server."""
    from iop_fast._core.clock import MonotonicClock
    from iop_fast.config.schema.front import HttpLimits
    from iop_fast.edge.front.listener import Front
    from tests.fakes.http_inputs import INPUTS
    from tests.integration.test_http_hostile import StubService

    service = StubService()
    front = Front(service, HttpLimits(), MonotonicClock(), asyncio.get_running_loop())
    await front.start("127.0.0.1", 0)
    found: dict[str, dict[str, Seen]] = {}
    with tempfile.TemporaryDirectory() as name:
        ports, running = start(Path(name), front.port)
        try:
            for port in ports.values():
                await wait_for(port)
            for case in INPUTS:
                places = {"ours": front.port, **ports}
                found[case.name] = {who: await look(port, case.sent, service) for who, port in places.items()}
        finally:
            for process in running:
                process.terminate()
                process.wait()
            front.close()
    return report(found, is_verbose)


def main() -> int:
    """Check what is needed and go."""
    for program in ("haproxy", "nginx"):
        if shutil.which(program) is None:
            print(f"malformed_compare: {program} expected, `apt-get install haproxy nginx-light`", file=sys.stderr)
            return 2
    sys.path.insert(0, str(ROOT))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work("-v" in sys.argv[1:]))


if __name__ == "__main__":
    raise SystemExit(main())
