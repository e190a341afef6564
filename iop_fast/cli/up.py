"""`iop up`: Edge, Node and a model on one machine, as child processes with a token made for the run."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import click
import yaml
from click.core import ParameterSource

from iop_fast.cli import smollm2
from iop_fast.cli.admin_client import AdminError, get_json
from iop_fast.cli.children import Children
from iop_fast.config.loader import load_edge
from iop_fast.errors import ConfigError

READY_LIMIT_S = 60.0
MODEL_LIMIT_S = 180.0  # a cold disk reads 100 MB of weights
EXIT_REFUSED = 2
ANY_HOSTS = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

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
      - {{id: local-{model}, models: [{model}], {provider}}}
"""

NODE_TEMPLATE = """\
id: {node_id}
edge: {{address: "{link}", insecure: true}} # on this machine
token_env: IOP_NODE_TOKEN
native_models:
  - {{id: echo, adapter: echo, options: {{chunk_ms: 20}}}}
"""

# The small model in a process of the Node's.
NATIVE_TEMPLATE = """\
  - id: {id}
    adapter: llama_cpp
    options: {{path: {path}, slots: {slots}, context_tokens: {context_tokens}}}
"""

READY_TEXT = """\
ready: model {model} on {url}/v1

  curl -sN {url}/v1/chat/completions -H 'content-type: application/json' \\
    -d '{{"model": "{model}", "stream": true, "messages": [{{"role": "user", "content": "hello"}}]}}'

  {python} -m pip install --quiet openai
  {python} - <<'PY'
  from openai import OpenAI
  client = OpenAI(base_url="{url}/v1", api_key="any")
  messages = [{{"role": "user", "content": "hello"}}]
  print(client.chat.completions.create(model="{model}", messages=messages).choices[0].message.content)
  PY

What runs and what waits: {page}
Ctrl-C stops it."""


class Stopped(Exception):
    """A signal asked to stop."""


@dataclass(frozen=True)
class Fleet:
    """What one run of `iop up` is made of."""

    edge_file: Path
    node_files: dict[str, Path]
    environment: dict[str, str]
    admin: str
    url: str
    model: str
    loads_model: bool = False  # in the Node: it is ready when the provider is


@click.command()
@click.option(
    "--model",
    type=click.Choice(["smollm2", "echo"]),
    help="The model to serve; smollm2 where it is installed, else echo.",
)
@click.option(
    "--native",
    is_flag=True,
    help="Have the Node run smollm2, not llama.cpp's HTTP server: chats, completions and embeddings only.",
)
@click.option("-c", "--config", type=click.Path(path_type=Path), help="Run the fleet of this Edge file instead.")
@click.option("--port", type=click.IntRange(1, 65535), default=8080, show_default=True, help="Port for clients.")
@click.option("--link-port", type=click.IntRange(1, 65535), default=8081, show_default=True, help="Port for the Node.")
@click.option("--admin-port", type=click.IntRange(1, 65535), default=8082, show_default=True, help="Port of /status.")
@click.pass_context
def up(
    context: click.Context,
    model: str | None,
    native: bool,
    config: Path | None,
    port: int,
    link_port: int,
    admin_port: int,
) -> None:
    """Run Edge and Node together on this machine, to try it out.

    Everything listens on 127.0.0.1. With -c clients and /status find it where FILE says, and each node of FILE runs
    here under a token made for the run, without TLS between it and the Edge: what FILE says of that is not used. Ctrl-C
    stops everything, a second one at once.
    """
    given = [name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]
    if config is not None and len(given) > 1:
        raise click.UsageError("-c says all of the fleet: give no model and no port beside it")
    children = Children()
    catch_signals(children)
    with suppress(Stopped), ExitStack() as stack:
        try:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="iop-up-")))
            token = secrets.token_urlsafe(32)
            if config is not None:
                fleet = own_fleet(config, folder, token)
            else:
                model = model or default_model()
                provider = start_model(stack, children, model, native)
                natives = native_entry() if native and model == smollm2.MODEL_ID else ""
                fleet = small_fleet(folder, token, model, provider, natives, (port, link_port, admin_port))
            run_fleet(stack, children, fleet)
        except Stopped:
            click.echo("stopping", err=True)


