"""The pages of `/v1/models`: every configured model, with what stands behind it at this moment.

Each model object has an `iop` object of two numbers: `live_candidates`, the providers that could take a request of the
class `normal` without one of them coming up first, and `long_slots`, the slots for long requests that those have
(taken ones included). Whether a slot is free changes faster than anybody could read it here.

The pages are made at most once in PAGE_AGE_NS: a list of thousands of models costs milliseconds, and clients poll it.
"""

from __future__ import annotations

from iop_fast.edge.gate import NS_PER_MS
from iop_fast.edge.runtime import Runtime
from iop_fast.edge.state import EdgeState

PAGE_AGE_NS = 250 * NS_PER_MS


class LiveModels:
    """Makes the pages. Reads admission's snapshot and changes nothing."""

    __slots__ = ("_edge", "_list", "_made_at_ns", "_pages", "_runtime")

    def __init__(self, edge: EdgeState) -> None:
        self._edge = edge
        self._runtime: Runtime | None = None
        self._made_at_ns = 0
        self._pages: dict[str, bytes] = {}
        self._list = b""

    def list_page(self) -> bytes:
        """Return the list of all models."""
        self._renew()
        if not self._list:
            self._list = b'{"object":"list","data":[' + b",".join(self._pages.values()) + b"]}"
        return self._list

    def page(self, model: str) -> bytes | None:
        """Return one model's object; None for a model that is not configured."""
        self._renew()
        return self._pages.get(model)

    def _renew(self) -> None:
        edge = self._edge
        now_ns = edge.clock.now_ns()
        if edge.runtime is self._runtime and now_ns - self._made_at_ns < PAGE_AGE_NS:
            return
        self._runtime, self._made_at_ns, self._list = edge.runtime, now_ns, b""
        long_slots = {
            (row.node_id, row.provider_id): row.long_capacity
            for row in edge.gate.snapshot()
            if row.link == "ready" and row.enabled and row.healthy and row.capacity
        }
        self._pages = {}
        for entry in edge.runtime.models.values():
            live = [long_slots[key] for key in entry.served if key in long_slots]
            added = b',"iop":{"live_candidates":%d,"long_slots":%d}}' % (len(live), sum(live))
            self._pages[entry.id] = entry.page[:-1] + added
