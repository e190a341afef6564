"""What the Edge writes itself: error answers in each dialect, and the end of a broken stream."""

from __future__ import annotations

import json

import pytest

from iop_fast.edge import answers
from iop_fast.edge.outcomes import Verdict
from iop_fast.edge.reply import Reply
from iop_fast.edge.routes import Dialect
from iop_fast.errors import Failure
from iop_fast.seams import Head
from tests.unit.edge.exchange_world import SSE_HEAD, FakeDownstream

BROKEN = Verdict(Failure.UPSTREAM_ERROR, "the provider broke off")


@pytest.mark.parametrize("failure", list(Failure))
def test_every_failure_has_a_whole_answer(failure: Failure) -> None:
    head, body = answers.error_answer(failure, "what is wrong", b"id1", param="model")
    fields = dict(head.headers)
    assert head.status == failure.value.status
    assert head.reason
    assert fields[b"content-length"] == b"%d" % len(body)
    assert fields[b"content-type"] == b"application/json"
    assert fields[b"x-request-id"] == b"id1"
    assert fields[b"x-iop-reason"] == failure.name.lower().encode()
    assert fields.get(b"connection") == (b"close" if failure.value.closes else None)
    assert len(fields) == len(head.headers)
    error = json.loads(body)["error"]
    assert error == {
        "message": "what is wrong",
        "type": failure.value.type,
        "param": "model",
        "code": failure.value.code,
    }


def test_a_failure_says_whether_to_try_again_where_that_is_known() -> None:
    head, _ = answers.error_answer(Failure.QUEUE_TIMEOUT, "", b"id")
    assert (b"x-should-retry", b"false") in head.headers
    head, _ = answers.error_answer(Failure.QUEUE_FULL, "", b"id", extra=[(b"retry-after", b"3")])
    assert not [name for name, _ in head.headers if name == b"x-should-retry"]
    assert (b"retry-after", b"3") in head.headers


@pytest.mark.parametrize("failure", list(Failure))
def test_anthropic_s_clients_get_anthropic_s_object(failure: Failure) -> None:
    _, body = answers.error_answer(failure, "what", b"id", dialect=Dialect.ANTHROPIC)
    parsed = json.loads(body)
    assert parsed["type"] == "error"
    assert parsed["error"]["message"] == "what"
    assert parsed["error"]["type"].endswith("_error") or parsed["error"]["type"] == "request_too_large"


def test_a_provider_s_fields_are_passed_on_but_for_the_connection_s_and_ours() -> None:
    head = Head(
        429,
        b"Slow Down",
        [
            (b"Retry-After", b"7"),
            (b"Content-Encoding", b"gzip"),
            (b"Content-Length", b"3"),
            (b"Set-Cookie", b"a=1"),
            (b"Set-Cookie", b"b=2"),
            (b"Connection", b"close, X-Secret"),
            (b"X-Secret", b"1"),
            (b"Transfer-Encoding", b"chunked"),
            (b"Keep-Alive", b"timeout=5"),
            (b"X-Request-ID", b"theirs"),
            (b"X-IOP-Provider", b"forged"),
        ],
    )
    passed, takes_event = answers.passed_on(head, [(b"x-request-id", b"ours")])
    assert not takes_event
    assert (passed.status, passed.reason) == (429, b"Slow Down")
    assert passed.headers == [
        (b"Retry-After", b"7"),
        (b"Content-Encoding", b"gzip"),
        (b"Content-Length", b"3"),
        (b"Set-Cookie", b"a=1"),
        (b"Set-Cookie", b"b=2"),
        (b"x-request-id", b"ours"),
    ]


@pytest.mark.parametrize(
    ("headers", "takes"),
    [
        ([(b"content-type", b"text/event-stream")], True),
        ([(b"Content-Type", b"Text/Event-Stream; charset=utf-8")], True),
        ([(b"content-type", b"text/event-stream"), (b"content-encoding", b"identity")], True),
        ([(b"content-type", b"text/event-stream"), (b"Content-Encoding", b"gzip")], False),
        ([(b"content-type", b"text/event-stream"), (b"content-length", b"100")], False),
        ([(b"content-type", b"application/json")], False),
        ([(b"content-type", b"text/event-streams")], False),
        ([], False),
    ],
)
def test_only_a_plain_event_stream_takes_an_error_event(headers: list[tuple[bytes, bytes]], takes: bool) -> None:
    passed, takes_event = answers.passed_on(Head(200, b"OK", headers), [])
    assert [field for field in passed.headers if field != answers.UNBUFFERED] == headers
    assert takes_event is takes


