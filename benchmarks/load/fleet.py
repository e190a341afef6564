"""Edge and Node of this checkout as a subject, and what the harness asks their admin listener."""

from __future__ import annotations

import hashlib
import http.client
import secrets
import shutil
import sys
from pathlib import Path
from typing import Any

import iop_fast
from benchmarks.load.subjects import (
    LINE,
    OTHER_CORES,
    SLOTS,
    SUBJECT_CORE,
    Subject,
    Target,
    free_port,
    ready,
    start,
)

EDGE_CONFIG = """\
edge:
  id: bench
  listen: "127.0.0.1:{link}"
{transport}
openai: {{listen: "127.0.0.1:{port}"}}
admin: {{listen: "127.0.0.1:{admin}"}}
provider_pool: {{max_queue: {line}, queue_timeout_ms: 30000}}
models:
  - {{id: wide, providers: {{p1: served, p2: served}}}}
  - {{id: narrow, providers: {{p3: served}}}}
  - {{id: stalled, providers: {{p4: served}}}}
  - {{id: beside, providers: {{p5: served}}}}
nodes:
  - id: bench-node
    token_hash_sha256: {token_hash}
    providers:
      - {{id: p1, type: vllm, endpoint: "{upstream}", models: [served], capacity: {capacity}}}
      - {{id: p2, type: vllm, endpoint: "{upstream}", models: [served], capacity: 8000}}
      - {{id: p3, type: vllm, endpoint: "{upstream}", models: [served], capacity: {slots}}}
      - {{id: p4, type: vllm, endpoint: "{upstream}", models: [served], capacity: 2}}
      - {{id: p5, type: vllm, endpoint: "{upstream}", models: [served], capacity: {slots}}}
"""

NODE_CONFIG = """\
id: bench-node
edge: {{address: "127.0.0.1:{link}"}}
{transport}
observe: {{listen: "127.0.0.1:{observe}"}}
token_env: IOP_NODE_TOKEN
"""


ROOT = Path(__file__).resolve().parents[2]


class Fleet(Subject):
    """An Edge with one Node. Its configuration can be changed while it runs."""

    @property
    def stalled(self) -> Target:
        """A model whose backend has two slots, to be stalled."""
        return Target(self.wide.port, "stalled")

    @property
    def beside(self) -> Target:
        """A model with a backend of its own."""
        return Target(self.wide.port, "beside")

    def configure(self, **changes: int) -> None:
        """Write the Edge's file; `line` is max_queue, `capacity` that of one wide provider."""
        self.settings = {**self.settings, **changes}
        self.file.write_text(EDGE_CONFIG.format(**self.settings))

    def prepare(self, file: Path, settings: dict[str, Any], observe: int) -> None:
        """Set what `configure` fills in, and write the file."""
        self.file, self.settings, self.observe = file, settings, observe
        self.configure()

    def refresh(self) -> dict[str, Any]:
        """Apply the file; return the report."""
        from iop_fast.cli.admin_client import post_json

        report: dict[str, Any] = post_json(self.admin, "/refresh", {"mode": "apply"})
        return report

    def status(self) -> dict[str, Any]:
        """The status page."""
        from iop_fast.cli.admin_client import get_json

        page: dict[str, Any] = get_json(self.admin, "/status")
        return page

    def metrics(self) -> str:
        """The Edge's metrics as text."""
        return scrape(self.admin)

    def node_metrics(self) -> str:
        """The Node's metrics as text."""
        return scrape(f"127.0.0.1:{self.observe}")

    def is_idle(self) -> bool:
        """True when nothing runs or waits."""
        rows = self.status()["providers"]
        return not any(row["effective"]["in_flight"] or row["effective"]["queued"] for row in rows)


def scrape(address: str) -> str:
    """GET /metrics."""
    connection = http.client.HTTPConnection(address, timeout=10)
    try:
        connection.request("GET", "/metrics")
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def copied(folder: Path) -> Path:
    """Copy this checkout's code, once, to run it from there: a build meanwhile would change it under the processes."""
    target = folder / "checkout"
    if not target.exists():
        for package in ("iop_fast", "benchmarks"):
            shutil.copytree(ROOT / package, target / package, ignore=shutil.ignore_patterns("*.c", "__pycache__"))
    return target


def start_edge(
    folder: Path,
    upstream: int,
    name: str = "edge",
    node_module: str = "iop_fast.cli",
    transport: str = "",
) -> Fleet:
    """Edge and Node of this checkout; the Node may run by another module, their link by another transport."""
    from iop_fast.cli.admin_client import AdminError

    port, link, admin, observe = free_port(), free_port(), free_port(), free_port()
    token = secrets.token_urlsafe(16)
    edge, node, log = (folder / f"{name}-{file}" for file in ("edge.yaml", "node.yaml", "log"))
    by = f"link: {{transport: {transport}}}" if transport else ""
    settings = {
        "transport": f"  {by}",
        "port": port,
        "link": link,
        "admin": admin,
        "upstream": f"http://127.0.0.1:{upstream}",
        "token_hash": hashlib.sha256(token.encode()).hexdigest(),
        "line": LINE,
        "slots": SLOTS,
        "capacity": 8000,
    }
    fleet = Fleet(
        name,
        Target(port, "wide"),
        Target(port, "narrow"),
        has_line=True,
        refusal=429,
        admin=f"127.0.0.1:{admin}",
        version=iop_fast.__version__,
    )
    fleet.prepare(edge, settings, observe)
    node.write_text(NODE_CONFIG.format(link=link, observe=observe, transport=by))
    iop = [sys.executable, "-m"]
    edge_command, node_command = [*iop, "iop_fast.cli", "edge"], [*iop, node_module, "node"]
    code = copied(folder)
    fleet.processes["gateway"] = start([*edge_command, "-c", str(edge)], SUBJECT_CORE, log, folder=code)
    fleet.processes["node"] = start([*node_command, "-c", str(node)], OTHER_CORES, log, {"IOP_NODE_TOKEN": token}, code)

    def is_ready() -> bool:
        try:
            rows = fleet.status()["providers"]
        except AdminError:
            return False
        return all(row["effective"]["capacity"] for row in rows)

    ready(fleet, is_ready, log)
    return fleet
