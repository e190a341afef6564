"""The two HTTP clients that carry a backend's runs, and which one does.

What both do, and what happens when, stands in `http_run`. Plain HTTP is carried by `plain_run`, at a fifth of the
library's CPU; aiohttp carries what needs TLS. It is told to leave everything alone: no header of its own, no redirect,
no cookie, no environment, no decompression, no limit of connections, no total timeout.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple, Protocol

import aiohttp

from iop_fast.config.payload import TimeoutSettings
from iop_fast.node.adapters.http_rules import Endpoint, request_head
from iop_fast.node.adapters.http_run import Connector, HttpRun
from iop_fast.node.adapters.plain_pool import PlainPool
from iop_fast.node.adapters.plain_run import PlainRun
from iop_fast.node.health import Health
from iop_fast.seams import TunnelRequest, UpstreamRun, UpstreamSink

KIB = 1024
FIELD_BYTES_MAX = 64 * KIB
FIELDS_MAX = 256
READ_BYTES = 64 * KIB

SKIP_AUTO_HEADERS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


class Backend(NamedTuple):
    """What a client is made for. `key` is the provider's own, "" for none; idle connections are kept `keepalive_s`."""

    endpoint: Endpoint
    key: str
    keepalive_s: float
    health: Health
    loop: asyncio.AbstractEventLoop


class HttpClient(Protocol):
    """Starts runs on one backend and holds its connections."""

    def start(self, request: TunnelRequest, timeouts: TimeoutSettings, sink: UpstreamSink) -> UpstreamRun:
        """Start a run; raise ValueError for a request that cannot be written as HTTP."""
        ...

    async def close(self) -> None:
        """Close idle connections. Called once, when the last run has ended."""
        ...


def client_for(backend: Backend) -> HttpClient:
    """Return the client of a backend, by its scheme."""
    return LibraryClient(backend) if backend.endpoint.is_tls else PlainClient(backend)


class PlainClient:
    """Runs on connections of our own."""

    __slots__ = ("_backend", "_host_field", "_path", "_pool", "_target")

    def __init__(self, backend: Backend) -> None:
        endpoint = backend.endpoint
        self._backend = backend
        self._host_field = endpoint.host_field
        self._pool = PlainPool(endpoint.host, endpoint.port, backend.keepalive_s, backend.loop)
        self._path: bytes | None = None  # of the last request, and what it was asked for: most ask for the same
        self._target = b""

    def start(self, request: TunnelRequest, timeouts: TimeoutSettings, sink: UpstreamSink) -> UpstreamRun:
        """See HttpClient."""
        backend = self._backend
        block = request_head(
            request.method,
            self._target_of(request.path),
            self._host_field,
            request.headers,
            "" if request.caller_authorized else backend.key,
            request.body_length,
            request.body,
        )
        run = PlainRun(self._pool, backend.health, timeouts, block, request, sink, backend.loop)
        run.start()
        return run

    def _target_of(self, path: bytes) -> bytes:
        if path != self._path:
            self._target = self._backend.endpoint.target(path)
            self._path = path
        return self._target

    async def close(self) -> None:
        """See HttpClient."""
        self._pool.close()


class LibraryClient:
    """Runs on aiohttp."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """The library's client, made at its first use."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=Connector(self._backend.keepalive_s),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
                skip_auto_headers=SKIP_AUTO_HEADERS,
                read_bufsize=READ_BYTES,
                max_line_size=FIELD_BYTES_MAX,
                max_field_size=FIELD_BYTES_MAX,
                max_headers=FIELDS_MAX,
            )
        return self._session

    def start(self, request: TunnelRequest, timeouts: TimeoutSettings, sink: UpstreamSink) -> UpstreamRun:
        """See HttpClient."""
        backend = self._backend
        url = backend.endpoint.url(request.path)
        key = "" if request.caller_authorized else backend.key  # the caller's token is there in its place
        return HttpRun(self.session, backend.health, timeouts, url, key, request, sink)

    async def close(self) -> None:
        """See HttpClient."""
        if self._session is not None:
            await self._session.close()
