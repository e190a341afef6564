"""What tests of a Node's adapters share: a recording sink, settings, and waiting for a condition."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

import uvloop

from iop_fast.config.payload import AdapterSettings, ProviderPayload, TimeoutSettings
from iop_fast.config.schema import NativeModel, NodeLimits
from iop_fast.node.adapters import Surroundings
from iop_fast.seams import End, Head, TunnelRequest, UpstreamRun

LIMIT_S = 10.0


def on_uvloop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async test on the loop that the program runs on."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        uvloop.run(test(*args, **kwargs))

    return run


async def until(condition: Callable[[], bool], what: str = "the condition", limit_s: float = LIMIT_S) -> None:
    """Wait until a condition holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + limit_s
    while not condition():
        assert loop.time() < deadline, f"not within {limit_s} s: {what}"
        await asyncio.sleep(0.002)


class RecordingSink:
    """An UpstreamSink that keeps what it is told."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.consumed = 0
        self.head: Head | None = None
        self.pieces: list[bytes] = []
        self.end: End | None = None
        self.ended = asyncio.Event()

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)

    @property
    def status(self) -> int:
        assert self.end is not None
        return self.end.status

    def _note(self, call: str) -> None:
        assert self.end is None, f"{call} after on_end"
        if call != "data" or self.calls[-1:] != ["data"]:
            self.calls.append(call)

    def on_taken(self) -> None:
        self._note("taken")

    def on_consumed(self, byte_count: int) -> None:
        assert self.end is None
        self.consumed += byte_count

    def on_head(self, head: Head) -> None:
        self._note("head")
        self.head = head

    def on_data(self, data: bytes) -> None:
        self._note("data")
        assert data
        self.pieces.append(data)

    def on_end(self, end: End) -> None:
        self._note("end")
        self.end = end
        self.ended.set()

    async def finished(self) -> End:
        """Wait for the end."""
        async with asyncio.timeout(LIMIT_S):
            await self.ended.wait()
        assert self.end is not None
        return self.end

    def header(self, name: bytes) -> list[bytes]:
        assert self.head is not None
        return [value for key, value in self.head.headers if key.lower() == name]


def surroundings(
    environ: Mapping[str, str] | None = None, models: Sequence[NativeModel] = (), **limits: Any
) -> Surroundings:
    """What adapters get of the Node."""
    return Surroundings(
        loop=asyncio.get_running_loop(),
        environ={} if environ is None else environ,
        native_models={model.id: model for model in models},
        limits=NodeLimits(**limits),
    )


def adapter_settings(endpoint: str = "", **changes: Any) -> AdapterSettings:
    """Settings of an openai_compat adapter."""
    values: dict[str, Any] = {
        "name": "",
        "type": "openai_compat",
        "endpoint": endpoint,
        "endpoint_env": "",
        "api_key_env": "",
        "profile": "",
        "options": (),
    }
    return AdapterSettings(**(values | changes))


def provider_payload(provider_id: str = "p1", endpoint: str = "", **changes: Any) -> ProviderPayload:
    """A provider of the payload; timeouts are long unless given as `timeouts`."""
    values: dict[str, Any] = {
        "id": provider_id,
        "type": "vllm",
        "label": "",
        "adapter_type": "openai_compat",
        "adapter": "",
        "settings": adapter_settings(endpoint),
        "models": ("served",),
        "timeouts": TimeoutSettings(5_000, 60_000, 60_000),
        "enabled": True,
        "health": "auto",
        "capacity": 4,
        "long_context_capacity": 0,
        "priority": 0,
    }
    return ProviderPayload(**(values | changes))


def tunnel(
    body: bytes = b"{}",
    path: bytes = b"/v1/chat/completions",
    headers: Sequence[tuple[bytes, bytes]] = ((b"content-type", b"application/json"),),
    **changes: Any,
) -> TunnelRequest:
    """The opening of a tunnel; the body is whole unless told otherwise."""
    values: dict[str, Any] = {
        "provider_id": "p1",
        "method": b"POST",
        "path": path,
        "headers": list(headers),
        "body": body,
        "body_complete": True,
        "body_length": len(body),
        "model": "served",
        "stream": False,
    }
    return TunnelRequest(**(values | changes))


def feed_all(run: UpstreamRun, body: bytes, size: int = 65_000) -> None:
    """Feed a whole body in pieces."""
    for start in range(0, len(body), size):
        run.feed(body[start : start + size], start + size >= len(body))
