"""Every key of the schema, changed alone: its class is the schema's mark, dry run and apply agree, live ones act."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin

import pytest
import yaml

from iop_fast._core.admission import Outcome
from iop_fast.config.places import bracket, naming_key
from iop_fast.config.schema import EdgeConfig
from iop_fast.config.schema.fields import Section, child, is_list, is_map, is_section, mark, unwrap
from iop_fast.edge import needs
from iop_fast.edge.refresh_report import Impact, Status
from iop_fast.wire.payload import payload_from_message
from tests.unit.edge.refresh.refresh_world import RefreshWorld, changed, provider_of, refresh_world, run, token_of
from tests.unit.edge.worlds import NS_PER_S

HASH = "a" * 64
TLS = {"cert_file": "/c", "key_file": "/k"}
BASE: dict[str, Any] = {
    "edge": {"tls": dict(TLS)},
    "openai": {
        "tls": dict(TLS),
        "principal_tokens": [{"token_ref": "t", "token_hash_sha256": HASH, "principal_ref": "u"}],
        "usage_log": {"path": "/var/log/usage"},
    },
    "observe": {"listen": "127.0.0.1:8090"},
    "provider_pool": {"max_queue": 16},
    "models": [
        {"id": "m", "providers": {"p1": "served"}, "generation": {"defaults": {}}},
        {"id": "other", "providers": {"p2": "served", "p1": "served"}},
    ],
    "nodes": [
        {
            "id": "n1",
            "token_hash_sha256": "set below",
            "adapters": [
                {"name": "a", "type": "vllm", "endpoint": "http://127.0.0.1:2"},
                {"name": "b", "type": "vllm", "endpoint_env": "URL"},
                {"name": "c", "type": "native", "profile": "echo"},
                {"name": "o", "type": "ollama", "endpoint_env": "URL"},
            ],
            "providers": [
                provider_of("p1", models=["served", "also"]),
                {"id": "p2", "adapter": "a", "models": ["served"], "capacity": 2},
                {"id": "p3", "type": "vllm", "endpoint_env": "URL", "models": ["served"], "capacity": 1},
                {"id": "p4", "type": "native", "profile": "echo", "models": ["served"], "capacity": 1},
                {"id": "p5", "type": "ollama", "endpoint_env": "URL", "models": ["served"], "capacity": 1},
            ],
        }
    ],
}

# What to write where the key's kind says too little. The place is the first entry of each list unless given.
P1 = ("nodes", 0, "providers", 0)
VALUES: dict[str, Any] = {
    "edge.listen": "127.0.0.1:9081",
    "openai.listen": "127.0.0.1:9080",
    "a2a.listen": "127.0.0.1:9083",
    "admin.listen": "unix:/run/iop.sock",
    "observe.listen": "127.0.0.1:9090",
    "control_plane.address": "control.example:443",
    "tracing.endpoint": "http://127.0.0.1:4/v1/traces",
    "tracing.sample_ratio": 0.5,
    "edge.link.window_bytes": 1_048_576,
    "edge.link.run_window_bytes": 131_072,
    "openai.principal_tokens.token_hash_sha256": "b" * 64,
    "openai.provider_auth.from_header": "X-Other",
    "openai.provider_auth.target_header": "X-Api-Key",
    "openai.cors_origins": ["https://chat.example.org"],
    "models.providers": {"p1": "also"},
    "models.generation.defaults.top_p": 0.5,
    "models.generation.defaults.min_p": 0.5,
    "models.generation.defaults.presence_penalty": 1.5,
    "models.generation.defaults.frequency_penalty": 1.5,
    "nodes.token_hash_sha256": "c" * 64,
    "nodes.adapters.endpoint": "http://127.0.0.1:3",
    "nodes.adapters.options": {"num_ctx": "8192"},
    "nodes.providers.options": {"num_ctx": "8192"},
    "nodes.providers.endpoint": "http://127.0.0.1:3",
    "nodes.providers.models": ["served", "also", "new"],
    "nodes.providers.health": "down",
    "nodes.providers.can": ["chat", "tools"],
    "nodes.providers.long_context_capacity": 1,
}
PLACES: dict[str, tuple[str | int, ...]] = {
    "nodes.adapters.endpoint_env": ("nodes", 0, "adapters", 1, "endpoint_env"),
    "nodes.adapters.profile": ("nodes", 0, "adapters", 2, "profile"),
    "nodes.adapters.options": ("nodes", 0, "adapters", 3, "options"),
    "nodes.providers.adapter": ("nodes", 0, "providers", 1, "adapter"),
    "nodes.providers.endpoint_env": ("nodes", 0, "providers", 2, "endpoint_env"),
    "nodes.providers.profile": ("nodes", 0, "providers", 3, "profile"),
    "nodes.providers.options": ("nodes", 0, "providers", 4, "options"),
}
VALUES |= {"nodes.providers.adapter": "b", "nodes.adapters.profile": "slow", "nodes.providers.profile": "slow"}
# This build refuses to serve them, and says so at once.
REFUSED = {"a2a.enabled", "control_plane.enabled", "bootstrap.enabled"}
# Earlier places of the queue's policy: ignored beside provider_pool.
IGNORED = {"nodes.providers.max_queue", "nodes.providers.queue_timeout_ms"}
# Names of entries: another name is another entry, for which all that refers to it must change too.
NAMES = {"models.id", "nodes.id", "nodes.adapters.name", "nodes.providers.id", "openai.principal_tokens.token_ref"}


class Row(NamedTuple):
    """One key: where it stands in the file, its class, and another value."""

    name: str
    location: tuple[str | int, ...]
    apply: str
    value: Any


def keys_of(kind: type[Section], at: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every key of the schema that holds a value, with its location and its field."""
    for key, field in kind.model_fields.items():
        annotation = unwrap(field.annotation)
        entry = child(annotation, 0)[1] if is_list(annotation) else None
        if is_section(annotation):
            yield from keys_of(annotation, (*at, key))
        elif is_section(entry):
            yield from keys_of(entry, (*at, key, 0))
        else:
            yield (*at, key), field


