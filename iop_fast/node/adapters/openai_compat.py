"""The adapter of OpenAI-compatible servers: where one is, with which key, and its health.

Which HTTP client carries its runs is in `http_client`.
"""

from __future__ import annotations

import asyncio
import re

from iop_fast.config.payload import AdapterSettings, ProviderPayload, TimeoutSettings
from iop_fast.node.adapters import Adapter, BrokenAdapter, Surroundings
from iop_fast.node.adapters.http_client import Backend, client_for
from iop_fast.node.adapters.http_rules import Endpoint, connect_reason, read_endpoint
from iop_fast.node.health import Health
from iop_fast.seams import TunnelRequest, Upstream, UpstreamRun, UpstreamSink

PROBE_LIMIT_S = 5.0


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
    """One OpenAI-compatible backend: its client, with its connections, and its health."""

    def __init__(self, endpoint: Endpoint, key: str, surroundings: Surroundings) -> None:
        limits = surroundings.limits
        self._health = Health(surroundings.loop, self._probe, first_ms=limits.probe_ms_min, most_ms=limits.probe_ms_max)
        self.backend = Backend(endpoint, key, limits.upstream_idle_ms / 1000, self._health, surroundings.loop)
        self.client = client_for(self.backend)

    @property
    def health(self) -> Health:
        """Whether connections can be made."""
        return self._health

    def upstream(self, provider: ProviderPayload) -> Upstream:
        """Return the backend with a provider's timeouts."""
        return OpenAICompatUpstream(self, provider.timeouts)

    async def close(self) -> None:
        """Close idle connections and stop connect attempts."""
        self._health.close()
        await self.client.close()

    async def _probe(self) -> str | None:
        """Connect, with TLS where the endpoint has it, and leave again."""
        endpoint = self.backend.endpoint
        try:
            async with asyncio.timeout(PROBE_LIMIT_S):
                _, writer = await asyncio.open_connection(
                    endpoint.host, endpoint.port, ssl=True if endpoint.is_tls else None
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
        return self._adapter.client.start(request, self._timeouts, sink)
