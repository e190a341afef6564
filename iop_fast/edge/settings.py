"""What every request reads of a revision, in C fields: a `Runtime` is a dataclass, and asking it takes longer.

Immutable like the Runtime that it belongs to and is made with: who has these objects reads them and changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from iop_fast.config.schema import Generation
from iop_fast.edge.auth import Field

Key = tuple[str, str]  # (node_id, provider_id)


class Served:
    """How one provider calls a model, as text and as the JSON text that stands in a request."""

    __slots__ = ("json", "name")

    def __init__(self, name: str, json: bytes) -> None:
        self.name = name
        self.json = json


class ModelEntry:
    """What dispatch reads about one model. `abilities` are the distinct `can` sets of its providers, `has_normalized`
    says that some of these take normalized runs and no tunnels."""

    __slots__ = ("abilities", "generation", "has_normalized", "id", "page", "served")

    def __init__(
        self,
        id: str,
        served: dict[Key, Served],
        abilities: Sequence[int],
        has_normalized: bool,
        generation: Generation | None,
        page: bytes,
    ) -> None:
        self.id = id
        self.served: Mapping[Key, Served] = served
        self.abilities = abilities
        self.has_normalized = has_normalized
        self.generation = generation
        self.page = page


class Settings:
    """The settings and tables of one revision; the Runtime says what they are."""

    __slots__ = (
        "body_bytes_max",
        "exposes_route",
        "long_threshold_tokens",
        "models",
        "normalized",
        "routes",
        "run_window_bytes",
    )

    def __init__(
        self,
        models: dict[str, ModelEntry],
        normalized: frozenset[Key],
        routes: dict[Key, Sequence[Field]],
        *,
        exposes_route: bool,
        long_threshold_tokens: int,
        body_bytes_max: int,
        run_window_bytes: int,
    ) -> None:
        self.models: Mapping[str, ModelEntry] = models
        self.normalized = normalized
        self.routes: Mapping[Key, Sequence[Field]] = routes
        self.exposes_route = exposes_route
        self.long_threshold_tokens = long_threshold_tokens
        self.body_bytes_max = body_bytes_max
        self.run_window_bytes = run_window_bytes