def test_event_streams_ask_proxies_not_to_collect_them() -> None:
    def fields(*headers: tuple[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        return answers.passed_on(Head(200, b"OK", list(headers)), [])[0].headers

    stream = (b"Content-Type", b"text/event-stream")
    assert fields(stream) == [stream, (b"x-accel-buffering", b"no")]
    assert fields(stream, (b"Content-Encoding", b"gzip"))[-1] == (b"x-accel-buffering", b"no")
    assert fields((b"X-Accel-Buffering", b"yes"), stream) == [(b"X-Accel-Buffering", b"yes"), stream]
    assert fields((b"Content-Type", b"application/json")) == [(b"Content-Type", b"application/json")]


def test_which_pages_may_read_an_answer_is_not_the_provider_s_to_say() -> None:
    head = Head(200, b"OK", [(b"Access-Control-Allow-Origin", b"*"), (b"X-A", b"1")])
    assert answers.passed_on(head, [])[0].headers == [(b"X-A", b"1")]


@pytest.mark.parametrize(
    ("sent", "blank"),
    [
        (b"", b""),
        (b"data: 1\n\n", b""),
        (b"data: 1\r\n\r\n", b""),
        (b"data: 1\r\r", b""),
        (b"data: 1\n\r\n", b""),
        (b"data: 1\r\n\n", b""),
        (b"\n", b""),
        (b"\r\n", b""),
        (b"data: 1\n", b"\n"),
        (b"data: 1\r\n", b"\n"),
        (b"data: 1\r", b"\n"),
        (b"data: 1", b"\n\n"),
        (b"d", b"\n\n"),
        (b": ping\n\ndata", b"\n\n"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 2, 3, 100])
def test_an_event_in_the_middle_is_ended_first(sent: bytes, blank: bytes, piece_bytes: int) -> None:
    """B20: also where the stream was cut, the line end before the error event depends on the bytes, not the pieces."""
    downstream = FakeDownstream()
    reply = Reply(downstream)
    reply.begin(SSE_HEAD, True, [], False)
    for start in range(0, len(sent), piece_bytes):
        reply.go_on([sent[start : start + piece_bytes]], False)
    reply.break_off(BROKEN, Dialect.OPENAI)
    assert downstream.body.startswith(sent + blank + b'data: {"error":')
    assert downstream.body.endswith(b"}\n\n")
    assert downstream.is_aborted
    assert not downstream.is_ended


def test_each_dialect_has_its_own_error_event() -> None:
    openai = answers.error_event(*BROKEN, Dialect.OPENAI)
    assert openai.startswith(b'data: {"error":')
    assert json.loads(openai[6:])["error"]["code"] == "upstream_error"
    anthropic = answers.error_event(*BROKEN, Dialect.ANTHROPIC)
    assert anthropic.startswith(b"event: error\ndata: ")
    assert json.loads(anthropic.partition(b"data: ")[2])["error"] == {
        "type": "api_error",
        "message": "the provider broke off",
    }
    responses = answers.error_event(*BROKEN, Dialect.RESPONSES)
    event = json.loads(responses.partition(b"data: ")[2])
    assert (event["type"], event["code"], event["error"]["code"]) == ("error", "upstream_error", "upstream_error")
    for written in (openai, anthropic, responses):
        assert written.endswith(b"\n\n")
        assert written.count(b"\n\n") == 1


def test_another_answer_is_cut_and_nothing_is_added() -> None:
    downstream = FakeDownstream()
    reply = Reply(downstream)
    reply.begin(Head(200, b"OK", [(b"content-type", b"application/json")]), False, [b'{"a"'], False)
    reply.break_off(BROKEN, Dialect.OPENAI)
    assert downstream.body == b'{"a"'
    assert downstream.is_aborted


def test_a_head_that_cannot_be_written_leaves_the_answer_open() -> None:
    downstream = FakeDownstream()
    downstream.refuses_heads = True
    reply = Reply(downstream)
    with pytest.raises(ValueError):
        reply.begin(SSE_HEAD, True, [b"x"], True)
    assert reply.is_wanted
    assert (reply.status, reply.bytes_out, reply.owed) == (0, 0, 0)
    reply.refuse(BROKEN, b"id", Dialect.OPENAI)
    assert downstream.status == 502


def test_nothing_is_sent_to_a_client_that_was_given_up() -> None:
    downstream = FakeDownstream()
    reply = Reply(downstream)
    assert reply.give_up()
    assert not reply.give_up()
    reply.begin(SSE_HEAD, True, [b"x"], True)
    reply.go_on([b"x"], True)
    reply.refuse(BROKEN, b"id", Dialect.OPENAI)
    reply.break_off(BROKEN, Dialect.OPENAI)
    assert downstream.sends == []
    assert not reply.is_wanted
    assert not reply.is_writable
