"""The providers that this Node serves, and how one set of them replaces another while runs go on.

A `Registry` is immutable: the providers of one payload, each with its backend. A `Backend` is an adapter with the runs
on it, and it outlives registries: one whose settings stand in the new payload too is taken over, object, connections
and all, so that a payload which changes a capacity replaces nothing but numbers.

`Router` holds the registry that new runs are routed by, `current`. `apply` builds the next one aside and swaps that one
reference; what fails before the swap leaves the old one in place. Backends that the new registry does not use are
retired together: nothing new is routed to them, they are closed when their last run has ended, and their runs are cut
after `drain_limit_ms` (0: never). At most RETIRED_MAX such sets exist at one time; a further apply waits for one to
end.

Who must end what. A run that was entered into a backend is taken out by its end, exactly once (`enter`, `leave`). A
backend is closed by the Router, never by a registry or a run. One payload is applied at a time, in the order of the
calls.

Health is the backend's. Every change of it is handed to `on_states` as the states of the providers that share the
backend, to whichever session listens at the time.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from iop_fast import logs
from iop_fast.config.payload import AdapterSettings, NodePayload, ProviderPayload
from iop_fast.node.adapters import BrokenAdapter, Maker, Surroundings, TunnelAdapter
from iop_fast.node.adapters.cli import make_cli
from iop_fast.node.adapters.native import make_native
from iop_fast.node.adapters.ollama import make_ollama
from iop_fast.node.adapters.openai_compat import make_openai_compat
from iop_fast.node.backends import Backend, Provider
from iop_fast.node.health import Health, State
from iop_fast.wire import runtime_pb2 as pb

log = logs.get(__name__)

RETIRED_MAX = 2

# How long a swap waits for the first connect attempts to new backends.
LOOK_LIMIT_S = 1.0

# The adapter types of this build.
MAKERS: Mapping[str, Maker] = {
    "openai_compat": make_openai_compat,
    "native": make_native,
    "cli": make_cli,
    "ollama": make_ollama,
}


class RegistryError(Exception):
    """A payload cannot be applied as a whole; the text says why."""


@dataclass(frozen=True, slots=True)
class Registry:
    """The providers of one payload by id, in its order, and the backends they use by key."""

    payload: NodePayload | None
    providers: Mapping[str, Provider]
    backends: Mapping[str, Backend]

    def states(self) -> list[pb.ProviderState]:
        """Return the states of all providers, in order."""
        return [provider.state() for provider in self.providers.values()]

    def states_of(self, backend: Backend) -> list[pb.ProviderState]:
        """Return the states of the providers on one backend, in order."""
        return [provider.state() for provider in self.providers.values() if provider.backend is backend]


NOTHING = Registry(None, {}, {})


class Router:
    """The current registry and those it replaced. See the module's head."""

    def __init__(self, surroundings: Surroundings, makers: Mapping[str, Maker] = MAKERS) -> None:
        self.current = NOTHING
        self.ended: dict[tuple[str, int], int] = {}
        """Runs that have ended, by provider and by the status of their end; of providers that are served alone."""
        self.on_states: Callable[[list[pb.ProviderState]], None] = ignore
        self._surroundings = surroundings
        self._makers = makers
        self._loop = surroundings.loop
        self._turn = asyncio.Lock()
        self._retired: list[Retired] = []
        self._room: asyncio.Future[None] | None = None

    @property
    def retired_count(self) -> int:
        """Replaced sets whose runs go on."""
        return len(self._retired)

    def route(self, provider_id: str) -> Provider | None:
        """Return the provider that a new run goes to."""
        return self.current.providers.get(provider_id)

    def count_end(self, provider_id: str, status: int) -> None:
        """Count a run that has ended."""
        key = (provider_id, status)
        self.ended[key] = self.ended.get(key, 0) + 1

    async def apply(self, payload: NodePayload) -> bool:
        """Make a payload the current one; False when it already is. Raises RegistryError, which changes nothing."""
        async with self._turn:
            if payload == self.current.payload:
                return False
            while len(self._retired) >= RETIRED_MAX:
                self._room = self._loop.create_future()
                await self._room
            made: dict[str, Backend] = {}
            try:
                registry = self._build(payload, made)
                await self._look_at(made.values())
            except BaseException:
                for backend in made.values():
                    await backend.close()
                raise
            self._swap(registry, made.values())
            return True

    async def close(self) -> None:
        """Close every backend. Runs must have ended: one that is left loses its connection without an end."""
        retired = [backend for gone in self._retired for backend in gone.stop()]
        for backend in [*self.current.backends.values(), *retired]:
            await backend.close()
        self.current = NOTHING

    # Building.

    def _build(self, payload: NodePayload, made: dict[str, Backend]) -> Registry:
        """Build the registry of a payload; backends that are new are put into `made` as they are made."""
        shared = by_name(payload.adapters)
        providers: dict[str, Provider] = {}
        backends: dict[str, Backend] = {}
        for entry in payload.providers:
            if entry.id in providers:
                raise RegistryError(f"provider {entry.id} stands in the payload twice")
            settings = entry.settings if entry.settings is not None else shared.get(entry.adapter)
            if settings is None:
                raise RegistryError(f"provider {entry.id} names adapter {entry.adapter!r}, which the payload lacks")
            key = key_of(entry.adapter_type, settings)
            backend = self.current.backends.get(key) or made.get(key)
            if backend is None:
                backend = made[key] = self._make(key, entry.adapter_type, settings)
            backends[key] = backend
            providers[entry.id] = provider_on(backend, entry)
        return Registry(payload, providers, backends)

    def _make(self, key: str, adapter_type: str, settings: AdapterSettings) -> Backend:
        """Make a backend; a broken one is one too."""
        maker = self._makers.get(adapter_type)
        try:
            if maker is None:
                raise BrokenAdapter(f"adapter type {adapter_type} is not part of this build")
            adapter = maker(settings, self._surroundings)
        except BrokenAdapter as reason:
            return Backend(key, None, Health(self._loop, broken=str(reason)))
        return Backend(key, adapter, adapter.health)

    async def _look_at(self, backends: Iterable[Backend]) -> None:
        """Try to connect to new backends, so that their first states are true ones; not for long."""
        attempts = {attempt: backend for backend in backends if (attempt := backend.health.look()) is not None}
        if attempts:
            _, pending = await asyncio.wait(list(attempts), timeout=LOOK_LIMIT_S)
            for attempt in attempts:
                if attempt in pending:
                    attempts[attempt].health.unreachable(f"no connection within {LOOK_LIMIT_S:g} s")

    # Swapping.

    def _swap(self, registry: Registry, made: Iterable[Backend]) -> None:
        old, self.current = self.current, registry  # commitment point
        self.ended = {key: count for key, count in self.ended.items() if key[0] in registry.providers}
        for backend in made:
            backend.health.on_change = partial(self._on_health, backend)
        dropped = [backend for key, backend in old.backends.items() if key not in registry.backends]
        log.info("registry_swapped", providers=len(registry.providers), retired=len(dropped))
        for provider in registry.providers.values():
            health = provider.backend.health
            if health.state is not State.UP:
                state = health.state.name.lower()
                log.warning("provider_not_up", provider=provider.payload.id, state=state, reason=health.reason)
        if dropped:
            assert registry.payload is not None, "a registry without a payload replaces nothing"
            self._retired.append(Retired(self, dropped, registry.payload.runtime.drain_limit_ms))
            self._retired[-1].start()

    def on_retired(self, gone: Retired) -> None:
        """A replaced set has ended (called by it)."""
        self._retired.remove(gone)
        if self._room is not None and not self._room.done():
            self._room.set_result(None)

    def _on_health(self, backend: Backend) -> None:
        states = self.current.states_of(backend)
        if not states:
            return  # retired
        for state in states:
            name = pb.ProviderState.State.Name(state.state).lower()
            log.info("provider_state", provider=state.provider_id, state=name, reason=state.reason)
        self.on_states(states)


