"""traceparent read and written as W3C says, and who decides whether a trace is recorded."""

from __future__ import annotations

from random import Random

import pytest

from iop_fast.tracing.context import Place, Sampler, find_place, read_place, renamed

TRACE, SPAN = 0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331
GOOD = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def test_a_place_reads_back() -> None:
    assert read_place(GOOD) == Place(TRACE, SPAN, True)
    assert Place(TRACE, SPAN, True).render() == GOOD
    assert Place(1, 2, False).render() == b"00-00000000000000000000000000000001-0000000000000002-00"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (GOOD[:-2] + b"00", False),
        (GOOD[:-2] + b"03", True),  # a flag of a later level beside it
        (GOOD[:-2] + b"02", False),
        (b"cc" + GOOD[2:], True),
        (b"cc" + GOOD[2:] + b"-what-comes-later", True),
    ],
)
def test_what_is_read_of_flags_and_later_versions(value: bytes, expected: bool) -> None:
    assert read_place(value) == Place(TRACE, SPAN, expected)


@pytest.mark.parametrize(
    "value",
    [
        b"",
        GOOD[:-1],
        GOOD + b"0",
        GOOD + b"-",
        GOOD + b"-later",
        b"ff" + GOOD[2:],
        GOOD.upper(),
        GOOD.replace(b"-", b"_"),
        b"00-" + b"0" * 32 + GOOD[35:],
        GOOD[:36] + b"0" * 16 + b"-01",
        b"cc" + GOOD[2:] + b"x",
        b" " + GOOD,
        GOOD[:-2] + b"0g",
    ],
)
def test_what_is_malformed_is_no_place(value: bytes) -> None:
    assert read_place(value) is None


def test_a_field_counts_where_it_stands_once() -> None:
    assert find_place([(b"a", b"b"), (b"traceparent", b" " + GOOD + b"\t")]) == Place(TRACE, SPAN, True)
    assert find_place([(b"a", b"b")]) is None
    assert find_place([(b"traceparent", GOOD), (b"traceparent", GOOD)]) is None


def test_the_state_of_a_trace_goes_on_with_it_alone() -> None:
    parent, place = Place(TRACE, SPAN, True), Place(TRACE, 5, True)
    fields = [(b"tracestate", b"a=1"), (b"traceparent", GOOD), (b"x", b"y"), (b"tracestate", b"b=2")]
    assert renamed(fields, parent, place) == [
        (b"tracestate", b"a=1"),
        (b"x", b"y"),
        (b"tracestate", b"b=2"),
        (b"traceparent", place.render()),
    ]
    assert renamed(fields, None, place) == [(b"x", b"y"), (b"traceparent", place.render())]


def test_a_caller_has_decided() -> None:
    for ratio in (0.0, 1.0):
        sampler = Sampler(ratio, Random(1))
        for is_sampled in (False, True):
            place = sampler.begin(Place(TRACE, SPAN, is_sampled))
            assert (place.trace_id, place.is_sampled) == (TRACE, is_sampled)
            assert place.span_id not in (0, SPAN)


@pytest.mark.parametrize("ratio", [0.0, 0.25, 1.0])
def test_a_share_of_the_traces_that_begin_here_is_recorded(ratio: float) -> None:
    seed = 11
    sampler = Sampler(ratio, Random(seed))
    places = [sampler.begin(None) for _ in range(2000)]
    share = sum(place.is_sampled for place in places) / len(places)
    assert abs(share - ratio) < 0.04 * (0 < ratio < 1) + 1e-9, f"seed {seed}: {share}"
    assert len({place.trace_id for place in places}) == len({place.span_id for place in places}) == len(places)


def test_the_share_is_the_one_that_the_sdk_would_record() -> None:
    from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

    ours, theirs = Sampler(0.3, Random(3)), TraceIdRatioBased(0.3)
    for _ in range(500):
        place = ours.begin(None)
        decision = theirs.should_sample(None, place.trace_id, "").decision
        assert place.is_sampled == (decision is Decision.RECORD_AND_SAMPLE)


def test_no_id_is_zero() -> None:
    class Zeros(Random):
        def getrandbits(self, k: int) -> int:
            return 0

    place = Sampler(1.0, Zeros()).begin(None)
    assert read_place(place.render()) == place
