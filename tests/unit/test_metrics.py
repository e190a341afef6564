"""Families and their rendering, the loop's lag, and the tables of both programs."""

from __future__ import annotations

import asyncio
import gzip
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from iop_fast import metrics
from iop_fast._hot.meters import DURATION_BOUNDS_NS, Histogram, RequestMeters
from iop_fast.edge import metric_table as edge_table
from iop_fast.metrics import Distribution, Exposition, Family, Kind, LoopLag, Page, Rows, Total
from iop_fast.node import metric_table as node_table
from scripts import gen_metrics_docs

ROOT = Path(gen_metrics_docs.TARGET).parents[1]

ALL = (*metrics.COMMON, *edge_table.FAMILIES, *node_table.FAMILIES)

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

COUNTED = Family("iop_things_total", Kind.COUNTER, "Things.", ("kind",))
LEVEL = Family("iop_level", Kind.GAUGE, "A level.")
LASTED = Family("iop_lasted_seconds", Kind.HISTOGRAM, "How long.", ("model",))
SUMMED = Family("iop_summed_seconds", Kind.SUMMARY, "How long in all.", ("model",))


def rows() -> Iterator[Rows]:
    yield COUNTED, [(("a",), 1)]
    yield LEVEL, [((), 2.5)]
    yield COUNTED, [(('quo"te\n\\',), 3)]
    yield LASTED, [(("m",), Distribution((1_000_000, 2_000_000_000), (1, 2, 3), 9_500_000_000))]
    yield SUMMED, [(("m",), Total(4, 500_000_000))]


def scrape(read: Callable[[], Iterator[Rows]] = rows, accept: str = "", encoding: str = "") -> Page:
    async def work() -> Page:
        return await Exposition("edge", LoopLag(asyncio.get_running_loop()), read).scrape(accept, encoding)

    return asyncio.run(work())


def test_text_is_what_prometheus_reads() -> None:
    page = scrape()
    assert (page.content_type, page.encoding) == ("text/plain; version=0.0.4; charset=utf-8", "")
    found = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse_text(page.body.decode())
        for sample in family.samples
    }
    assert found["iop_things_total", (("kind", "a"),)] == 1
    assert found["iop_things_total", (("kind", 'quo"te\n\\'),)] == 3
    assert found["iop_level", ()] == 2.5
    buckets = [found["iop_lasted_seconds_bucket", (("le", le), ("model", "m"))] for le in ("0.001", "2", "+Inf")]
    assert buckets == [1, 3, 6]
    assert found["iop_lasted_seconds_count", (("model", "m"),)] == 6
    assert found["iop_lasted_seconds_sum", (("model", "m"),)] == 9.5
    assert found["iop_summed_seconds_count", (("model", "m"),)] == 4
    assert found["iop_summed_seconds_sum", (("model", "m"),)] == 0.5
    assert page.body.count(b"# HELP iop_things_total ") == 1
    assert b'iop_build_info{program="edge",' in page.body
    assert b"process_cpu_seconds_total " in page.body


def test_openmetrics_is_given_to_who_asks_for_it() -> None:
    page = scrape(accept=f"{OPENMETRICS},text/plain;q=0.5")
    assert page.content_type.startswith("application/openmetrics-text; version=1.0.0")
    text = page.body.decode()
    assert text.endswith("# EOF\n")
    assert {"iop_things", "iop_lasted_seconds"} <= {family.name for family in parse_openmetrics(text)}


def test_it_is_compressed_for_who_takes_that() -> None:
    page = scrape(encoding="deflate, gzip;q=0.9")
    assert page.encoding == "gzip"
    assert b"iop_level 2.5\n" in gzip.decompress(page.body)


def test_scrapes_take_turns_and_too_many_are_refused() -> None:
    async def work() -> None:
        exposition = Exposition("edge", LoopLag(asyncio.get_running_loop()), rows)
        scrapes = [exposition.scrape("", "") for _ in range(metrics.WAITING_MAX + 2)]
        results = await asyncio.gather(*scrapes, return_exceptions=True)
        refused = [result for result in results if isinstance(result, metrics.Busy)]
        assert (len(results) - len(refused), len(refused)) == (metrics.WAITING_MAX, 2)

    asyncio.run(work())


def test_the_loop_has_turns_while_numbers_are_copied() -> None:
    async def work() -> None:
        turns = 0

        def slow() -> Iterator[Rows]:
            for _ in range(5):
                before = metrics.time.perf_counter_ns()
                while metrics.time.perf_counter_ns() - before < 2 * metrics.PIECE_NS:
                    continue
                yield LEVEL, ()

        async def look() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        looking = asyncio.create_task(look())
        exposition = Exposition("edge", LoopLag(asyncio.get_running_loop()), slow)
        await exposition._gather()
        looking.cancel()
        assert turns >= 5

    asyncio.run(work())