def catch_signals(children: Children) -> None:
    """The first Ctrl-C or SIGTERM leaves by `Stopped` whatever is under way, so that the children are stopped in order
    on the way out; any further one kills those that are left."""

    def stop(number: int, frame: FrameType | None) -> None:
        for other in STOP_SIGNALS:
            signal.signal(other, lambda number, frame: children.kill())
        raise Stopped

    for number in STOP_SIGNALS:
        signal.signal(number, stop)


def default_model() -> str:
    """The real model where it is installed, else echo with a line that says so."""
    if smollm2.weights() is not None:
        return smollm2.MODEL_ID
    click.echo(f"the model {smollm2.MODEL_ID} is not installed, serving echo; {smollm2.INSTALL_HINT}", err=True)
    return "echo"


def native_entry() -> str:
    """The small model as an entry of the Node's native_models."""
    return NATIVE_TEMPLATE.format(
        id=smollm2.MODEL_ID,
        path=json.dumps(str(installed_weights())),
        slots=smollm2.SLOTS,
        context_tokens=smollm2.CONTEXT_TOKENS,
    )


def installed_weights() -> Path:
    """The small model's file; an error for people where it is not installed."""
    file = smollm2.weights()
    if file is None:
        raise click.ClickException(f"the model {smollm2.MODEL_ID} is not installed; {smollm2.INSTALL_HINT}")
    return file


def start_model(stack: ExitStack, children: Children, model: str, is_native: bool) -> str:
    """Start the model's server where it has one; return the rest of the provider's entry."""
    if model == "echo":
        return "type: native, profile: echo, capacity: 4"
    file = installed_weights()
    if is_native:
        return f"type: native, profile: {smollm2.MODEL_ID}, capacity: {smollm2.SLOTS}"
    click.echo(f"loading {file.name} ({file.stat().st_size / 1e6:.0f} MB)", err=True)
    port = free_port()
    arguments = ["iop_fast.cli.smollm2", "--port", str(port)]
    stack.enter_context(children.started("the model's server", arguments, os.environ))
    deadline = time.monotonic() + MODEL_LIMIT_S
    while not is_healthy(port):
        children.check()
        if time.monotonic() > deadline:
            raise click.ClickException(f"the model did not load within {MODEL_LIMIT_S:.0f} s")
        time.sleep(0.1)
    return f'type: llama_cpp, endpoint: "http://127.0.0.1:{port}", capacity: {smollm2.SLOTS}'


def is_healthy(port: int) -> bool:
    """True once llama.cpp's server has loaded its model."""
    try:
        return bool(get_json(f"127.0.0.1:{port}", "/health")["status"] == "ok")
    except AdminError:
        return False


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        port: int = held.getsockname()[1]
        return port


def small_fleet(
    folder: Path, token: str, model: str, provider: str, natives: str, ports: tuple[int, int, int]
) -> Fleet:
    """One Edge, one Node, one model."""
    port, link_port, admin_port = ports
    edge, node = folder / "edge.yaml", folder / "node.yaml"
    edge.write_text(
        EDGE_TEMPLATE.format(
            model=model,
            provider=provider,
            port=port,
            link_port=link_port,
            admin_port=admin_port,
            token_hash=hashlib.sha256(token.encode()).hexdigest(),
        ),
        encoding="utf-8",
    )
    node.write_text(NODE_TEMPLATE.format(node_id="local", link=f"127.0.0.1:{link_port}") + natives, encoding="utf-8")
    environment = {**os.environ, "IOP_NODE_TOKEN": token}
    admin, url = f"127.0.0.1:{admin_port}", f"http://127.0.0.1:{port}"
    return Fleet(edge, {"local": node}, environment, admin, url, model, loads_model=bool(natives))


