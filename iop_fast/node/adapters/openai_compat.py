"""The adapter of OpenAI-compatible servers: where one is, with which key, and its pool of connections.

aiohttp carries the requests and is told to leave everything alone: no header of its own, no redirect, no cookie, no
environment, no decompression, no limit of connections, no total timeout. What a run does with it is in `http_run`.
"""

from __future__ import annotations

import asyncio
import re

import aiohttp

from iop_fast.config.payload import AdapterSettings, ProviderPayload, TimeoutSettings
from iop_fast.node.adapters import Adapter, BrokenAdapter, Surroundings
from iop_fast.node.adapters.http_rules import Endpoint, connect_reason, read_endpoint
from iop_fast.node.adapters.http_run import Connector, HttpRun
from iop_fast.node.health import Health
from iop_fast.seams import TunnelRequest, Upstream, UpstreamRun, UpstreamSink

KIB = 1024
FIELD_BYTES_MAX = 64 * KIB
FIELDS_MAX = 256
READ_BYTES = 64 * KIB
PROBE_LIMIT_S = 5.0

SKIP_AUTO_HEADERS = ("Accept", "Accept-Encoding", "User-Agent", "Content-Type")


def make_openai_compat(settings: AdapterSettings, surroundings: Surroundings) -> Adapter:
    """Make the adapter of an OpenAI-compatible backend; raise BrokenAdapter."""
    if settings.options:
        raise BrokenAdapter(f"options: expected none, got {', '.join(name for name, _ in settings.options)}")
    place, text = "endpoint", settings.endpoint
    if settings.endpoint_env:
        place = f"variable {settings.endpoint_env} of the Node's environment (endpoint_env)"
        text = surroundings.environ.get(settings.endpoint_env, "")
        if not text:
            raise BrokenAdapter(f"{place} is not set")
    try:
        endpoint = read_endpoint(text)
    except ValueError as error:
        raise BrokenAdapter(f"{place}: {error}") from None
    key = ""
    if settings.api_key_env:
        place = f"variable {settings.api_key_env} of the Node's environment (api_key_env)"
        key = surroundings.environ.get(settings.api_key_env, "").strip()
        if not key:
            raise BrokenAdapter(f"{place} is not set")
        if re.fullmatch(r"[\x21-\x7e]+", key) is None:
            raise BrokenAdapter(f"{place}: expected printable ASCII without spaces")
    return OpenAICompatAdapter(endpoint, key, surroundings)


class OpenAICompatAdapter:
    """One OpenAI-compatible backend: its pool of connections and its health."""

    def __init__(self, endpoint: Endpoint, key: str, surroundings: Surroundings) -> None:
        limits = surroundings.limits
        self.endpoint = endpoint
        self.key = key
        self.loop = surroundings.loop
        self._health = Health(surroundings.loop, self._probe, first_ms=limits.probe_ms_min, most_ms=limits.probe_ms_max)
        self._keepalive_s = limits.upstream_idle_ms / 1000
        self._session: aiohttp.ClientSession | None = None

    @property
    def health(self) -> Health:
        """Whether connections can be made."""
        return self._health

    @property
    def session(self) -> aiohttp.ClientSession:
        """The client, made at its first use."""
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=Connector(self._keepalive_s),
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

    def upstream(self, provider: ProviderPayload) -> Upstream:
        """Return the backend with a provider's timeouts."""
        return OpenAICompatUpstream(self, provider.timeouts)

    async def close(self) -> None:
        """Close idle connections and stop connect attempts."""
        self._health.close()
        if self._session is not None:
            await self._session.close()

    async def _probe(self) -> str | None:
        """Connect, with TLS where the endpoint has it, and leave again."""
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                _, writer = await asyncio.open_connection(
                    self.endpoint.host, self.endpoint.port, ssl=True if self.endpoint.is_tls else None
                )
        except TimeoutError:
            return f"no connection within {PROBE_LIMIT_S:.0f} s"
        except OSError as error:
            return connect_reason(error)
        writer.close()
        return None


class OpenAICompatUpstream:
    """Starts runs on a backend for one provider."""

    __slots__ = ("_adapter", "_timeouts")

    def __init__(self, adapter: OpenAICompatAdapter, timeouts: TimeoutSettings) -> None:
        self._adapter = adapter
        self._timeouts = timeouts

    def start(self, request: TunnelRequest, sink: UpstreamSink) -> UpstreamRun:
        """Start a run; raise ValueError for a request that cannot be written as HTTP."""
        adapter = self._adapter
        url = adapter.endpoint.url(request.path)
        return HttpRun(adapter.session, adapter.health, self._timeouts, url, adapter.key, request, sink)
