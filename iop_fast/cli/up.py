"""`iop up`: Edge, Node and a model on one machine, as two child processes with a token made for the run.

The children hold the reading end of a pipe of ours (their lifeline): however this process dies, they end too.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType

import click

from iop_fast.cli.admin_client import AdminError, get_json

READY_LIMIT_S = 60.0
STOP_LIMIT_S = 15.0

EDGE_TEMPLATE = """\
edge: {{id: local, listen: "127.0.0.1:{link_port}"}}
openai: {{listen: "127.0.0.1:{port}"}}
admin: {{listen: "127.0.0.1:{admin_port}"}}
models:
  - id: {model}
    providers: {{local-{model}: {model}}}
nodes:
  - id: local
    token_hash_sha256: {token_hash}
    providers:
      - {{id: local-{model}, type: native, profile: {model}, models: [{model}], capacity: 4}}
"""

NODE_TEMPLATE = """\
id: local
edge: {{address: "127.0.0.1:{link_port}"}}
token_env: IOP_NODE_TOKEN
native_models:
  - {{id: echo, engine: echo, chunk_ms: 20}}
"""

READY_TEXT = """\
ready: model {model} on http://127.0.0.1:{port}/v1

  curl -sN http://127.0.0.1:{port}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "hello"}}]}}'

  python - <<'PY'
  from openai import OpenAI
  client = OpenAI(base_url="http://127.0.0.1:{port}/v1", api_key="any")
  messages = [{{"role": "user", "content": "hello"}}]
  print(client.chat.completions.create(model="{model}", messages=messages).choices[0].message.content)
  PY

Ctrl-C stops it."""


class Stopped(Exception):
    """A signal asked to stop."""


@click.command()
@click.option("--model", type=click.Choice(["echo"]), default="echo", show_default=True, help="The model to serve.")
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="Port for clients.")
@click.option("--link-port", type=click.IntRange(1, 65535), default=8081, show_default=True, help="Port for the Node.")
@click.option(
    "--admin-port", type=click.IntRange(1, 65535), default=8082, show_default=True, help="Port for operators."
)
def up(model: str, port: int, link_port: int, admin_port: int) -> None:
    """Run Edge and Node together on this machine, to try it out.

    Everything listens on 127.0.0.1. Ctrl-C stops both.
    """
    token = secrets.token_urlsafe(32)
    values = {
        "model": model,
        "port": port,
        "link_port": link_port,
        "admin_port": admin_port,
        "token_hash": hashlib.sha256(token.encode()).hexdigest(),
    }
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop_on_signal)
    with ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iop-up-")))
            (folder / "edge.yaml").write_text(EDGE_TEMPLATE.format(**values), encoding="utf-8")
            (folder / "node.yaml").write_text(NODE_TEMPLATE.format(**values), encoding="utf-8")
            environment = {**os.environ, "IOP_NODE_TOKEN": token}
            children = {
                kind: stack.enter_context(child_program(kind, folder / f"{kind}.yaml", environment))
                for kind in ("edge", "node")
            }
            wait_until_ready(children, f"127.0.0.1:{admin_port}")
            click.echo(READY_TEXT.format(**values))
            while True:
                check_children(children)
                time.sleep(0.2)
        except Stopped:
            click.echo("stopping", err=True)


def stop_on_signal(number: int, frame: FrameType | None) -> None:
    """Leave the wait by an exception, so that the children are stopped on the way out."""
    raise Stopped


@contextmanager
def child_program(kind: str, config: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """Start `iop KIND` on a lifeline; at the end ask it to stop and, past the limit, kill it."""
    lifeline, held = os.pipe()
    command = [sys.executable, "-m", "iop_fast.cli", kind, "-c", str(config), "--lifeline", str(lifeline)]
    # A session of its own: Ctrl-C reaches this process alone, which then stops the children in order.
    child = subprocess.Popen(command, env=environment, pass_fds=[lifeline], start_new_session=True)
    os.close(lifeline)
    try:
        yield child
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        child.terminate()
        try:
            child.wait(STOP_LIMIT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        os.close(held)


def wait_until_ready(children: dict[str, subprocess.Popen[bytes]], admin: str) -> None:
    """Wait until the Edge has a ready Node."""
    deadline = time.monotonic() + READY_LIMIT_S
    while time.monotonic() < deadline:
        check_children(children)
        try:
            if any(provider["effective"]["capacity"] for provider in get_json(admin, "/status")["providers"]):
                return
        except AdminError:
            pass  # not listening yet; the deadline and check_children bound the wait
        time.sleep(0.05)
    raise click.ClickException(f"no Node became ready within {READY_LIMIT_S:.0f} s; the lines above say why")


def check_children(children: dict[str, subprocess.Popen[bytes]]) -> None:
    """Fail when a child has ended by itself."""
    for kind, child in children.items():
        if child.poll() is not None:
            raise click.ClickException(f"the {kind} ended with exit code {child.returncode}; the lines above say why")
