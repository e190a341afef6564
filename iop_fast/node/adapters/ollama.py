"""The adapter of Ollama servers, over their native API: what the OpenAI one of theirs has no words for (the context
window, how long a model stays loaded, thinking as its own field) is there.

Translation is pure and stands in `ollama_request` and `ollama_answer`, one run in `ollama_run`; connections, timeouts
and health are those of every HTTP backend.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from itertools import count

from iop_fast.config.adapter_options import OLLAMA_FIELDS, OLLAMA_RUNNER, OptionValue, read_options
from iop_fast.config.payload import AdapterSettings, ProviderPayload
from iop_fast.node.adapters import Adapter, BrokenAdapter, Surroundings
from iop_fast.node.adapters.http_backend import HttpBackend, endpoint_of, key_of
from iop_fast.node.adapters.http_rules import Endpoint
from iop_fast.node.adapters.ollama_answer import AnswerReader, EmbeddingReader, StreamReader
from iop_fast.node.adapters.ollama_errors import TaskError, refused_task
from iop_fast.node.adapters.ollama_request import Call, Defaults, call_for
from iop_fast.node.adapters.ollama_run import OllamaRun, RefusedRun
from iop_fast.seams import RunAdapter, RunHandle, RunSink, RunTask, TunnelRequest
from iop_fast.wire import runtime_pb2 as pb

# The roots of Ollama's two APIs; its own root is meant by either.
API_ROOTS = ("/v1", "/api")

FIELDS = (
    (b"Content-Type", b"application/json"),
    (b"Accept", b"application/x-ndjson, application/json"),
    (b"Accept-Encoding", b"identity"),
)


def make_ollama(settings: AdapterSettings, surroundings: Surroundings) -> Adapter:
    """Make the adapter of an Ollama server; raise BrokenAdapter."""
    try:
        options = read_options("ollama", settings.options)
    except ValueError as error:
        raise BrokenAdapter(str(error)) from None
    endpoint = root_of(endpoint_of(settings, surroundings))
    return OllamaAdapter(endpoint, key_of(settings, surroundings), options, surroundings)


def root_of(endpoint: Endpoint) -> Endpoint:
    """Return the server's root for an endpoint that names one of its APIs."""
    for root in API_ROOTS:
        endpoint = endpoint._replace(root=endpoint.root.removesuffix(root))
    return endpoint._replace(names_version=False)


class OllamaAdapter(HttpBackend):
    """One Ollama server. `options` are those of the configuration, read."""

    def __init__(
        self, endpoint: Endpoint, key: str, options: Mapping[str, OptionValue], surroundings: Surroundings
    ) -> None:
        super().__init__(endpoint, key, surroundings)
        self.defaults = Defaults(
            {name: value for name, value in options.items() if name in OLLAMA_RUNNER},
            {name: value for name, value in options.items() if name in OLLAMA_FIELDS},
        )
        # Ids of tool calls are unique over providers and restarts: a conversation may go on elsewhere.
        self._call_prefix = f"call_{os.urandom(6).hex()}"
        self._call_numbers = count(1)

    def run_adapter(self, provider: ProviderPayload) -> RunAdapter:
        """Return what starts runs for a provider, with its timeouts and context windows."""
        return OllamaRuns(self, provider)

    def new_call_id(self) -> str:
        """Return an id for a tool call."""
        return f"{self._call_prefix}{next(self._call_numbers)}"


class OllamaRuns:
    """Starts runs on a server for one provider.

    A model is loaded with one context window and loaded again for another, so that is no matter of single requests: it
    is the option `num_ctx`, else the window that the configuration gives the model here, else Ollama's own default.
    """

    __slots__ = ("_adapter", "_by_model", "_provider")

    def __init__(self, adapter: OllamaAdapter, provider: ProviderPayload) -> None:
        self._adapter = adapter
        self._provider = provider
        self._by_model = {
            model: Defaults({"num_ctx": tokens, **adapter.defaults.options}, adapter.defaults.fields)
            for model, tokens in provider.context_windows
        }

    def start(self, task: RunTask, sink: RunSink) -> RunHandle:
        """Start a run; see RunAdapter."""
        adapter = self._adapter
        loop = adapter.backend.loop
        try:
            call = call_for(task, self._by_model.get(task.model, adapter.defaults))
        except TaskError as error:
            return RefusedRun(sink, refused_task(error), loop)
        body = call.pieces()
        opening = request_for(call, next(body), task, self._provider.id)
        run = OllamaRun(sink, self._reader(task, sink), task.model, self._provider.id, loop)
        request = adapter.client.start(opening, self._provider.timeouts, run)
        run.hold(request, opening, body)
        return run

    def _reader(self, task: RunTask, sink: RunSink) -> AnswerReader:
        if task.kind == pb.RunRequest.EMBEDDING:
            return EmbeddingReader(sink, len(task.inputs))
        return StreamReader(sink, self._adapter.new_call_id)


def request_for(call: Call, piece: bytes, task: RunTask, provider_id: str) -> TunnelRequest:
    """Return the HTTP request for a call, with the first piece of its body."""
    return TunnelRequest(
        provider_id=provider_id,
        method=b"POST",
        path=call.path,
        headers=(*FIELDS, (b"traceparent", task.traceparent.encode())) if task.traceparent else FIELDS,
        body=piece,
        body_complete=not call.images,
        body_length=call.body_bytes,
        model=task.model,
        stream=True,
    )
