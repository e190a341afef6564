"""The earlier place of the queue's policy: a pair max_queue, queue_timeout_ms on each provider.

Taken over into provider_pool only where `provider_pool` is absent and every provider that has either key has both, with
equal values. Where `provider_pool` is present the pairs are ignored with a warning. Once a file is accepted the pairs
are gone from the configuration, so that a comparison of two files sees the policy in one place.
"""

from __future__ import annotations

from iop_fast.config.schema import EdgeConfig, ProviderPool
from iop_fast.config.tree import MapNode, Remark
from iop_fast.config.view import Spot, spots, whole

KEYS = ("max_queue", "queue_timeout_ms")


def holders_of(root: MapNode) -> list[Spot]:
    """Return the providers that have either key."""
    providers = [provider for node in spots(root, "nodes") for provider in node.spots("providers")]
    return [provider for provider in providers if any(provider.has(key) for key in KEYS)]


def first_line(root: MapNode, key: str) -> int | None:
    """Return the line that provider_pool's key is taken over from in an accepted file, None where it is not."""
    holders = [] if "provider_pool" in root.entries else holders_of(root)
    return holders[0].place(key, at_key=True)[0] if holders else None


def check_legacy(root: MapNode) -> list[Remark]:
    """Refuse pairs that cannot be taken over, warn about those that are ignored or taken over."""
    holders = holders_of(root)
    if not holders:
        return []
    if "provider_pool" in root.entries:
        return [
            holder.remark(key, "ignored, because provider_pool is present; remove it", "warning", at_key=True)
            for holder in holders
            for key in KEYS
            if holder.has(key)
        ]
    remarks = [_incomplete(holder) for holder in holders if not all(holder.has(key) for key in KEYS)]
    remarks += _different(holders)
    if not remarks:
        first = holders[0]
        message = "taken over as provider_pool.max_queue and provider_pool.queue_timeout_ms; move it there"
        remarks.append(first.remark("max_queue", message, "warning", at_key=True))
    return remarks


def check_concurrency(root: MapNode) -> list[Remark]:
    """nodes[].runtime.concurrency is read and shown, and decides nothing."""
    message = "kept from earlier files and never used: the capacity of each provider decides; remove it"
    sections = [node.section("runtime") for node in spots(root, "nodes")]
    return [
        section.remark("concurrency", message, "warning", at_key=True)
        for section in sections
        if section is not None and section.has("concurrency")
    ]


def _incomplete(holder: Spot) -> Remark:
    given, lacking = KEYS if holder.has(KEYS[0]) else (KEYS[1], KEYS[0])
    message = f"given without {lacking}, expected both, or better provider_pool.{given}"
    return holder.remark(given, message, at_key=True)


def _different(holders: list[Spot]) -> list[Remark]:
    remarks = []
    for key in KEYS:
        values = [(holder, whole(holder.get(key))) for holder in holders]
        known = [(holder, value) for holder, value in values if value is not None]
        for holder, value in known[1:]:
            if value != known[0][1]:
                line, _ = known[0][0].place(key)
                message = f"{value} here and {known[0][1]} in line {line}, expected one value: set provider_pool.{key}"
                remarks.append(holder.remark(key, message))
    return remarks


def promote(config: EdgeConfig, root: MapNode) -> EdgeConfig:
    """Take the pair of an accepted file over into provider_pool and clear it from the providers."""
    holders = [p for node in config.nodes for p in node.providers if p.max_queue is not None]
    holders += [p for node in config.nodes for p in node.providers if p.queue_timeout_ms is not None]
    if not holders:
        return config
    pool = config.provider_pool
    if "provider_pool" not in root.entries:
        pool = ProviderPool.model_validate({key: getattr(holders[0], key) for key in KEYS})
    nodes = tuple(
        node.model_copy(
            update={"providers": tuple(p.model_copy(update=dict.fromkeys(KEYS, None)) for p in node.providers)}
        )
        for node in config.nodes
    )
    return config.model_copy(update={"provider_pool": pool, "nodes": nodes})
