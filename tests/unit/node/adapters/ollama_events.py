"""A RunSink that notes what it is told, for tests of the ollama adapter."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from iop_fast.seams import End

LIMIT_S = 10.0


class EventSink:
    """Keeps events as tuples."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []
        self.taken = 0
        self.end: End | None = None
        self.ended = asyncio.Event()

    def _note(self, *event: Any) -> None:
        assert self.end is None, f"{event} after on_end"
        self.told.append(event)

    @property
    def events(self) -> list[tuple[Any, ...]]:
        """What was told, texts joined."""
        joined: list[tuple[Any, ...]] = []
        for kind, group in groupby(self.told, key=lambda event: event[0]):
            events = list(group)
            joined += [(kind, "".join(event[1] for event in events))] if kind in ("text", "reasoning") else events
        return joined

    def on_taken(self) -> None:
        assert self.end is None
        self.taken += 1

    def on_text(self, text: str, index: int = 0) -> None:
        assert index == 0
        self._note("text", text)

    def on_reasoning(self, text: str, index: int = 0) -> None:
        assert index == 0
        self._note("reasoning", text)

    def on_tool_call(self, call_index: int, call_id: str, name: str, arguments: str, index: int = 0) -> None:
        assert index == 0
        self._note("call", call_index, call_id, name, arguments)

    def on_embedding(self, values: Sequence[float], index: int = 0) -> None:
        self._note("embedding", index, list(values))

    def on_finish(self, reason: str, index: int = 0) -> None:
        assert index == 0
        self._note("finish", reason)

    def on_end(self, end: End) -> None:
        assert self.end is None, "a run ends once"
        self.end = end
        self.ended.set()

    @property
    def text(self) -> str:
        """All of the answer's text."""
        return "".join(event[1] for event in self.told if event[0] == "text")

    async def finished(self) -> End:
        """Wait for the end."""
        async with asyncio.timeout(LIMIT_S):
            await self.ended.wait()
        assert self.end is not None
        return self.end
