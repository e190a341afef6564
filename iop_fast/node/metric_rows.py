"""What a Node's metrics stand at: rows of the families of `metric_table`, read piece by piece on the event loop.

Providers are those of the configuration that serves now; what is counted of others is not shown.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from iop_fast.metrics import Rows
from iop_fast.node import metric_table as table
from iop_fast.wire import runtime_pb2 as pb

if TYPE_CHECKING:
    from iop_fast.node.app import Node

STATES = ("up", "loading", "unreachable", "broken")


def read(node: Node) -> Iterator[Rows]:
    """Yield everything that /metrics of a Node shows beside what every process has."""
    dialer, router = node.dialer, node.router
    session = dialer.session
    yield table.READY, [((), int(node.is_ready))]
    yield table.SESSIONS, [((), dialer.sessions_begun)]
    yield table.SESSION_GENERATION, [((), 0 if session is None else session.generation)]
    yield table.PAYLOAD_REVISION, [((), 0 if session is None else session.payload_revision or 0)]
    yield table.RUNS, [((), sum(len(relay.runs) for relay in dialer.relays))]
    yield from provider_rows(node)
    yield table.RETIRED, [((), router.retired_count)]
    for family, unit in ((table.LINK_BYTES, "bytes"), (table.LINK_MESSAGES, "messages"), (table.LINK_FRAMES, "frames")):
        yield (
            family,
            [((direction,), getattr(node.traffic, f"{direction}_{unit}")) for direction in ("sent", "received")],
        )
    if node.traces is not None:
        yield table.SPANS, [((result,), count) for result, count in node.traces.counts().items()]
    yield table.TASKS, [((), len(asyncio.all_tasks()))]


def provider_rows(node: Node) -> Iterator[Rows]:
    """Each provider's state and runs."""
    router = node.router
    providers = router.current.providers
    yield (
        table.RUNS_ENDED,
        [
            ((provider_id, status_name(status)), count)
            for (provider_id, status), count in router.ended.items()
            if provider_id in providers
        ],
    )
    running = dict.fromkeys(providers, 0)
    for relay in node.dialer.relays:
        for run in relay.runs.values():
            if run.provider_id in running:
                running[run.provider_id] += 1
    yield table.PROVIDER_RUNS, [((provider_id,), count) for provider_id, count in running.items()]
    states = [
        (state.provider_id, pb.ProviderState.State.Name(state.state).lower()) for state in router.current.states()
    ]
    yield (
        table.PROVIDER_STATE,
        [((provider_id, each), int(name == each)) for provider_id, name in states for each in STATES],
    )


def status_name(status: int) -> str:
    """Name a run's end."""
    return pb.RunEnd.Status.Name(status).lower()  # type: ignore[arg-type]
