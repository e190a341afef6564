"""One revision of the configuration, ready for use."""

from __future__ import annotations

import dataclasses
import json
from hashlib import sha256

import pytest

from iop_fast._core.scan import FEATURE_TOOLS
from iop_fast.config.payload import NodePayload, RuntimeSettings
from iop_fast.edge import needs
from iop_fast.edge.auth import ForwardRule, Principal
from iop_fast.edge.refusals import is_supported
from iop_fast.edge.runtime import NEAR_CANDIDATES_MAX, Runtime
from tests.unit.edge.exchange_world import provider_spec, runtime_of


def test_the_plan_is_the_catalog_with_health_settled() -> None:
    providers = [
        provider_spec("n1", "up", health="up"),
        provider_spec("n1", "down", health="down"),
        provider_spec("n1", "auto-up", health="auto", priority=-3, capacity=7, long_context_capacity=2),
        provider_spec("n2", "auto-down", health="auto", enabled=False),
    ]
    runtime = runtime_of(
        providers,
        {"a": {"auto-up": "x", "up": "y"}, "b": {"auto-down": "z"}},
        {"provider_pool": {"max_queue": 5, "queue_timeout_ms": 1500}},
    )
    plan = runtime.plan(lambda key: key == ("n1", "auto-up"))
    assert [(spec.provider_id, spec.healthy) for spec in plan.providers] == [
        ("up", True),
        ("down", False),
        ("auto-up", True),
        ("auto-down", False),
    ]
    spec = plan.providers[2]
    assert (spec.node_id, spec.capacity, spec.long_capacity, spec.priority, spec.enabled, spec.can) == (
        "n1",
        7,
        2,
        -3,
        True,
        needs.EVERYTHING,
    )
    assert not plan.providers[3].enabled
    assert plan.models == {"a": (("n1", "auto-up"), ("n1", "up")), "b": (("n2", "auto-down"),)}
    assert (plan.max_queue, plan.queue_timeout_ns) == (5, 1_500_000_000)


def test_no_queue_timeout_is_zero_in_the_plan() -> None:
    runtime = runtime_of([provider_spec("n1", "p")], {"m": {"p": "s"}}, {"provider_pool": {"queue_timeout_ms": 0}})
    assert runtime.plan(lambda key: True).queue_timeout_ns == 0


def test_a_node_s_payload_revision_is_the_one_it_last_changed_at() -> None:
    base = runtime_of([provider_spec("n1", "p"), provider_spec("n2", "q")], {"m": {"p": "s"}}, {})
    payloads = {"n1": NodePayload(RuntimeSettings(0, 0), (), ()), "n2": NodePayload(RuntimeSettings(0, 0), (), ())}
    first = Runtime.build(base.config, base.catalog, payloads, revision=4)
    assert dict(first.payload_revisions) == {"n1": 4, "n2": 4}
    changed = {"n1": payloads["n1"], "n2": NodePayload(RuntimeSettings(5, 0), (), ())}
    second = Runtime.build(base.config, base.catalog, changed, revision=5, previous=first)
    assert dict(second.payload_revisions) == {"n1": 4, "n2": 5}
    third = Runtime.build(base.config, base.catalog, payloads, revision=6, previous=second)
    assert dict(third.payload_revisions) == {"n1": 4, "n2": 6}


def test_principals_are_found_by_hash_and_shown_by_alias() -> None:
    tokens = [
        {"token_ref": "t1", "token_hash_sha256": sha256(b"one").hexdigest(), "principal_ref": "user-1"},
        {
            "token_ref": "t2",
            "token_hash_sha256": sha256(b"two").hexdigest().upper(),
            "principal_ref": "user-1",
            "alias": "Alice",
        },
    ]
    runtime = runtime_of([], {}, {"openai": {"principal_tokens": tokens}})
    assert dict(runtime.principals) == {
        sha256(b"one").digest(): Principal("user-1", "t1"),
        sha256(b"two").digest(): Principal("Alice", "t2"),
    }


def test_the_forward_rule_is_there_while_it_is_enabled() -> None:
    assert runtime_of([], {}, {}).forward_rule is None
    runtime = runtime_of([], {}, {"openai": {"provider_auth": {"enabled": True}}})
    assert runtime.forward_rule == ForwardRule(b"x-iop-provider-authorization", b"authorization", b"Bearer", True)
    assert runtime.fields.sort([(b"x-iop-provider-authorization", b"t")]).marked


def test_the_model_pages_are_openai_s() -> None:
    runtime = runtime_of(
        [provider_spec("n1", "p")],
        {},
        {
            "models": [
                {"id": "a", "providers": {"p": "s"}, "context_window_tokens": 4096},
                {"id": "b/c", "providers": {"p": "s"}},
            ]
        },
    )
    page = json.loads(runtime.models_page)
    assert page["object"] == "list"
    assert [entry["id"] for entry in page["data"]] == ["a", "b/c"]
    assert page["data"][0]["max_model_len"] == 4096
    assert json.loads(runtime.models["b/c"].page) == page["data"][1]
    assert {"id", "object", "created", "owned_by"} <= set(page["data"][1])


def test_what_a_model_can_is_what_its_providers_can() -> None:
    runtime = runtime_of(
        [provider_spec("n1", "p", type="ollama", adapter_type="ollama"), provider_spec("n1", "q")],
        {"mixed": {"p": "s", "q": "s"}, "plain": {"p": "s"}},
        {},
    )
    need = needs.SURFACE_CHAT | FEATURE_TOOLS
    assert is_supported(runtime.models["mixed"].abilities, need)
    assert is_supported(runtime.models["plain"].abilities, need)
    assert is_supported(runtime.models["mixed"].abilities, needs.SURFACE_CHAT | needs.LOGPROBS)
    assert not is_supported(runtime.models["plain"].abilities, needs.SURFACE_CHAT | needs.LOGPROBS)
    assert not is_supported(runtime.models["plain"].abilities, needs.SURFACE_RESPONSES)
    assert (runtime.models["mixed"].has_normalized, runtime.models["plain"].has_normalized) == (True, True)
    assert runtime.normalized == {("n1", "p")}


def test_near_names_are_found_among_many() -> None:
    models = {f"other-model-with-a-long-name-{index}": {"p": "s"} for index in range(10 * NEAR_CANDIDATES_MAX)}
    models |= {"llama-3.1-8b": {"p": "s"}, "llama-3.1-70b": {"p": "s"}}
    runtime = runtime_of([provider_spec("n1", "p")], models, {})
    assert runtime.near_names("lama-3.1-8b")[0] == "llama-3.1-8b"
    assert runtime.near_names("zzz") == []
    assert runtime.near_names("") == []


def test_a_runtime_does_not_change() -> None:
    runtime = runtime_of([provider_spec("n1", "p")], {"m": {"p": "s"}}, {})
    with pytest.raises(dataclasses.FrozenInstanceError):
        runtime.revision = 2  # type: ignore[misc]
    with pytest.raises(TypeError):
        runtime.models["x"] = runtime.models["m"]  # type: ignore[index]