def test_the_lag_of_a_loop_that_is_held_up_shows() -> None:
    async def work() -> Histogram:
        lag = LoopLag(asyncio.get_running_loop())
        lag.start()
        before = metrics.time.perf_counter()
        while metrics.time.perf_counter() - before < 2 * metrics.LAG_LOOK_S:
            continue
        while not lag.histogram.count:  # noqa: ASYNC110 - the timer is what is waited for
            await asyncio.sleep(0)
        lag.stop()
        lag.stop()
        return lag.histogram

    assert asyncio.run(work()).sum_ns > metrics.LAG_LOOK_S / 2 * 1e9


# Meters


def test_a_histogram_counts_up_to_its_bound_inclusive() -> None:
    histogram = Histogram((10, 20))
    for duration in (0, 10, 11, 20, 21, 1_000):
        histogram.observe(duration)
    assert (histogram.counts(), histogram.count, histogram.sum_ns) == ((2, 2, 2), 6, 1_062)


@pytest.mark.parametrize("bounds", [(), (2, 1), (1, 1), tuple(range(1, 26))])
def test_bounds_that_are_none_are_refused(bounds: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="bounds"):
        Histogram(bounds)


def test_requests_are_counted_by_name_and_their_parts_where_they_came_to_them() -> None:
    meters = RequestMeters()
    meters.close("m", "n", "p", "ok", False, 0, 50, 40, 60, 5)
    meters.close("m", "n", "p", "ok", True, 2_000_000, 30, 20, 40, 5)
    meters.close("m", "none", "none", "queue_full", False, -1, -1, -1, 70, -1)
    assert meters.outcomes() == [(("m", "n", "p", "ok"), 2), (("m", "none", "none", "queue_full"), 1)]
    [(model, normal, long, first_bytes, totals)] = meters.models()
    assert model == "m"
    assert [each.count for each in (normal, long, first_bytes, totals)] == [1, 1, 2, 3]
    assert [each.sum_ns for each in (normal, long, first_bytes, totals)] == [0, 2_000_000, 80, 170]
    assert (meters.overhead.count, meters.overhead.sum_ns) == (2, 10)
    assert meters.providers() == [(("n", "p"), 2, 60)]
    assert [(each.count, each.sum_ns) for each in meters.sums()] == [(2, 2_000_000), (2, 80), (3, 170)]
    assert len(meters.sums()[0].counts()) == len(DURATION_BOUNDS_NS) + 1


def test_what_a_configuration_does_not_have_is_forgotten() -> None:
    meters = RequestMeters()
    meters.close("m", "n", "p", "ok", False, 0, 1, 1, 1, 1)
    meters.close("gone", "n", "p", "ok", False, 0, 1, 1, 1, 1)
    meters.close("m", "n", "gone", "ok", False, 0, 1, 1, 1, 1)
    meters.forget(lambda model: model == "m", lambda key: key == ("n", "p"))
    assert meters.outcomes() == [(("m", "n", "p", "ok"), 1)]
    assert [row[0] for row in meters.models()] == ["m"]
    assert [row[0] for row in meters.providers()] == [("n", "p")]


# Tables


def test_names_are_those_of_prometheus_and_say_what_they_are() -> None:
    names = [family.name for family in ALL]
    assert len(set(names)) == len(names)
    for family in ALL:
        assert re.fullmatch(r"iop_[a-z0-9_]+", family.name)
        assert family.name.endswith("_total") == (family.kind is Kind.COUNTER), family.name
        assert re.fullmatch(r"[A-Z0-9].*\.", family.help), family.name
        assert all(re.fullmatch(r"[a-z_]+", label) for label in family.labels)
        timed = family.kind in (Kind.HISTOGRAM, Kind.SUMMARY)
        assert not timed or family.name.endswith("_seconds"), family.name


def test_the_reference_is_fresh() -> None:
    assert gen_metrics_docs.main(["--check"]) == 0


PROMTOOL = shutil.which("promtool") or shutil.which("promtool", path=ROOT / ".venv" / "promtool")


@pytest.mark.skipif(PROMTOOL is None, reason="scripts/get-promtool.sh gets it")
def test_prometheus_finds_nothing_to_say() -> None:
    assert PROMTOOL is not None

    def every() -> Iterator[Rows]:
        values = {Kind.HISTOGRAM: Distribution((1,), (1, 1), 1), Kind.SUMMARY: Total(1, 1)}
        for family in ALL[len(metrics.COMMON) :]:
            yield family, [(("x",) * len(family.labels), values.get(family.kind, 1))]

    found = subprocess.run([PROMTOOL, "check", "metrics"], input=scrape(every).body, capture_output=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")
