"""The adapter of OpenAI-compatible servers: HTTP requests go through to them byte for byte."""

from __future__ import annotations

from iop_fast.config.payload import AdapterSettings, ProviderPayload, TimeoutSettings
from iop_fast.node.adapters import Adapter, BrokenAdapter, Surroundings
from iop_fast.node.adapters.http_backend import HttpBackend, endpoint_of, key_of
from iop_fast.seams import TunnelRequest, Upstream, UpstreamRun, UpstreamSink


def make_openai_compat(settings: AdapterSettings, surroundings: Surroundings) -> Adapter:
    """Make the adapter of an OpenAI-compatible backend; raise BrokenAdapter."""
    if settings.options:
        raise BrokenAdapter(f"options: expected none, got {', '.join(name for name, _ in settings.options)}")
    endpoint = endpoint_of(settings, surroundings)
    return OpenAICompatAdapter(endpoint, key_of(settings, surroundings), surroundings)


class OpenAICompatAdapter(HttpBackend):
    """One OpenAI-compatible backend."""

    def upstream(self, provider: ProviderPayload) -> Upstream:
        """Return the backend with a provider's timeouts."""
        return OpenAICompatUpstream(self, provider.timeouts)


class OpenAICompatUpstream:
    """Starts runs on a backend for one provider."""

    __slots__ = ("_client", "_timeouts")

    def __init__(self, adapter: OpenAICompatAdapter, timeouts: TimeoutSettings) -> None:
        self._client = adapter.client
        self._timeouts = timeouts

    def start(self, request: TunnelRequest, sink: UpstreamSink) -> UpstreamRun:
        """Start a run; raise ValueError for a request that cannot be written as HTTP."""
        return self._client.start(request, self._timeouts, sink)