def own_fleet(config: Path, folder: Path, token: str) -> Fleet:
    """The fleet of an Edge file, all of its Nodes on this machine under the run's token.

    The link between them stays on this machine: it needs no TLS, whatever FILE says of it.
    """
    try:
        loaded = load_edge(config).config
    except ConfigError as error:
        click.echo(str(error), err=True)
        raise SystemExit(EXIT_REFUSED) from None
    link = with_port(f"127.0.0.1:{loaded.edge.listen.rpartition(':')[2]}")
    listen, admin = with_port(loaded.openai.listen), with_port(loaded.admin.listen)
    document = yaml.safe_load(config.read_text(encoding="utf-8"))
    document["edge"] = {**(document.get("edge") or {}), "listen": link}
    document["edge"].pop("tls", None)
    for section, address in (("openai", listen), ("admin", admin)):
        document[section] = {**(document.get(section) or {}), "listen": address}
    for entry in document["nodes"]:
        entry["token_hash_sha256"] = hashlib.sha256(token.encode()).hexdigest()
    edge = folder / "edge.yaml"
    edge.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
    node_files = {}
    for number, node in enumerate(loaded.nodes):
        node_files[node.id] = folder / f"node-{number}.yaml"
        node_files[node.id].write_text(NODE_TEMPLATE.format(node_id=node.id, link=link), encoding="utf-8")
    environment = {**os.environ, "IOP_NODE_TOKEN": token}
    scheme = "http" if loaded.openai.tls is None else "https"
    return Fleet(edge, node_files, environment, admin, f"{scheme}://{reachable(listen)}", loaded.models[0].id)


def with_port(address: str) -> str:
    """The address with a port that is free now in the place of port 0."""
    host, _, port = address.rpartition(":")
    return f"{host}:{free_port()}" if port == "0" else address


def reachable(listen: str) -> str:
    """The address by which a program of this machine reaches a listener."""
    host, _, port = listen.rpartition(":")
    return f"{ANY_HOSTS.get(host, host)}:{port}"


def run_fleet(stack: ExitStack, children: Children, fleet: Fleet) -> None:
    """Start Edge and Nodes, say when they are ready, and watch them until a signal comes."""
    click.echo("starting edge and node", err=True)
    edge_arguments = ["iop_fast.cli", "edge", "-c", str(fleet.edge_file)]
    stack.enter_context(children.started("the edge", edge_arguments, fleet.environment))
    for node_id, file in fleet.node_files.items():
        node_arguments = ["iop_fast.cli", "node", "-c", str(file)]
        stack.enter_context(children.started(f"node {node_id}", node_arguments, fleet.environment))
    wait_until_ready(children, fleet)
    page = f"iop top --admin {fleet.admin}" if fleet.admin.startswith("unix:") else f"http://{fleet.admin}/"
    click.echo(READY_TEXT.format(url=fleet.url, model=fleet.model, python=sys.executable, page=page))
    while True:
        children.check()
        time.sleep(0.2)


def wait_until_ready(children: Children, fleet: Fleet) -> None:
    """Wait until every Node is ready, and the model where a Node loads it."""
    deadline = time.monotonic() + (MODEL_LIMIT_S if fleet.loads_model else READY_LIMIT_S)
    while time.monotonic() < deadline:
        children.check()
        try:
            status = get_json(fleet.admin, "/status")
        except AdminError:
            status = {"nodes": [], "providers": []}  # not listening yet; the deadline and the check bound the wait
        if status["nodes"] and all(node["link"] == "ready" for node in status["nodes"]):
            health = [provider["health"] for provider in status["providers"]]
            if not fleet.loads_model or all(one["healthy"] for one in health):
                return
            broken = [one["reason"] for one in health if one["reported"] == "broken"]
            if broken:
                raise click.ClickException(f"the model cannot be loaded: {broken[0]}")
        time.sleep(0.05)
    raise click.ClickException("not every Node became ready in time; the lines above say why")
