"""An HTTP adapter under test, with one of the two clients that it may have."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from iop_fast.config.payload import TimeoutSettings
from iop_fast.node.adapters import http_backend
from iop_fast.node.adapters.http_client import LibraryClient, PlainClient
from iop_fast.node.adapters.http_run import HttpRun
from iop_fast.node.adapters.openai_compat import OpenAICompatAdapter, make_openai_compat
from iop_fast.node.adapters.plain_run import PlainRun
from iop_fast.seams import TunnelRequest
from tests.integration.node_bench import (
    RecordingSink,
    adapter_settings,
    provider_payload,
    surroundings,
    tunnel,
)

OK_JSON = b'{"ok":true}'


def use_client(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let `plain` or `library` carry plain HTTP: the name of an HTTP client."""
    if name == "library":
        monkeypatch.setattr(http_backend, "client_for", LibraryClient)
    return name


class Bench:
    """An adapter and what starts runs on it."""

    def __init__(self, adapter: OpenAICompatAdapter) -> None:
        self.adapter = adapter

    def start(
        self, request: TunnelRequest | None = None, timeouts: TimeoutSettings | None = None
    ) -> tuple[HttpRun | PlainRun, RecordingSink]:
        sink = RecordingSink()
        limits = timeouts or TimeoutSettings(5_000, 60_000, 60_000)
        run = self.adapter.upstream(provider_payload(timeouts=limits)).start(request or tunnel(), sink)
        assert isinstance(run, PlainRun if isinstance(self.adapter.client, PlainClient) else HttpRun)
        return run, sink

    async def run(self, request: TunnelRequest | None = None, **changes: Any) -> RecordingSink:
        _, sink = self.start(request, **changes)
        await sink.finished()
        return sink


@asynccontextmanager
async def bench(
    endpoint: str, environ: dict[str, str] | None = None, limits: dict[str, Any] | None = None, **settings: Any
) -> AsyncIterator[Bench]:
    adapter = make_openai_compat(adapter_settings(endpoint, **settings), surroundings(environ, **(limits or {})))
    assert isinstance(adapter, OpenAICompatAdapter)
    try:
        yield Bench(adapter)
    finally:
        await adapter.close()
        await asyncio.sleep(0.01)  # uvloop closes transports in a later turn
