"""A backend that is reached by HTTP: where it is, with which key, its connections and its health.

What the adapters that speak HTTP have in common, whatever they say over it. Which HTTP client carries their requests
is in `http_client`.
"""

from __future__ import annotations

import asyncio
import re

from iop_fast.config.payload import AdapterSettings
from iop_fast.node.adapters import BrokenAdapter, Surroundings
from iop_fast.node.adapters.http_client import Backend, client_for
from iop_fast.node.adapters.http_rules import Endpoint, connect_reason, read_endpoint
from iop_fast.node.health import Health

PROBE_LIMIT_S = 5.0


def endpoint_of(settings: AdapterSettings, surroundings: Surroundings) -> Endpoint:
    """Return where the backend is, as written or from the Node's environment; raise BrokenAdapter."""
    place, text = "endpoint", settings.endpoint
    if settings.endpoint_env:
        place = f"variable {settings.endpoint_env} of the Node's environment (endpoint_env)"
        text = surroundings.environ.get(settings.endpoint_env, "")
        if not text:
            raise BrokenAdapter(f"{place} is not set")
    try:
        return read_endpoint(text)
    except ValueError as error:
        raise BrokenAdapter(f"{place}: {error}") from None


def key_of(settings: AdapterSettings, surroundings: Surroundings) -> str:
    """Return the backend's key from the Node's environment, "" where none is named; raise BrokenAdapter."""
    if not settings.api_key_env:
        return ""
    place = f"variable {settings.api_key_env} of the Node's environment (api_key_env)"
    key = surroundings.environ.get(settings.api_key_env, "").strip()
    if not key:
        raise BrokenAdapter(f"{place} is not set")
    if re.fullmatch(r"[\x21-\x7e]+", key) is None:
        raise BrokenAdapter(f"{place}: expected printable ASCII without spaces")
    return key


class HttpBackend:
    """One backend: its client, with its connections, and its health. An adapter's own part comes in a subclass."""

    def __init__(self, endpoint: Endpoint, key: str, surroundings: Surroundings) -> None:
        limits = surroundings.limits
        self._health = Health(surroundings.loop, self._probe, first_ms=limits.probe_ms_min, most_ms=limits.probe_ms_max)
        self.backend = Backend(endpoint, key, limits.upstream_idle_ms / 1000, self._health, surroundings.loop)
        self.client = client_for(self.backend)

    @property
    def health(self) -> Health:
        """Whether connections can be made."""
        return self._health

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
