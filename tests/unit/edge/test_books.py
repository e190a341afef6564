"""What is written down of each request: counters, usage, the access line, the usage line."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import pytest

from iop_fast.edge.access_line import NAMES_MAX, AccessLines
from iop_fast.edge.auth import Principal
from iop_fast.edge.books import Books, access_fields
from iop_fast.edge.lines import LineWriter
from iop_fast.edge.usage import OTHER, ROWS_MAX, UsageBook, usage_state
from iop_fast.errors import Failure
from iop_fast.seams import End, Usage
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import JSON_HEAD, OK, SSE_HEAD, ExchangeWorld, provider_spec

USED = Usage(30, 5, 10)
TOKEN = "caller-token"
KNOWN = {
    "openai": {
        "principal_tokens": [
            {
                "token_ref": "prod",
                "token_hash_sha256": sha256(TOKEN.encode()).hexdigest(),
                "principal_ref": "team-a",
                "alias": "Team A",
            }
        ]
    }
}
BEARER = [(b"authorization", b"Bearer " + TOKEN.encode())]


class Lines:
    """A world whose books write into lists."""

    def __init__(self, world: ExchangeWorld) -> None:
        self.world = world
        self._blocks: dict[str, list[bytes]] = {"access": [], "usage": []}
        self._writers = {name: LineWriter(name, blocks.append) for name, blocks in self._blocks.items()}
        world.edge.books.write_access(self._writers["access"])
        world.edge.books.write_usage(self._writers["usage"])

    def close(self) -> None:
        for writer in self._writers.values():
            writer.close()

    def read(self, name: str) -> list[dict[str, Any]]:
        self.close()
        return [json.loads(line) for line in b"".join(self._blocks[name]).splitlines()]

    @property
    def access(self) -> dict[str, Any]:
        [line] = self.read("access")
        return line


@pytest.fixture
def world() -> Iterator[ExchangeWorld]:
    with ExchangeWorld(**KNOWN) as made:
        yield made


@pytest.fixture
def lines(world: ExchangeWorld) -> Iterator[Lines]:
    made = Lines(world)
    yield made
    made.close()


def usage_rows(world: ExchangeWorld) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = world.edge.books.usage.snapshot()["rows"]
    return rows


def test_a_whole_answer_is_booked_once_with_everything_known(world: ExchangeWorld, lines: Lines) -> None:
    call = world.post(headers=BEARER)
    world.loop.run_for(0.25)
    world.link.answer(1, JSON_HEAD, b'{"a"')
    world.loop.run_for(0.75)
    world.link.answer(1, None, b":1}", end=End(RunEnd.OK, "", USED))
    estimate = call.exchange.estimated_tokens
    [row] = usage_rows(world)
    assert row == {
        "principal": "Team A",
        "token_ref": "prod",
        "model": "m",
        "node_id": "n1",
        "provider_id": "p1",
        "requests": 1,
        "complete": 1,
        "partial": 0,
        "unknown": 0,
        "prompt_tokens": 30,
        "completion_tokens": 5,
        "cached_tokens": 10,
    }
    line = lines.access
    assert (line["level"], line["event"]) == ("info", "request")
    assert line["request"] == call.exchange.request.id.decode()
    assert (line["principal"], line["token"], line["model"]) == ("Team A", "prod", "m")
    assert (line["node"], line["provider"], line["path"]) == ("n1", "p1", "/v1/chat/completions")
    assert (line["status"], line["outcome"], line["end"], line["class"]) == (200, "ok", "--", "normal")
    assert (line["queue_ms"], line["ttfb_ms"], line["total_ms"]) == (0, 250, 1000)
    assert (line["prompt_tokens"], line["completion_tokens"], line["cached_tokens"]) == (30, 5, 10)
    assert (line["usage"], line["estimated_tokens"], line["bytes_out"]) == ("complete", estimate, 7)
    assert line["bytes_in"] == len('{"model": "m", "messages": [{"role": "user", "content": "hi"}]}')
    [used] = lines.read("usage")
    assert used.pop("time")
    assert used == {
        "request": line["request"],
        "principal": "Team A",
        "token_ref": "prod",
        "model": "m",
        "node_id": "n1",
        "provider_id": "p1",
        "path": "/v1/chat/completions",
        "outcome": "ok",
        "state": "complete",
        "prompt_tokens": 30,
        "completion_tokens": 5,
        "cached_tokens": 10,
        "estimated_tokens": estimate,
    }


def test_a_cut_stream_is_partial_with_what_was_reported(world: ExchangeWorld, lines: Lines) -> None:
    call = world.post()
    world.link.answer(1, SSE_HEAD, b"data: 1\n\n")
    call.leave()
    assert usage_rows(world) == []  # not before the Node has said what was used
    world.link.answer(1, end=End(RunEnd.CANCELLED, "", Usage(30, 2, 0)))
    [row] = usage_rows(world)
    assert (row["requests"], row["partial"], row["completion_tokens"]) == (1, 1, 2)
    assert (row["principal"], row["token_ref"]) == ("anonymous", "")
    assert lines.access["end"] == "CD"
    assert lines.read("usage")[0]["state"] == "partial"


def test_what_nobody_reported_is_unknown_and_never_zero(world: ExchangeWorld, lines: Lines) -> None:
    world.post()
    world.link.answer(1, JSON_HEAD, b"{}", end=OK)
    [row] = usage_rows(world)
    assert (row["unknown"], row["complete"]) == (1, 0)
    assert "prompt_tokens" not in lines.access
    [used] = lines.read("usage")
    assert (used["state"], used["prompt_tokens"], used["completion_tokens"]) == ("unknown", None, None)


def test_a_node_that_is_lost_leaves_a_partial_booking(world: ExchangeWorld, lines: Lines) -> None:
    world.post()
    world.link.lose()
    [row] = usage_rows(world)
    assert (row["partial"], row["prompt_tokens"]) == (1, 0)
    assert lines.access["end"] == "SH"


def test_counting_tokens_uses_none(world: ExchangeWorld, lines: Lines) -> None:
    world.post(path=b"/v1/messages/count_tokens")
    world.link.answer(1, JSON_HEAD, b'{"input_tokens":3}', end=OK)
    assert usage_rows(world) == []
    assert lines.read("usage") == []
    assert lines.access["path"] == "/v1/messages/count_tokens"


def test_a_request_that_moved_on_is_booked_where_it_was_served() -> None:
    with ExchangeWorld([provider_spec("n1", "p1"), provider_spec("n1", "p2")]) as world:
        world.post()
        world.link.answer(1, status=RunEnd.CONNECT_FAILED)
        world.loop.settle()
        world.link.answer(world.link.last, JSON_HEAD, b"{}", end=End(RunEnd.OK, "", USED))
        [row] = usage_rows(world)
        assert (row["provider_id"], row["requests"]) == ("p2", 1)


def test_a_provider_that_never_saw_it_is_booked_nothing(world: ExchangeWorld, lines: Lines) -> None:
    world.post()
    world.link.answer(1, status=RunEnd.CONNECT_FAILED)
    assert usage_rows(world) == []
    assert (lines.access["outcome"], lines.access["end"]) == ("upstream_error", "SQ")


def bad_body(world: ExchangeWorld) -> None:
    world.post(b'{"model": 1')


def late_upstream(world: ExchangeWorld) -> None:
    world.post()
    world.link.answer(1, status=RunEnd.UPSTREAM_TIMEOUT)


def broken_stream(world: ExchangeWorld) -> None:
    world.post()
    world.link.answer(1, SSE_HEAD, b"data: 1\n\n")
    world.link.answer(1, status=RunEnd.UPSTREAM_ERROR)


def left_in_body(world: ExchangeWorld) -> None:
    world.open(length=10).leave()


def slow_body(world: ExchangeWorld) -> None:
    world.open(length=10).receiver.on_refused(Failure.REQUEST_TIMEOUT, "too slow")


def no_such_model(world: ExchangeWorld) -> None:
    world.post(model="nope")


ENDS: dict[str, tuple[Callable[[ExchangeWorld], None], str, int]] = {
    "PR": (bad_body, "invalid_request", 400),
    "PR ": (no_such_model, "model_not_found", 404),
    "sH": (late_upstream, "upstream_timeout", 504),
    "SD": (broken_stream, "upstream_error", 200),
    "CR": (left_in_body, "client_gone", 0),
    "cR": (slow_body, "request_timeout", 408),
}


@pytest.mark.parametrize("end", ENDS)
def test_two_letters_say_who_ended_a_request_and_where(end: str, world: ExchangeWorld, lines: Lines) -> None:
    provoke, outcome, status = ENDS[end]
    provoke(world)
    line = lines.access
    assert (line["end"], line["outcome"], line["status"]) == (end.strip(), outcome, status)


def test_who_waits_ends_in_the_queue(world: ExchangeWorld, lines: Lines) -> None:
    world.post()
    waiting = world.post()
    waiting.leave()
    timed = world.post()
    world.loop.run_for(31)
    assert timed.downstream.status == 504
    assert [(line["end"], line["outcome"]) for line in lines.read("access")] == [
        ("CQ", "client_gone"),
        ("RQ", "queue_timeout"),
    ]


def test_what_is_answered_from_a_head_alone_has_a_line_too(world: ExchangeWorld, lines: Lines) -> None:
    world.get(b"/v1/models")
    world.get(b"/etc/passwd")
    world.service.render(Failure.HEAD_TOO_LARGE, "too large")
    found = [(line["status"], line["outcome"], line["end"], line.get("path")) for line in lines.read("access")]
    assert found == [
        (200, "ok", "--", "/v1/models"),
        (404, "not_found", "PR", None),
        (431, "head_too_large", "PR", None),
    ]


def test_estimates_are_held_against_what_was_counted() -> None:
    book = UsageBook()
    person, place = Principal("a", "t"), ("n", "p")
    book.book(person, "m", place, "complete", Usage(100, 1, 0), 110)
    book.book(person, "m", ("n", "q"), "complete", Usage(100, 1, 0), 130)
    book.book(person, "m", place, "unknown", None, 999)
    book.book(person, "silent", place, "unknown", None, 5)
    assert book.calibration()["m"] == (240, 200, 1.2)
    assert book.calibration()["silent"] == (0, 0, None)


def test_the_book_is_bounded() -> None:
    book = UsageBook()
    for number in range(ROWS_MAX + 5):
        book.book(Principal("a", "t"), f"m{number}", ("n", "p"), "complete", Usage(1, 1, 0), 1)
    assert len(book.rows) == ROWS_MAX + 1
    assert book.rows[OTHER].complete == 5


def test_states_are_three() -> None:
    assert usage_state(True, USED) == "complete"
    assert usage_state(True, None) == "unknown"
    assert usage_state(False, None) == usage_state(False, USED) == "partial"


def test_books_without_writers_count_all_the_same() -> None:
    books = Books()
    books.count("ok")
    books.note(b"1", "ok", 200)
    assert books.counters["ok"] == 1


@pytest.mark.parametrize("end", [OK, End(RunEnd.OK, "", USED), End(RunEnd.OK, "", Usage(1 << 63, 0, 1))])
def test_a_line_written_straight_to_bytes_is_the_one_that_orjson_makes(
    world: ExchangeWorld, lines: Lines, end: End
) -> None:
    call = world.post(headers=BEARER)
    world.loop.run_for(1.5)
    world.link.answer(1, JSON_HEAD, b"{}", end=end)
    [line] = lines.read("access")
    del line["time"]
    record = call.exchange
    now_ns = record.began_ns + line["total_ms"] * 1_000_000
    fields = access_fields(record, line.get("usage", ""), now_ns)
    assert line == {"level": "info", "logger": "iop_fast.edge.books", "event": "request", **fields}
    assert list(line)[3:] == list(fields)


def test_names_are_escaped_as_json_wants_it_and_kept_within_bounds(world: ExchangeWorld) -> None:
    call = world.post(headers=BEARER)
    world.link.answer(1, JSON_HEAD, b"{}", end=OK)
    record = call.exchange
    writer = AccessLines("here")
    for number in range(NAMES_MAX + 2):
        record.model = f'{number} "quoted" \\ \n \u1100'
        line = json.loads(writer.render(record, "--", "", record.began_ns))
        assert line["model"] == record.model
    record.outcome = Failure.QUEUE_FULL.reason
    assert json.loads(writer.render(record, "RQ", "unknown", record.began_ns))["usage"] == "unknown"
