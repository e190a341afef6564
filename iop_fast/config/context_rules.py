"""The rules about long slots: capacity, context windows, the threshold and a provider's total context.

The window of a provider is its own, else that of every model that maps to it.
"""

from __future__ import annotations

from typing import NamedTuple

from iop_fast.config.places import bracket
from iop_fast.config.schema.front import OpenAi
from iop_fast.config.tree import MapNode, Remark
from iop_fast.config.view import Spot, spots

THRESHOLD_KEY = "long_context_threshold_tokens"


class Window(NamedTuple):
    """A context window and the key that gives it. `tokens` is None where a model gives none."""

    source: str
    tokens: int | None


def check_long_context(root: MapNode) -> list[Remark]:
    """Long slots can all be used, by requests that can be long, and all long contexts fit the provider."""
    of_models = _windows_of_models(root)
    threshold = _threshold(root)
    remarks = []
    for node in spots(root, "nodes"):
        for provider in node.spots("providers"):
            long = provider.whole("long_context_capacity")
            if long is None or long <= 0:
                continue
            windows = _windows(provider, of_models)
            remarks += _check_capacity(provider, long)
            remarks += _check_use(provider, windows, threshold)
            remarks += _check_budget(provider, long, windows)
    return remarks


def _windows_of_models(root: MapNode) -> dict[str, list[Window]]:
    """Windows of the models that map to each provider, None for a model without one."""
    windows: dict[str, list[Window]] = {}
    for model in spots(root, "models"):
        mapping = model.section("providers")
        source = f"models{bracket(model.text('id') or '?')}.context_window_tokens"
        for provider_id in mapping.node.entries if mapping is not None else ():
            windows.setdefault(provider_id, []).append(Window(source, model.whole("context_window_tokens")))
    return windows


def _threshold(root: MapNode) -> int | None:
    """The threshold; None where something that is no number stands there."""
    openai = Spot(root, ()).section("openai")
    if openai is None or not openai.has(THRESHOLD_KEY):
        default: int = OpenAi.model_fields[THRESHOLD_KEY].default
        return default
    return openai.whole(THRESHOLD_KEY)


def _windows(provider: Spot, of_models: dict[str, list[Window]]) -> list[Window]:
    if provider.has("context_window_tokens"):
        return [Window("context_window_tokens", provider.whole("context_window_tokens"))]
    return of_models.get(provider.text("id") or "", [])


def _check_capacity(provider: Spot, long: int) -> list[Remark]:
    capacity = provider.whole("capacity")
    if capacity is None or long <= capacity:
        return []
    message = f"{long} is above capacity {capacity}: a long request takes one slot of each"
    return [provider.remark("long_context_capacity", message, "warning")]


def _check_use(provider: Spot, windows: list[Window], threshold: int | None) -> list[Remark]:
    known = [(window.tokens, window.source) for window in windows if window.tokens is not None]
    if threshold is None or not known or len(known) < len(windows):
        return []
    tokens, source = max(known)
    if tokens >= threshold:
        return []
    message = f"no request can use these slots: {source} {tokens} is below openai.{THRESHOLD_KEY} {threshold}"
    return [provider.remark("long_context_capacity", message, "warning")]


def _check_budget(provider: Spot, long: int, windows: list[Window]) -> list[Remark]:
    total = provider.whole("total_context_tokens")
    if total is None:
        return []
    known = [(window.source, window.tokens) for window in windows if window.tokens is not None]
    if not known and not provider.has("context_window_tokens"):
        message = "cannot be checked: neither the provider nor a model that maps to it has context_window_tokens"
        return [provider.remark("total_context_tokens", message, "warning")]
    return [
        provider.remark(
            "total_context_tokens",
            f"{source} {tokens} x long_context_capacity {long} is {tokens * long}, expected at most {total}",
        )
        for source, tokens in known
        if tokens * long > total
    ]
