"""The front gives the same result however the bytes of its clients are cut."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.edge.front.harness import Bench, Client, Recorder

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")

names = st.sampled_from(
    [b"Accept", b"X-A", b"content-type", b"Authorization", b"TE", b"X_B", b"Upgrade", b"Keep-Alive"]
)
values = st.sampled_from([b"", b"v", b"a, b", b"\xff", b"h2c", b"x" * 60, b" padded\t"])
fields = st.lists(st.tuples(names, values), max_size=4).map(
    lambda pairs: [name + b":" + value for name, value in pairs]
)
targets = st.sampled_from([b"/", b"/v1/chat/completions", b"/a?b=c", b"http://a/x", b"/%2F//"])
payloads = st.binary(max_size=60) | st.sampled_from([b"\r\n\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"])
options = st.sampled_from([[], [], [], [b"Connection: keep-alive"], [b"Connection: X-A, te"], [b"Connection: close"]])


def head(method: bytes, target: bytes, lines: list[bytes]) -> bytes:
    return b"\r\n".join([method + b" " + target + b" HTTP/1.1", b"Host: a", *lines, b"", b""])


def chunked(payload: bytes, size: int, extension: bytes, trailer: bytes) -> bytes:
    pieces = [payload[at : at + size] for at in range(0, len(payload), size)]
    return (
        b"".join(b"%x%s\r\n%s\r\n" % (len(piece), extension, piece) for piece in pieces) + b"0\r\n" + trailer + b"\r\n"
    )


without_body = st.builds(
    lambda method, target, lines, option: head(method, target, lines + option),
    st.sampled_from([b"GET", b"HEAD", b"DELETE"]),
    targets,
    fields,
    options,
)
with_length = st.builds(
    lambda target, lines, option, body: (
        head(b"POST", target, [*lines, *option, b"Content-Length: %d" % len(body)]) + body
    ),
    targets,
    fields,
    options,
    payloads,
)
with_chunks = st.builds(
    lambda target, lines, option, body: head(b"POST", target, [*lines, *option, b"Transfer-Encoding: chunked"]) + body,
    targets,
    fields,
    options,
    st.builds(
        chunked, payloads, st.integers(1, 20), st.sampled_from([b"", b";a=b"]), st.sampled_from([b"", b"X: y\r\n"])
    ),
)
requests = st.lists(without_body | with_length | with_chunks, min_size=1, max_size=5).map(b"\r\n".join)
cuts = st.lists(st.integers(0, 1 << 16), max_size=12)


def answer_whole(request: Recorder) -> None:
    request.answer(bytes(request.body))


def answer_fixed(request: Recorder) -> None:
    request.answer(b"fixed")  # An echo could look like another answer's head.


def answer_streamed(request: Recorder) -> None:
    request.send(headers=[(b"content-type", b"text/event-stream")], pieces=[b"data: 1\n\n"])
    request.downstream.send(None, [b"data: 2\n\n", b"data: 3\n\n"], False)
    request.downstream.send(None, (), True)


Answer = Callable[[Recorder], None]
answers = st.sampled_from([answer_whole, answer_streamed])


def deliver(raw: bytes, cuts: list[int], hook: str, answer: Answer) -> tuple[Bench, Client]:
    bench = Bench()
    setattr(bench.service, hook, answer)
    client = bench.connect()
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(edges):
        client.send(raw[start:end])
    return bench, client


def outcome(bench: Bench, client: Client) -> object:
    bodies = [(request.head, bytes(request.body), request.is_complete) for request in bench.service.requests]
    return client.output, bodies, client.is_ended, bench.front.counters.internal_errors


@given(requests, cuts, answers)
def test_any_cut_of_valid_requests_gives_the_same_answers(raw: bytes, cuts: list[int], answer: Answer) -> None:
    bench, client = deliver(raw, [], "on_complete", answer)
    assert STATUS.findall(client.output) == [b"200"] * len(bench.service.requests)
    assert bench.service.requests
    assert outcome(*deliver(raw, cuts, "on_complete", answer)) == outcome(bench, client)
    everything = list(range(len(raw)))
    assert outcome(*deliver(raw, everything, "on_complete", answer)) == outcome(bench, client)


@given(requests, cuts)
def test_any_cut_gives_the_same_early_answers(raw: bytes, cuts: list[int]) -> None:
    assert outcome(*deliver(raw, cuts, "on_open", answer_whole)) == outcome(*deliver(raw, [], "on_open", answer_whole))


patches = st.sampled_from(
    [b"", b"\r", b"\n", b"\r\n", b" ", b":", b"\0", b"0", b"GET ", b"Host: b\r\n", b"Content-Length: 3\r\n"]
)
mutations = st.lists(st.tuples(st.integers(0, 1 << 16), patches), min_size=1, max_size=4)


@settings(max_examples=400)
@given(requests, mutations, cuts)
def test_damaged_requests_end_in_at_most_one_refusal_and_nothing_after_it(
    raw: bytes, mutations: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    for at, patch in mutations:
        at %= len(raw) + 1
        raw = raw[:at] + patch + raw[at + 1 :]
    for edges in ([], cuts, list(range(len(raw)))):
        bench, client = deliver(raw, edges, "on_complete", answer_fixed)
        statuses = STATUS.findall(client.output)
        assert bench.front.counters.internal_errors == 0
        assert all(status == b"200" for status in statuses[:-1])
        if statuses and statuses[-1] != b"200":
            assert client.is_ended
        served = sum(request.is_complete for request in bench.service.requests)
        assert served == statuses.count(b"200")


@given(st.binary(max_size=300), cuts)
def test_arbitrary_bytes_never_reach_a_service_unless_they_are_a_request(raw: bytes, cuts: list[int]) -> None:
    for edges in ([], cuts):
        bench, client = deliver(raw, edges, "on_complete", answer_fixed)
        assert bench.front.counters.internal_errors == 0
        assert bench.service.requests == []
        assert len(STATUS.findall(client.output)) <= 1
