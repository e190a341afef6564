"""What happens in a simulated world, drawn from its seed before anything happens.

A `Script` is data and holds everything that chance decides from outside: the fleet, what clients ask and when they
leave, how providers behave, which faults come when. What production code draws (request ids, pauses) comes from
generators of its own, so a script stays the same when that code changes. Nothing here depends on hash order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

KIB = 1024
LONG_THRESHOLD_TOKENS = 1_000
QUIET_AT_S = 40.0

# What a provider may do with a request. The names are counted in the fault table.
BEHAVIOURS = (
    ("ok", 70),
    ("error_answer", 5),
    ("early_answer", 3),
    ("connect_failed", 6),
    ("hangs_up", 3),
    ("breaks_off", 5),
    ("bad_status", 2),
    ("bad_field", 2),
    ("first_byte_timeout", 3),
    ("idle_timeout", 3),
)

# Faults that come at a time of their own, with their weight.
FAULTS = (
    ("kill", 3),
    ("host_gone", 2),
    ("hang", 4),
    ("half_open", 3),
    ("flap", 4),
    ("duplicate", 3),
    ("ack_lost", 2),
    ("ack_late", 2),
    ("ack_twice", 2),
    ("ack_stale", 2),
    ("slow_link", 3),
    ("stalled_to_edge", 2),
    ("stalled_to_node", 2),
    ("node_drain", 3),
    ("edge_hang", 2),
    ("clock_jump", 2),
    ("provider_down", 3),
    ("config_capacity", 4),
    ("config_long_capacity", 2),
    ("config_enabled", 3),
    ("config_priority", 2),
    ("config_health", 2),
    ("config_queue", 3),
    ("config_model_removed", 3),
    ("config_restored", 3),
    ("config_unchanged", 1),
    ("config_refused", 1),
)


@dataclass(frozen=True)
class ProviderScript:
    """A provider as it is configured at first."""

    node_id: str
    id: str
    capacity: int
    long_capacity: int
    priority: int
    health: str
    type: str

    @property
    def key(self) -> tuple[str, str]:
        return self.node_id, self.id


@dataclass(frozen=True)
class Behaviour:
    """What a provider does with one request. `ends_at_once`: its end comes with its last chunk, paused
    or not. `cancel_s` is how long it takes to let go of it."""

    kind: str = "ok"
    connect_s: float = 0.001
    first_byte_s: float = 0.01
    chunks: int = 3
    chunk_bytes: int = 100
    chunk_gap_s: float = 0.01
    ends_at_once: bool = False
    cancel_s: float = 0.0


@dataclass(frozen=True)
class ClientScript:
    """One request. `leaves` is how its client goes away early: ("never", 0), ("after_s", s), ("after_pieces", n),
    ("after_sends", n). `reads_bytes_per_s` 0 is a client that reads at once."""

    number: int
    at_s: float
    model: str
    is_long: bool
    is_stream: bool
    padding: int
    pieces: int
    piece_gap_s: float
    declares_length: bool
    leaves: tuple[str, float]
    reads_bytes_per_s: int
    behaviours: tuple[Behaviour, Behaviour]


@dataclass(frozen=True)
class FaultScript:
    """A fault. `target` picks among what there is to hit, `amount` is for the kinds that need a number."""

    at_s: float
    kind: str
    target: int
    duration_s: float
    amount: int


@dataclass(frozen=True)
class Script:
    """A whole world."""

    seed: int
    nodes: tuple[str, ...]
    providers: tuple[ProviderScript, ...]
    models: tuple[tuple[str, tuple[str, ...]], ...]  # model id -> provider ids
    max_queue: int
    queue_timeout_ms: int
    heartbeat_ms: int
    silence_ms: int
    run_window_bytes: int
    link_window_bytes: int
    link_buffered_bytes: int
    link_delay_s: float
    buffered_bytes: int
    clients: tuple[ClientScript, ...]
    faults: tuple[FaultScript, ...]
    drains_under_load: int  # requests that are under way when the Edge shuts down


def write_script(seed: int) -> Script:
    """Draw the script of a seed."""
    random = Random(f"world {seed}")
    nodes = tuple(f"n{number}" for number in range(1, random.randint(1, 3) + 1))
    providers = tuple(
        write_provider(random, seed, node, f"p{node[1:]}{number}")
        for node in nodes
        for number in range(1, random.randint(1, 3) + 1)
    )
    models = write_models(random, providers)
    load = random.choice((20, 40, 80))
    heartbeat_ms, silence_ms = random.choice(((5_000, 15_000), (1_000, 3_000)))
    return Script(
        seed=seed,
        nodes=nodes,
        providers=providers,
        models=models,
        max_queue=random.choice((1, 4, 16)),
        queue_timeout_ms=random.choice((0, 1_000, 5_000, 30_000)),
        heartbeat_ms=heartbeat_ms,
        silence_ms=silence_ms,
        run_window_bytes=random.choice((16 * KIB, 16 * KIB, 64 * KIB, 256 * KIB)),
        link_window_bytes=random.choice((64 * KIB, 256 * KIB)),
        link_buffered_bytes=Random(f"link {seed}").choice((64, 64, 16 * KIB)) * KIB,
        link_delay_s=random.choice((0.0002, 0.005, 0.08)),
        buffered_bytes=random.choice((2, 512)) * KIB * KIB,
        clients=write_clients(random, models, load, 0.5, QUIET_AT_S - 5.0, 0),
        faults=write_faults(random),
        drains_under_load=random.choice((0, 3, 8)),
    )


def write_provider(random: Random, seed: int, node_id: str, provider_id: str) -> ProviderScript:
    capacity = random.randint(1, 4)
    return ProviderScript(
        node_id=node_id,
        id=provider_id,
        capacity=capacity,
        long_capacity=random.choice((0, 0, 1, capacity)),
        priority=random.choice((0, 0, 1)),
        health=random.choice(("auto", "auto", "auto", "up")),
        type=Random(f"type {seed} {provider_id}").choice(("vllm", "vllm", "ollama")),
    )


def write_models(random: Random, providers: tuple[ProviderScript, ...]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Map models to providers: each has one at least, some share, some have all."""
    ids = [provider.id for provider in providers]
    models = []
    for number in range(random.randint(1, 4)):
        count = random.randint(1, len(ids))
        chosen = random.sample(ids, count)
        models.append((f"m{number}", tuple(name for name in ids if name in chosen)))
    return tuple(models)


