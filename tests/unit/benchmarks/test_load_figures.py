"""The arithmetic of the load runs."""

from __future__ import annotations

import math
from random import Random

import pytest

from benchmarks.load.figures import (
    GapGauge,
    gauge_of,
    histogram_of,
    lateness_share,
    median,
    medians,
    order_kept,
    percentile,
    ratio,
    slope,
    spreads,
)

MS = 1_000_000


@pytest.mark.parametrize(
    ("values", "share", "expected"),
    [
        ([], 0.99, 0),
        ([7], 0.01, 7),
        ([7], 1.0, 7),
        ([1, 2, 3, 4], 0.5, 2),
        ([4, 3, 2, 1], 0.51, 3),
        ([1, 2, 3, 4], 1.0, 4),
        (list(range(1, 101)), 0.99, 99),
        (list(range(1, 101)), 0.991, 100),
        (list(range(1, 1001)), 0.999, 999),
    ],
)
def test_percentile_is_the_nearest_rank(values: list[int], share: float, expected: int) -> None:
    assert percentile(values, share) == expected


@pytest.mark.parametrize("share", [0, -0.1, 1.01])
def test_percentile_refuses_what_is_no_share(share: float) -> None:
    with pytest.raises(ValueError, match="a share above 0"):
        percentile([1], share)


def test_percentile_covers_at_least_its_share_and_no_smaller_value_does() -> None:
    random = Random(1)
    for _ in range(200):
        values = [random.randrange(50) for _ in range(random.randrange(1, 80))]
        share = random.choice([0.1, 0.5, 0.9, 0.99, 1.0])
        found = percentile(values, share)
        assert sum(value <= found for value in values) >= share * len(values) - 1e-9
        assert sum(value < found for value in values) < share * len(values)


def test_median_of_even_odd_and_no_values() -> None:
    assert median([3, 1, 2]) == 2
    assert median([4, 1, 2, 3]) == 2.5
    assert median([]) == 0


def test_medians_and_spreads_take_each_figure_from_the_slots_that_have_it() -> None:
    slots = [{"a": 1.0, "b": 5.0}, {"a": 3.0}, {"a": 2.0, "b": 7.0}]
    assert medians(slots) == {"a": 2.0, "b": 6.0}
    assert spreads(slots) == {"a": [1.0, 3.0], "b": [5.0, 7.0]}


def test_a_ratio_needs_both_figures() -> None:
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(None, 2.0) is None
    assert ratio(3.0, None) is None
    assert ratio(3.0, 0.0) is None


def test_slope_is_that_of_the_line_of_least_squares() -> None:
    assert slope([(x, 5 + 2.5 * x) for x in range(10)]) == pytest.approx(2.5)
    assert slope([(0, 0), (1, 1), (2, 0)]) == pytest.approx(0)
    assert slope([(1, 4), (1, 9)]) == 0
    assert slope([]) == 0


def test_order_is_kept_when_requests_are_served_as_they_were_sent() -> None:
    order = order_kept({number: number * MS for number in range(5)}, range(5), 0)
    assert (order.requests, order.overtaken, order.worst_ns) == (5, 0, 0)


def test_a_request_is_overtaken_when_a_much_later_one_was_served_before_it() -> None:
    sent = {0: 0, 1: 10 * MS, 2: 11 * MS, 3: 40 * MS}
    assert order_kept(sent, [0, 2, 1, 3], 5 * MS).overtaken == 0
    order = order_kept(sent, [0, 3, 1, 2], 5 * MS)
    assert (order.overtaken, order.worst_ns) == (2, 30 * MS)


def test_a_chunk_that_keeps_its_distance_adds_no_gap() -> None:
    gauge = GapGauge()
    assert gauge.on_chunk(100, 150) is None
    assert gauge.on_chunk(200, 250) == 0
    assert gauge.on_chunk(300, 420) == 70
    assert gauge.on_chunk(400, 430) == 0


def test_chunks_that_were_bundled_pay_with_the_wait_of_the_first() -> None:
    gauge = GapGauge()
    gauge.on_chunk(20 * MS, 20 * MS)
    assert [gauge.on_chunk(sent * MS, 220 * MS) for sent in (40, 60, 80)] == [180 * MS, 0, 0]


def test_a_stream_does_not_look_back_on_the_one_before_it() -> None:
    gauge = GapGauge()
    gauge.on_chunk(100, 100)
    gauge.begin()
    assert gauge.on_chunk(900, 5000) is None


HISTOGRAM = """\
# TYPE iop_loop_lag_seconds histogram
iop_loop_lag_seconds_bucket{le="0.001"} 8.0
iop_loop_lag_seconds_bucket{le="0.01"} 9.0
iop_loop_lag_seconds_bucket{le="+Inf"} 10.0
iop_loop_lag_seconds_count 10.0
iop_faults_total{kind="a"} 2.0
iop_faults_total{kind="b"} 3.0
iop_node_tasks 7.0
iop_node_tasks_other 9.0
"""


def test_metrics_are_read_from_prometheus_text() -> None:
    assert histogram_of(HISTOGRAM, "iop_loop_lag_seconds") == {0.001: 8, 0.01: 9, math.inf: 10}
    assert gauge_of(HISTOGRAM, "iop_faults_total") == 5
    assert gauge_of(HISTOGRAM, "iop_node_tasks") == 7
    assert gauge_of(HISTOGRAM, "iop_absent") == 0


@pytest.mark.parametrize(
    ("after", "share", "expected"),
    [
        ({0.001: 8.0, 0.01: 9.0, math.inf: 10.0}, 1.0, 0.0),
        ({0.001: 18.0, 0.01: 19.0, math.inf: 20.0}, 1.0, 0.001),
        ({0.001: 17.0, 0.01: 19.0, math.inf: 20.0}, 0.9, 0.001),
        ({0.001: 17.0, 0.01: 19.0, math.inf: 20.0}, 1.0, 0.01),
        ({0.001: 8.0, 0.01: 9.0, math.inf: 11.0}, 1.0, 0.01),
    ],
)
def test_only_what_was_counted_between_two_readings_counts(
    after: dict[float, float], share: float, expected: float
) -> None:
    assert lateness_share({0.001: 8.0, 0.01: 9.0, math.inf: 10.0}, after, share) == expected