def another(name: str, field: Any) -> Any:
    """A value that is not the default."""
    if name in VALUES:
        return VALUES[name]
    annotation = unwrap(field.annotation)
    default = None if field.is_required() else field.get_default(call_default_factory=True)
    if get_origin(annotation) is Literal:
        values = get_args(annotation)
        return next(value for value in (*values[2:], *values) if value != default)
    if annotation is bool:
        return not default
    if annotation in (int, float):
        return annotation((default or 0) + 3)
    assert annotation is str, f"{name}: say in VALUES what else may stand there"
    return "other"


ROWS = [
    Row(name, PLACES.get(name, location), mark(field, "apply"), another(name, field))
    for location, field in keys_of(EdgeConfig)
    if (name := ".".join(str(part) for part in location if part != 0)) not in NAMES | REFUSED | IGNORED
]


def base() -> dict[str, Any]:
    return changed(BASE, "nodes", 0, "token_hash_sha256", to=sha256(token_of("n1").encode()).hexdigest())


def path_of(settings: dict[str, Any], location: tuple[str | int, ...]) -> str:
    """A location as a report names it."""
    path, holder, annotation = "", settings, EdgeConfig
    for part in location:
        _, annotation = child(annotation, part)
        holder = holder[part] if isinstance(part, int) else holder.get(part, {})  # type: ignore[assignment]
        if isinstance(part, int):
            path += bracket(holder[naming_key(annotation) or ""])
        else:
            path += f".{part}" if path else part
    return path


# What a live key does to the running Edge. `pushed` is the payload that the Node was sent, None without one.


def is_in_payload(*keys: str) -> Callable[[RefreshWorld, Any, Any], bool]:
    """The Node was told."""

    def look(world: RefreshWorld, value: Any, pushed: Any) -> bool:
        found = pushed
        for key in keys:
            found = found[int(key)] if key.isdigit() else getattr(found, key)
        return bool(found == (tuple(value) if isinstance(value, list) else value))

    return look


