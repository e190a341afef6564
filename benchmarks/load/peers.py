"""The gateways for language models that people use: LiteLLM's proxy (PyPI) and Portkey's gateway (npm).

Each is installed once, into an environment of its own under build/peers, by its registry's client; where that cannot be
done it is absent and the tables say why. Neither may fetch anything else.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import venv
from functools import partial
from pathlib import Path

from benchmarks.load.asks import TOKEN
from benchmarks.load.subjects import (
    SLOTS,
    SUBJECT_CORE,
    Absent,
    Subject,
    Target,
    first_line,
    free_port,
    is_listening,
    ready,
    start,
)

HOME = Path(__file__).resolve().parents[2] / "build" / "peers"
LITELLM = "litellm[proxy]>=1.100,<2"
PORTKEY = "@portkey-ai/gateway@^1.15.0"
INSTALL_LIMIT_S = 600
START_LIMIT_S = 90.0

LITELLM_CONFIG = """\
model_list:
  - model_name: wide
    litellm_params:
      {{model: openai/served, api_base: "http://127.0.0.1:{upstream}/v1", api_key: none, max_retries: 0}}
  - model_name: narrow
    litellm_params:
      model: openai/served
      api_base: "http://127.0.0.1:{upstream}/v1"
      api_key: none
      max_retries: 0
      max_parallel_requests: {slots}
router_settings: {{num_retries: 0, disable_cooldowns: true}}
litellm_settings: {{telemetry: false, request_timeout: 600, set_verbose: false}}
general_settings: {{master_key: {token}}}
"""

LITELLM_ENVIRONMENT = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches a list of prices at import
    "LITELLM_MODE": "PRODUCTION",
    "LITELLM_LOG": "ERROR",
    "NO_DOCS": "True",
}


def installed(folder: Path, what: str, commands: list[list[str]]) -> None:
    """Run the commands that install a peer, once; raise Absent when one of them fails."""
    mark = folder / ".installed"
    if mark.exists() and mark.read_text() == what:
        return
    print(f"installing {what} into {folder} (once)", flush=True)
    for command in commands:
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
        except subprocess.TimeoutExpired:
            raise Absent(f"{what}: its registry did not answer within {INSTALL_LIMIT_S} s") from None
        if run.returncode:
            raise Absent(f"{what} cannot be installed: {run.stderr.strip()[-300:]}")
    mark.write_text(what)


def start_litellm(folder: Path, upstream: int) -> Subject:
    """LiteLLM's proxy with one worker, no database, one master key."""
    home = HOME / "litellm"
    if not (home / "bin" / "python").exists():
        venv.create(home, with_pip=True, clear=True)
    installed(home, LITELLM, [[str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", LITELLM]])
    port = free_port()
    config, log = folder / "litellm.yaml", folder / "litellm.log"
    config.write_text(LITELLM_CONFIG.format(upstream=upstream, slots=SLOTS, token=TOKEN))
    command = [str(home / "bin" / "litellm"), "--config", str(config), "--host", "127.0.0.1", "--port", str(port)]
    environment = {**LITELLM_ENVIRONMENT, "PATH": f"{home}/bin:{os.environ.get('PATH', '')}"}
    process = start([*command, "--num_workers", "1"], SUBJECT_CORE, log, environment)
    version = first_line(
        [
            str(home / "bin" / "python"),
            "-c",
            "from importlib.metadata import version; print(version('litellm'))",
        ]
    )
    subject = Subject(
        "litellm",
        Target(port, "wide"),
        Target(port, "narrow"),
        has_line=True,
        processes={"gateway": process},
        version=version,
        note="line without bound",
    )
    ready(subject, partial(is_listening, port), log, START_LIMIT_S)
    return subject


def start_portkey(folder: Path, upstream: int) -> Subject:
    """Portkey's gateway; the upstream is named by header fields, as its clients do."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        raise Absent("no npm here (Debian: apt-get install npm)")
    home = HOME / "portkey"
    home.mkdir(parents=True, exist_ok=True)
    installed(home, PORTKEY, [[npm, "install", "--no-audit", "--no-fund", "--prefix", str(home), PORTKEY]])
    package = home / "node_modules" / "@portkey-ai" / "gateway"
    port, log = free_port(), folder / "portkey.log"
    command = [node, str(package / "build" / "start-server.js"), "--headless", f"--port={port}"]
    process = start(command, SUBJECT_CORE, log, {"NODE_ENV": "production", "TRUSTED_CUSTOM_HOSTS": "127.0.0.1"})
    fields = (("x-portkey-provider", "openai"), ("x-portkey-custom-host", f"http://127.0.0.1:{upstream}/v1"))
    subject = Subject(
        "portkey",
        Target(port, "served", fields),
        processes={"gateway": process},
        version=json.loads((package / "package.json").read_text())["version"],
        note="no bound on what runs at once",
    )
    ready(subject, partial(is_listening, port), log, START_LIMIT_S)
    return subject
