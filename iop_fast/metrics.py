"""Metrics as both programs show them: what a family is, how families are rendered, and what every process has.

Counters live where the programs count; nothing of prometheus_client is touched before somebody scrapes. A scrape takes
two steps. The program's reader copies its numbers on the event loop, piece by piece with a turn of the loop between
two; the text is then written in a thread that gives the interpreter up often. So a scrape holds the loop up for no
longer than its longest piece takes. Scrapes take turns, and with too many waiting a further one is refused.

A family is declared once, as a `Family` of a table: its help text, type and labels are what `/metrics` says and what
docs/metrics.md is made from. Label values are ids of the configuration and words of this program; what a client sent is
never one.
"""

from __future__ import annotations

import asyncio
import gzip
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from http import HTTPStatus
from typing import NamedTuple

from aiohttp import web
from prometheus_client import GCCollector, ProcessCollector
from prometheus_client.core import Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector, CollectorRegistry

import iop_fast
from iop_fast._hot.meters import DURATION_BOUNDS_NS, SHORT_BOUNDS_NS, Histogram
from iop_fast.considerate import considerate

NS_PER_S = 1_000_000_000

PATH = "/metrics"

# How long the copying of numbers holds the loop before others get their turn.
PIECE_NS = 1_000_000
# Scrapes that may wait for their turn.
WAITING_MAX = 16

LAG_LOOK_S = 0.1


class Kind(Enum):
    """What a family's numbers are. A summary has a count and a sum and no quantiles."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"


class Family(NamedTuple):
    """One metric: its name as it is scraped, what it is, what it means, and its labels."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Distribution(NamedTuple):
    """A histogram's value: durations by bucket, the last one for all above the bounds, and their sum."""

    bounds_ns: Sequence[int]
    counts: Sequence[int]
    sum_ns: int


class Total(NamedTuple):
    """A summary's value: how many, and their sum."""

    number: int
    sum_ns: int


Value = float | Distribution | Total
# Values of a family, each under the values of its labels. A family may come in several of these.
Rows = tuple[Family, Iterable[tuple[tuple[str, ...], Value]]]
Read = Callable[[], Iterator[Rows]]

# The families that both programs have.
BUILD_INFO = Family(
    "iop_build_info", Kind.GAUGE, "1, with the versions of this program.", ("program", "version", "python")
)
LOOP_LAG = Family(
    "iop_loop_lag_seconds", Kind.HISTOGRAM, "How late the event loop came to a timer, looked at every 100 ms."
)
COMMON = (BUILD_INFO, LOOP_LAG)


def short(histogram: Histogram) -> Distribution:
    """Read a histogram of SHORT_BOUNDS_NS."""
    return Distribution(SHORT_BOUNDS_NS, histogram.counts(), histogram.sum_ns)


def long(histogram: Histogram) -> Distribution:
    """Read a histogram of DURATION_BOUNDS_NS."""
    return Distribution(DURATION_BOUNDS_NS, histogram.counts(), histogram.sum_ns)