def is_in_generation(key: str) -> Callable[[RefreshWorld, Any, Any], bool]:
    """Dispatch reads it from the model's entry."""

    def look(world: RefreshWorld, value: Any, pushed: Any) -> bool:
        policy = world.runtime.models["m"].generation
        assert policy is not None
        return bool(getattr(policy.defaults, key, None) == value or getattr(policy, key, None) == value)

    return look


def deadline(world: RefreshWorld, value: Any, pushed: Any) -> bool:
    return world.next_deadline_ns == world.clock.now_ns() + value * NS_PER_S // 1000


FIRST = ("providers", "0")
EFFECTS: dict[str, Callable[[RefreshWorld, Any, Any], bool]] = {
    "openai.long_context_threshold_tokens": lambda world, value, pushed: world.runtime.long_threshold_tokens == value,
    "provider_pool.max_queue": lambda world, value, pushed: world.gate.max_queue == value,
    "provider_pool.queue_timeout_ms": deadline,
    "models.providers": lambda world, value, pushed: world.runtime.models["m"].served["n1", "p1"].name == "also",
    "models.context_window_tokens": lambda world, value, pushed: (
        f'"max_model_len":{value}'.encode() in world.runtime.models["m"].page
    ),
    "nodes.runtime.drain_limit_ms": is_in_payload("runtime", "drain_limit_ms"),
    "nodes.runtime.concurrency": is_in_payload("runtime", "concurrency"),
    "nodes.providers.models": is_in_payload(*FIRST, "models"),
    "nodes.providers.enabled": lambda world, value, pushed: world.submit("m").outcome is Outcome.REJECTED_UNAVAILABLE,
    "nodes.providers.health": lambda world, value, pushed: world.submit("m").outcome is Outcome.REJECTED_UNAVAILABLE,
    "nodes.providers.capacity": lambda world, value, pushed: (
        world.row("p1").capacity == value and all(caller.lease for caller in world.callers)
    ),
    "nodes.providers.long_context_capacity": lambda world, value, pushed: world.row("p1").long_capacity == value,
    "nodes.providers.priority": lambda world, value, pushed: world.row("p1").priority == value,
    "nodes.providers.can": lambda world, value, pushed: (
        world.runtime.can["n1", "p1"] & sum(needs.ABILITIES.values()) == sum(needs.ABILITIES[word] for word in value)
    ),
    # These two are budgets that the loader checks; what runs shows them and nothing more.
    "nodes.providers.context_window_tokens": lambda world, value, pushed: pushed is None,
    "nodes.providers.total_context_tokens": lambda world, value, pushed: pushed is None,
    **{
        f"nodes.providers.timeouts.{key}": is_in_payload(*FIRST, "timeouts", key)
        for key in ("connect_ms", "first_byte_ms", "idle_ms")
    },
    "models.generation.max_tokens_ceiling": is_in_generation("max_tokens_ceiling"),
    **{row.name: is_in_generation(str(row.location[-1])) for row in ROWS if row.name.startswith("models.generation.d")},
}


