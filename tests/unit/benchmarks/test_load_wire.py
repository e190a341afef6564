"""What clients and upstream of the load runs make of bytes."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.load import upstreams
from benchmarks.load.asks import chat, order_of
from benchmarks.load.clients import STAMP, AnswerReader, Tally
from benchmarks.load.upstreams import (
    LAST_CHUNKS,
    LONG,
    SHORT,
    STREAM_HEAD,
    answer,
    body_length,
    event_chunk,
    is_streamed,
)

STREAM = STREAM_HEAD + event_chunk(7) + event_chunk(8) + LAST_CHUNKS
CHUNKED_OTHERWISE = b"HTTP/1.1 429 Too Many\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab\r\n0\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    ("content", "status"),
    [(SHORT, 200), (STREAM, 200), (CHUNKED_OTHERWISE, 429), (answer(b""), 200)],
    ids=["length", "stream", "chunked", "empty"],
)
def test_an_answer_ends_where_it_ends_however_it_is_cut(content: bytes, status: int) -> None:
    for step in (1, 2, 3, 7, 50, 1000):
        reader = AnswerReader()
        ends = [at for at in range(0, len(content), step) if reader.feed(content[at : at + step])]
        assert ends == [(len(content) - 1) // step * step]
        assert reader.status == status


def test_answers_follow_each_other_on_one_connection() -> None:
    reader = AnswerReader()
    for content in (SHORT, STREAM, LONG, CHUNKED_OTHERWISE, SHORT):
        assert reader.feed(content)
    assert reader.status == 200


def test_the_upstream_finds_what_a_request_asks_of_it() -> None:
    head, _, body = chat("m", wait=20, n=1234567, streamed=True).partition(b"\r\n\r\n")
    assert order_of(body) == {b"wait": 20, b"n": 1234567}
    assert body_length(head.lower()) == len(body)
    assert is_streamed(body)
    assert order_of(b'{"messages": []}') == {}
    assert not is_streamed(chat("m", size=2**20))
    assert body_length(b"post / http/1.1\r\ntransfer-encoding: chunked") is None
    assert body_length(b"get / http/1.1\r\nhost: a") == 0


def test_a_large_request_has_the_size_that_was_asked_for() -> None:
    content = chat("m", size=2**20, big=1)
    assert 2**20 < len(content) < 2**20 + 2048
    assert order_of(content) == {b"big": 1}


def test_an_event_carries_the_time_of_its_write_and_one_size() -> None:
    chunks = event_chunk(1), event_chunk(2**62)
    assert [STAMP.findall(one) for one in chunks] == [[b"%019d" % 1], [b"%d" % 2**62]]
    size, _, rest = chunks[0].partition(b"\r\n")
    assert len(chunks[0]) == len(chunks[1])
    assert int(size, 16) == len(rest) - 2
    assert int(LAST_CHUNKS[:1], 16) == len(b"data: [DONE]\n\n")


def test_a_tally_tells_answers_from_refusals() -> None:
    tally = Tally()
    for status, took in ((200, 5), (429, 1), (200, 7), (502, 2)):
        tally.on_answer(status, took)
    tally.lost = 1
    assert (tally.answers, tally.errors) == (2, 3)
    assert (list(tally.latencies), list(tally.refusals)) == ([5, 7], [1, 2])
    tally.reset()
    assert tally.statuses == Counter()
    assert not tally.latencies
    assert not tally.errors


def test_a_long_answer_is_of_64_kib() -> None:
    assert 64 * 1024 < len(upstreams.LONG) < 66 * 1024
