"""What the pages of a running Edge say, as data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tests.integration.edge_harness import LIMIT_S, Bench

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


async def page(b: Bench, path: str, status: int = 200) -> Any:
    async with b.client.get(b.admin(path)) as answer:
        assert answer.status == status, await answer.text()
        return await answer.json()


async def metrics(b: Bench) -> Samples:
    """Every sample of /metrics by its name and labels."""
    async with b.client.get(b.admin("/metrics")) as answer:
        assert answer.status == 200
        text = await answer.text()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


class Reader:
    """One reader of /events: the events, parsed."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self.answer = answer

    async def next(self) -> tuple[str, dict[str, Any]] | None:
        """The next event, None at the end of the stream."""
        kind = ""
        while line := (await asyncio.wait_for(self.answer.content.readline(), LIMIT_S)).decode():
            if line.startswith("event: "):
                kind = line[7:].strip()
            elif line.startswith("data: "):
                return kind, json.loads(line[6:])
        return None


@asynccontextmanager
async def reader(b: Bench) -> AsyncIterator[Reader]:
    async with b.client.get(b.admin("/events"), read_bufsize=2**20) as answer:
        assert (answer.status, answer.content_type) == (200, "text/event-stream")
        yield Reader(answer)
