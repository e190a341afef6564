"""The Node's `observe` listener: GET /livez, /readyz and /metrics and nothing else. It shows no secrets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from aiohttp import web

from iop_fast.wire import runtime_pb2 as pb

if TYPE_CHECKING:
    from iop_fast.node.app import Node

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STATES = ("up", "loading", "unreachable", "broken")


async def start_observe(host: str, port: int, node: Node) -> tuple[Callable[[], Awaitable[None]], int]:
    """Listen; return what stops it and the port. Raises OSError when the address cannot be had."""
    app = web.Application(client_max_size=1024)

    async def get_livez(request: web.Request) -> web.Response:
        return web.Response(text="live\n")

    async def get_readyz(request: web.Request) -> web.Response:
        if node.is_ready:
            return web.Response(text="ready\n")
        return web.Response(status=503, text="not ready: no session with the Edge takes requests\n")

    async def get_metrics(request: web.Request) -> web.Response:
        body = "".join(f"{line}\n" for line in metric_lines(node)).encode()
        return web.Response(body=body, headers={"content-type": METRICS_TYPE})

    app.router.add_get("/livez", get_livez)
    app.router.add_get("/readyz", get_readyz)
    app.router.add_get("/metrics", get_metrics)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, port)
        await site.start()
    except OSError:
        await runner.cleanup()
        raise
    return runner.cleanup, int(runner.addresses[0][1])


def metric_lines(node: Node) -> Iterator[str]:
    """Yield the lines of the Prometheus text format. Label values are ids of the configuration."""
    yield "# HELP iop_node_ready Whether a session with the Edge takes requests."
    yield "# TYPE iop_node_ready gauge"
    yield f"iop_node_ready {int(node.is_ready)}"
    yield "# HELP iop_node_runs Requests that run on this Node."
    yield "# TYPE iop_node_runs gauge"
    yield f"iop_node_runs {sum(len(relay.runs) for relay in node.dialer.relays)}"
    yield "# HELP iop_node_tasks Tasks of the event loop; flat when the load is."
    yield "# TYPE iop_node_tasks gauge"
    yield f"iop_node_tasks {len(asyncio.all_tasks())}"
    yield "# HELP iop_node_retired_registries Replaced sets of adapters whose requests go on."
    yield "# TYPE iop_node_retired_registries gauge"
    yield f"iop_node_retired_registries {node.router.retired_count}"
    yield "# HELP iop_node_provider_state The state of each provider: 1 for the one it is in."
    yield "# TYPE iop_node_provider_state gauge"
    for state in node.router.current.states():
        name = pb.ProviderState.State.Name(state.state).lower()
        for each in STATES:
            yield f'iop_node_provider_state{{provider="{state.provider_id}",state="{each}"}} {int(each == name)}'