def write_clients(
    random: Random,
    models: tuple[tuple[str, tuple[str, ...]], ...],
    count: int,
    first_s: float,
    last_s: float,
    number: int,
) -> tuple[ClientScript, ...]:
    """Draw requests between two times; some of them come in bursts."""
    times: list[float] = []
    while len(times) < count:
        at = random.uniform(first_s, last_s)
        times += [at] * (1 if random.random() < 0.6 else random.randint(2, 8))
    times = sorted(times[:count])
    return tuple(write_client(random, number + index, at, models) for index, at in enumerate(times))


def write_client(
    random: Random, number: int, at_s: float, models: tuple[tuple[str, tuple[str, ...]], ...]
) -> ClientScript:
    is_large = random.random() < 0.1
    pieces = random.choice((1, 1, 1, 2, 5, 12))
    return ClientScript(
        number=number,
        at_s=at_s,
        model=random.choice(models)[0] if random.random() < 0.98 else "unknown",
        is_long=random.random() < 0.2,
        is_stream=random.random() < 0.6,
        padding=random.randint(30, 700) * KIB if is_large else random.randint(0, 2_000),
        pieces=pieces,
        piece_gap_s=random.choice((0.0, 0.001, 0.05, 0.4)),
        declares_length=random.random() < 0.8,
        leaves=write_leaving(random, pieces),
        reads_bytes_per_s=random.choice((0, 0, 0, 0, 20_000, 200_000)),
        behaviours=(write_behaviour(random), write_behaviour(random)),
    )


def write_leaving(random: Random, pieces: int) -> tuple[str, float]:
    draw = random.random()
    if draw < 0.75:
        return "never", 0
    if draw < 0.80:
        return "after_pieces", random.randint(0, pieces - 1)
    if draw < 0.88:
        return "after_sends", random.randint(1, 6)
    return "after_s", random.choice((0.0, 0.0005, 0.002, 0.01, 0.1, 1.0, 3.0, 8.0)) * random.uniform(0.5, 1.5)


def write_behaviour(random: Random) -> Behaviour:
    kinds = [kind for kind, _ in BEHAVIOURS]
    chunks = random.choice((1, 2, 5, 20, 60))
    return Behaviour(
        kind=random.choices(kinds, [weight for _, weight in BEHAVIOURS])[0],
        connect_s=random.choice((0.0, 0.001, 0.02, 0.5)),
        first_byte_s=random.choice((0.0, 0.01, 0.2, 1.0, 4.0)),
        chunks=chunks,
        chunk_bytes=random.choice((1, 20, 200, 4_000, 70_000 if chunks < 10 else 200)),
        chunk_gap_s=random.choice((0.0, 0.0, 0.002, 0.05, 0.3)),
        ends_at_once=random.random() < 0.5,
        cancel_s=random.choice((0.0, 0.0, 0.0, 0.2, 8.0)),
    )


def write_faults(random: Random) -> tuple[FaultScript, ...]:
    count = random.choice((0, 3, 6, 10, 15))
    kinds = [kind for kind, _ in FAULTS]
    drawn = random.choices(kinds, [weight for _, weight in FAULTS], k=count)
    faults = [
        FaultScript(
            at_s=random.uniform(1.0, QUIET_AT_S - 2.0),
            kind=kind,
            target=random.randrange(1_000),
            duration_s=random.choice((0.05, 0.5, 2.0, 6.0, 20.0)) * random.uniform(0.5, 1.5),
            amount=random.randrange(1_000),
        )
        for kind in drawn
    ]
    return tuple(sorted(faults, key=lambda fault: fault.at_s))


def write_probe(number: int, at_s: float, model: str) -> ClientScript:
    """A request that a world in order serves well."""
    return ClientScript(
        number=number,
        at_s=at_s,
        model=model,
        is_long=False,
        is_stream=True,
        padding=100,
        pieces=1,
        piece_gap_s=0.0,
        declares_length=True,
        leaves=("never", 0),
        reads_bytes_per_s=0,
        behaviours=(Behaviour(), Behaviour()),
    )


def without_leaving(client: ClientScript) -> ClientScript:
    """The same request by a patient client."""
    return replace(client, leaves=("never", 0))
