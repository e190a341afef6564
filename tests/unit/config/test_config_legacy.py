"""The earlier per-provider queue pair: taken over, refused or ignored, as the rule says."""

from __future__ import annotations

import pytest

from iop_fast.config.catalog import build_catalog

from .files import FLEET, accepted, errors, findings, warnings

TWO = """\
models: [{{id: m, providers: {{p: s, q: s}}}}]
nodes:
  - id: n
    token_hash_sha256: {hash}
    providers:
      - {{id: p, type: vllm, endpoint: 'http://h', models: [s], capacity: 1{p}}}
      - {{id: q, type: vllm, endpoint: 'http://h', models: [s], capacity: 1{q}}}
"""
PAIR = ", max_queue: 5, queue_timeout_ms: 7"


def two(p: str, q: str, head: str = "") -> str:
    return head + TWO.format(hash="a" * 64, p=p, q=q)


def test_equal_pairs_are_taken_over_with_a_warning() -> None:
    loaded = accepted(two(PAIR, PAIR))
    pool = loaded.config.provider_pool
    assert (pool.max_queue, pool.queue_timeout_ms) == (5, 7)
    assert [one.message for one in loaded.warnings] == [
        "taken over as provider_pool.max_queue and provider_pool.queue_timeout_ms; move it there"
    ]


def test_a_provider_without_the_pair_does_not_hinder() -> None:
    assert accepted(two("", PAIR)).config.provider_pool.max_queue == 5


def test_a_pair_of_zeros_means_what_it_means_in_the_root() -> None:
    pool = accepted(two(", max_queue: 0, queue_timeout_ms: 0", "")).config.provider_pool
    assert (pool.max_queue, pool.queue_timeout_ms) == (16, 0)


def test_the_pairs_are_gone_from_the_accepted_configuration() -> None:
    for provider in accepted(two(PAIR, PAIR)).config.nodes[0].providers:
        assert provider.max_queue is None
        assert provider.queue_timeout_ms is None


def test_different_values_refuse_the_load() -> None:
    assert errors(two(PAIR, ", max_queue: 6, queue_timeout_ms: 8")) == [
        "nodes[n].providers[q].max_queue: 6 here and 5 in line 6, expected one value: set provider_pool.max_queue",
        "nodes[n].providers[q].queue_timeout_ms: "
        "8 here and 7 in line 6, expected one value: set provider_pool.queue_timeout_ms",
    ]


def test_half_a_pair_refuses_the_load() -> None:
    assert errors(two(PAIR, ", max_queue: 5")) == [
        "nodes[n].providers[q].max_queue: "
        "given without queue_timeout_ms, expected both, or better provider_pool.max_queue"
    ]
    (found,) = errors(two(", queue_timeout_ms: 7", ""))
    assert found.startswith("nodes[n].providers[p].queue_timeout_ms: given without max_queue")


def test_with_provider_pool_present_they_are_ignored_with_warnings() -> None:
    text = two(PAIR, ", max_queue: 6", head="provider_pool: {}\n")
    pool = accepted(text).config.provider_pool
    assert (pool.max_queue, pool.queue_timeout_ms) == (16, 30_000)
    assert warnings(text) == [
        "nodes[n].providers[p].max_queue: ignored, because provider_pool is present; remove it",
        "nodes[n].providers[p].queue_timeout_ms: ignored, because provider_pool is present; remove it",
        "nodes[n].providers[q].max_queue: ignored, because provider_pool is present; remove it",
    ]
    assert accepted(text).config.nodes[0].providers[1].max_queue is None


@pytest.mark.parametrize("concurrency", [0, 1, 1_000_000])
def test_concurrency_is_taken_with_a_warning_and_is_no_capacity(concurrency: int) -> None:
    text = FLEET.replace(
        "    providers:\n      - id: p1", f"    runtime: {{concurrency: {concurrency}}}\n    providers:\n      - id: p1"
    )
    loaded = accepted(text)
    assert [str(one) for one in loaded.warnings] == [
        "f:7:15: warning: nodes[n1].runtime.concurrency: "
        "kept from earlier files and never used: the capacity of each provider decides; remove it"
    ]
    assert loaded.config.nodes[0].runtime.concurrency == concurrency
    assert build_catalog(loaded.config) == build_catalog(accepted(FLEET).config)


def test_concurrency_has_bounds_all_the_same() -> None:
    text = FLEET.replace(
        "    providers:\n      - id: p1", "    runtime: {concurrency: -1}\n    providers:\n      - id: p1"
    )
    assert [one.severity for one in findings(text)] == ["warning", "error"]
