"""The rules between the keys of a Node's file."""

from __future__ import annotations

from dataclasses import replace

from pydantic import ValidationError

from iop_fast.config.cli_rules import check_cli_profiles
from iop_fast.config.rules import once
from iop_fast.config.schema.native import BUILT_IN_OPTIONS
from iop_fast.config.tracing_rules import check_tracing
from iop_fast.config.transport_rules import check_plaintext, check_silence
from iop_fast.config.tree import MapNode, Remark
from iop_fast.config.verdict import remarks_of
from iop_fast.config.view import Spot, to_plain

PAIRS = (("reconnect_ms_min", 100, "reconnect_ms_max", 10_000), ("probe_ms_min", 1_000, "probe_ms_max", 10_000))


def check_node(root: MapNode) -> list[Remark]:
    """Run every rule."""
    top = Spot(root, ())
    return [
        *_check_token(top),
        *once(top.spots("cli_profiles"), "id", "profile id"),
        *once(top.spots("native_models"), "id", "model id"),
        *check_cli_profiles(top),
        *_check_native_models(top),
        *_check_limits(top),
        *_check_encryption(top),
        *check_tracing(root),
    ]


def _check_token(top: Spot) -> list[Remark]:
    if top.has("token_env") == top.has("token_file"):
        got = "both" if top.has("token_env") else "neither"
        key = "token_file" if top.has("token_file") else ""
        return [top.remark(key, f"expected one of token_env and token_file, got {got}", at_key=True)]
    return []


def _check_encryption(top: Spot) -> list[Remark]:
    edge = top.section("edge")
    if edge is None:
        return []
    return check_plaintext(edge, "edge", "address", "this Node's token and all requests", "error")


def _check_native_models(top: Spot) -> list[Remark]:
    """The options of this build's own adapters; those of other packages are theirs to check."""
    remarks: list[Remark] = []
    for model in top.spots("native_models"):
        options = BUILT_IN_OPTIONS.get(model.text("adapter") or "")
        if options is None:
            continue
        given = model.section("options") or Spot(MapNode(*model.place("options")), (*model.location, "options"))
        try:
            options.model_validate(to_plain(given.node))
        except ValidationError as error:
            found = remarks_of(options, given.node, error)
            remarks += [replace(remark, location=(*given.location, *remark.location)) for remark in found]
    return remarks


def _check_limits(top: Spot) -> list[Remark]:
    limits = top.section("limits")
    if limits is None:
        return []
    remarks = check_silence(limits)
    for low_key, low_default, high_key, high_default in PAIRS:
        low = limits.whole(low_key) if limits.has(low_key) else low_default
        high = limits.whole(high_key) if limits.has(high_key) else high_default
        if low is not None and high is not None and low > high:
            key = low_key if limits.has(low_key) else high_key
            remarks.append(limits.remark(key, f"{low_key} {low} is above {high_key} {high}"))
    return remarks