class Retired:
    """Backends that were replaced together, until the last of them is closed."""

    def __init__(self, router: Router, backends: list[Backend], limit_ms: int) -> None:
        self._router = router
        self._loop = asyncio.get_running_loop()
        self._left = dict.fromkeys(backends)
        self._limit_ms = limit_ms
        self._timer: asyncio.TimerHandle | None = None
        self._closing: dict[asyncio.Task[None], None] = {}

    def start(self) -> None:
        """Close what is idle, and the rest when it is."""
        for backend in list(self._left):
            backend.when_idle(partial(self._on_idle, backend))
        if self._left and self._limit_ms:
            self._timer = self._loop.call_later(self._limit_ms / 1000, self._cut)

    def stop(self) -> list[Backend]:
        """Let go of the backends that are still open and return them."""
        if self._timer is not None:
            self._timer.cancel()
        return list(self._left)

    def _cut(self) -> None:
        self._timer = None
        for backend in list(self._left):
            for run in list(backend.runs):
                run.cut(f"its provider was replaced {self._limit_ms} ms ago")

    def _on_idle(self, backend: Backend) -> None:
        del self._left[backend]
        closing = self._loop.create_task(backend.close())
        self._closing[closing] = None
        closing.add_done_callback(self._on_closed)

    def _on_closed(self, closing: asyncio.Task[None]) -> None:
        del self._closing[closing]
        error = None if closing.cancelled() else closing.exception()
        if error is not None:
            log.failure("adapter_close_failed", error)
        if not self._left and not self._closing:
            self.stop()
            self._router.on_retired(self)


def provider_on(backend: Backend, entry: ProviderPayload) -> Provider:
    """Return a provider with its view of the backend's adapter."""
    match backend.adapter:
        case None:
            return Provider(entry, backend)
        case TunnelAdapter() as adapter:
            return Provider(entry, backend, upstream=adapter.upstream(entry))
        case adapter:
            return Provider(entry, backend, run_adapter=adapter.run_adapter(entry))


def by_name(adapters: Iterable[AdapterSettings]) -> dict[str, AdapterSettings]:
    """Return adapters by name; raise RegistryError when one stands twice."""
    named: dict[str, AdapterSettings] = {}
    for adapter in adapters:
        if adapter.name in named:
            raise RegistryError(f"adapter {adapter.name} stands in the payload twice")
        named[adapter.name] = adapter
    return named


def key_of(adapter_type: str, settings: AdapterSettings) -> str:
    """Return the hash of what makes a backend; its name in the payload is no part of that."""
    parts = (
        adapter_type,
        settings.endpoint,
        settings.endpoint_env,
        settings.api_key_env,
        settings.profile,
        *(text for option in settings.options for text in option),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def ignore(_: list[pb.ProviderState]) -> None:
    """No session listens."""