def test_every_live_key_has_an_effect_that_is_looked_at() -> None:
    assert {row.name for row in ROWS if row.apply == "live"} == set(EFFECTS)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_key_changed_alone(row: Row, tmp_path: Path) -> None:
    async def work() -> None:
        settings = base()
        async with refresh_world(tmp_path, settings) as world:
            node = await world.node("n1")
            running, waiting = world.submit("m"), world.submit("m")
            assert running.lease is not None
            world.write(changed(settings, *row.location, to=row.value))
            before = world.everything()
            dry = await world.refresh("dry_run")
            assert world.everything() == before
            asking = asyncio.create_task(world.refresh())
            pushes = []
            while not asking.done():
                await asyncio.sleep(0.001)
                for push in node.pushed():
                    pushes.append(payload_from_message(push.payload))
                    await node.answer(push.payload_revision)
            report = await asking
            for change in (dry, report):
                (one,) = change.diff.changes
                path = path_of(settings, row.location)
                assert one.path == (f"{path}[{next(iter(row.value))}]" if isinstance(row.value, dict) else path)
                assert one.apply == row.apply
            assert (dry.status, dry.diff, dry.impact, dry.file_sha256) == (
                report.status,
                report.diff,
                report.impact,
                report.file_sha256,
            )
            assert [push.node_id for push in dry.node_pushes] == [push.node_id for push in report.node_pushes]
            if row.apply == "restart":
                assert report.status is Status.RESTART_REQUIRED
                assert world.everything() == before
                assert (report.impact, report.node_pushes, pushes) == (Impact(), [], [])
                return
            assert (report.status, world.runtime.revision) == (Status.APPLIED, 2)
            assert EFFECTS[row.name](world, row.value, pushes[0] if pushes else None)
            assert [push.status for push in report.node_pushes] == ["acked"] * len(pushes)
            assert running.lease.is_held
            assert running.outcome is None
            ended = waiting.outcome is Outcome.EVICTED_UNAVAILABLE
            assert report.impact.waiters_evicted_unavailable == ended
            assert report.impact.waiters_granted == (waiting.lease is not None)

    run(work())


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_this_build_does_not_serve_is_refused(name: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path, base()) as world:
            world.write(changed(base(), *name.split("."), to=True))
            report = await world.refresh()
            assert report.status is Status.INVALID
            assert any(finding.path.startswith(name.partition(".")[0]) for finding in report.findings)

    run(work())


@pytest.mark.parametrize("name", sorted(IGNORED))
def test_the_earlier_places_of_the_queue_are_ignored_beside_the_new_one(name: str, tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path, base()) as world:
            world.write(changed(base(), *P1, name.rpartition(".")[2], to=7))
            report = await world.refresh()
            assert report.status is Status.NO_CHANGE
            assert any("ignored" in finding.message for finding in report.findings)

    run(work())


@pytest.mark.parametrize(
    ("old", "new", "status", "paths"),
    [
        ("id: m\n", "id: renamed\n", Status.APPLIED, ["models[m]", "models[renamed]"]),
        ("id: n1", "id: n9", Status.RESTART_REQUIRED, ["nodes[n1]", "nodes[n9]"]),
        ("id: p4", "id: p9", Status.RESTART_REQUIRED, ["nodes[n1].providers[p4]", "nodes[n1].providers[p9]"]),
        ("name: c", "name: d", Status.RESTART_REQUIRED, ["nodes[n1].adapters[c]", "nodes[n1].adapters[d]"]),
        (
            "token_ref: t",
            "token_ref: v",
            Status.RESTART_REQUIRED,
            ["openai.principal_tokens[t]", "openai.principal_tokens[v]"],
        ),
    ],
)
def test_another_name_is_another_entry(old: str, new: str, status: Status, paths: list[str], tmp_path: Path) -> None:
    async def work() -> None:
        async with refresh_world(tmp_path, base()) as world:
            await world.node("n1")
            text = yaml.safe_dump(base(), sort_keys=False)
            assert old in text
            world.write(text.replace(old, new))
            for report in (await world.refresh("dry_run"), await world.refresh()):
                found = [change.path for change in report.diff.changes]
                assert report.status is status
                assert [path for path in found if path in paths] == paths
                assert all(path.startswith(tuple(paths)) for path in found)

    run(work())


def test_every_mapping_of_the_schema_is_in_the_table() -> None:
    locations = [at for at, field in keys_of(EdgeConfig) if is_map(unwrap(field.annotation))]
    mappings = {".".join(part for part in at if isinstance(part, str)) for at in locations}
    assert mappings == {"models.providers", "nodes.adapters.options", "nodes.providers.options"}
    assert mappings <= {row.name for row in ROWS}