class LoopLag:
    """Looks at the event loop's clock by a timer and counts how late it comes."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.histogram = Histogram(SHORT_BOUNDS_NS)
        self._loop = loop
        self._due_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Begin to look."""
        self._due_s = self._loop.time() + LAG_LOOK_S
        self._timer = self._loop.call_at(self._due_s, self._look)

    def stop(self) -> None:
        """Stop looking; idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        late_s = self._loop.time() - self._due_s
        self.histogram.observe(max(0, int(late_s * NS_PER_S)))
        self.start()


class Busy(Exception):
    """Too many scrapes wait for their turn."""


class Page(NamedTuple):
    """A rendered answer. `encoding` is its Content-Encoding, "" for none."""

    body: bytes
    content_type: str
    encoding: str


class Exposition:
    """What /metrics of one program says. `read` yields the program's rows, each step a short piece of work."""

    def __init__(self, program: str, lag: LoopLag, read: Read) -> None:
        self._program = program
        self._lag = lag
        self._read = read
        self._process = (ProcessCollector(registry=None), GCCollector(registry=CollectorRegistry()))
        self._turn = asyncio.Lock()
        self._waiting = 0

    async def scrape(self, accept: str, accept_encoding: str) -> Page:
        """Read and render, in the form that the request's fields ask for; raise Busy when too many wait already."""
        if self._waiting >= WAITING_MAX:
            raise Busy(f"{self._waiting} scrapes wait for their turn already")
        self._waiting += 1
        try:
            async with self._turn:
                families = await self._gather()
                with considerate():
                    return await asyncio.to_thread(self._render, families, accept, accept_encoding)
        finally:
            self._waiting -= 1

    def _rows(self) -> Iterator[Rows]:
        versions = (self._program, iop_fast.__version__, platform.python_version())
        yield BUILD_INFO, [(versions, 1)]
        yield LOOP_LAG, [((), short(self._lag.histogram))]
        yield from self._read()

    async def _gather(self) -> dict[Family, list[tuple[tuple[str, ...], Value]]]:
        """Copy the numbers, by family in the order of their coming; others get their turns of the loop in between."""
        families: dict[Family, list[tuple[tuple[str, ...], Value]]] = {}
        begun = time.perf_counter_ns()
        for family, rows in self._rows():
            families.setdefault(family, []).extend(rows)
            if time.perf_counter_ns() - begun > PIECE_NS:
                await asyncio.sleep(0)
                begun = time.perf_counter_ns()
        return families

    def _render(
        self, families: dict[Family, list[tuple[tuple[str, ...], Value]]], accept: str, accept_encoding: str
    ) -> Page:
        encode, content_type = choose_encoder(accept)
        body = encode(Gathered([metric_of(family, rows) for family, rows in families.items()], self._process))
        if gzip_accepted(accept_encoding):
            return Page(gzip.compress(body, compresslevel=1), content_type, "gzip")
        return Page(body, content_type, "")


class Gathered(Collector):
    """What one scrape shows."""

    def __init__(self, metrics: Iterable[Metric], collectors: Iterable[Collector]) -> None:
        self._metrics = metrics
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        """Yield everything."""
        yield from self._metrics
        for collector in self._collectors:
            yield from collector.collect()


def metric_of(family: Family, rows: Iterable[tuple[tuple[str, ...], Value]]) -> Metric:
    """Put a family into the form that prometheus_client renders."""
    name = family.name.removesuffix("_total") if family.kind is Kind.COUNTER else family.name
    metric = Metric(name, family.help, family.kind.value)
    for values, value in rows:
        labels = dict(zip(family.labels, values, strict=True))
        if isinstance(value, Distribution):
            add_distribution(metric, labels, value)
        elif isinstance(value, Total):
            metric.add_sample(name + "_count", labels, value.number)
            metric.add_sample(name + "_sum", labels, value.sum_ns / NS_PER_S)
        else:
            metric.add_sample(family.name, labels, value)
    return metric


def add_distribution(metric: Metric, labels: dict[str, str], value: Distribution) -> None:
    """Add a histogram's samples, whose buckets hold all that is not above their bound."""
    count = 0
    for bound_ns, bucket in zip(value.bounds_ns, value.counts, strict=False):
        count += bucket
        metric.add_sample(metric.name + "_bucket", {**labels, "le": f"{bound_ns / NS_PER_S:g}"}, count)
    count += value.counts[-1]
    metric.add_sample(metric.name + "_bucket", {**labels, "le": "+Inf"}, count)
    metric.add_sample(metric.name + "_count", labels, count)
    metric.add_sample(metric.name + "_sum", labels, value.sum_ns / NS_PER_S)


def add_metrics(app: web.Application, exposition: Exposition) -> None:
    """Serve /metrics."""

    async def get_metrics(request: web.Request) -> web.Response:
        try:
            page = await exposition.scrape(
                request.headers.get("Accept", ""), ",".join(request.headers.getall("Accept-Encoding", []))
            )
        except Busy as error:
            return web.Response(status=HTTPStatus.SERVICE_UNAVAILABLE, text=f"{error}\n")
        headers = {"content-type": page.content_type, "cache-control": "no-store", "vary": "accept, accept-encoding"}
        if page.encoding:
            headers["content-encoding"] = page.encoding
        return web.Response(body=page.body, headers=headers)

    app.router.add_get(PATH, get_metrics)
