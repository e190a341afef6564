"""A normalized run through the real exchange: what its client, its session and the books see."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from iop_fast._hot.frames import EVENT_BYTES, FrameError
from iop_fast.edge.exchange_states import State
from iop_fast.edge.normalized import run
from iop_fast.seams import End, RunEmbedding, RunFinish, RunOpening, RunReasoning, RunText, Usage
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import JSON_HEAD, OK, Call, ExchangeWorld, provider_spec

USAGE = Usage(5, 2, 0)
WHOLE = End(RunEnd.OK, "", USAGE)
WINDOW = 256 * 1024


def ollama(provider_id: str = "p1", node_id: str = "n1", **changes: Any) -> Any:
    return provider_spec(node_id, provider_id, type="ollama", adapter_type="ollama", **changes)


def a_world(**config: Any) -> ExchangeWorld:
    return ExchangeWorld([ollama()], **config)


def body(stream: bool = False, content: Any = "hi", **more: Any) -> dict[str, Any]:
    return {"model": "m", "stream": stream, "messages": [{"role": "user", "content": content}], **more}


def refused(status: int, detail: str = "the model is asleep") -> End:
    return End(RunEnd.REFUSED, detail, None, status)


def test_a_whole_answer() -> None:
    with a_world() as world:
        call = world.post(body())
        opening = world.link.openings[1]
        assert isinstance(opening, RunOpening)
        assert pb.RunInput.FromString(opening.body).messages[0].parts[0].text == "hi"
        world.link.say(1, taken=True)
        world.link.say(1, RunText("Hel", 0))
        assert not call.downstream.heads
        world.link.say(1, RunText("lo", 0), RunFinish("stop", 0), end=WHOLE)
        assert call.downstream.status == 200
        assert call.downstream.field(b"content-type") == b"application/json"
        assert call.downstream.field(b"content-length") == b"%d" % len(call.downstream.body)
        assert call.downstream.field(b"x-iop-provider") == b"p1"
        assert call.downstream.field(b"x-iop-queue-ms") == b"0"
        found = json.loads(call.downstream.body)
        assert found["choices"][0]["message"]["content"] == "Hello"
        assert found["id"] == f"chatcmpl-{call.exchange.request.id.decode()}"
        assert found["model"] == "m"
        assert call.exchange.usage == USAGE
        assert call.exchange.outcome == "ok"
        world.assert_idle()


def test_a_stream_begins_with_its_first_event() -> None:
    with a_world() as world:
        call = world.post(body(stream=True))
        world.link.say(1, taken=True)
        assert not call.downstream.heads
        world.link.say(1, RunText("a", 0))
        assert call.downstream.status == 200
        assert call.downstream.field(b"content-type") == b"text/event-stream; charset=utf-8"
        assert call.downstream.field(b"cache-control") == b"no-cache"
        assert call.downstream.field(b"x-accel-buffering") == b"no"
        assert b'"content":"a"' in call.downstream.body
        assert call.exchange.state is State.STREAMING
        world.link.say(1, RunFinish("stop", 0))
        world.link.say(1, end=WHOLE)
        assert call.downstream.is_ended
        assert call.downstream.body.endswith(b"data: [DONE]\n\n")
        assert len(call.downstream.heads) == 1
        world.assert_idle()


def test_a_stream_of_one_message_and_one_of_none() -> None:
    with a_world() as world:
        calls = []
        for run_id, said in ((1, [RunText("a", 0), RunFinish("stop", 0)]), (2, [])):
            calls.append(world.post(body(stream=True)))
            world.link.say(run_id, *said, end=WHOLE)
        for call in calls:
            assert call.downstream.field(b"content-type") == b"text/event-stream; charset=utf-8"
            assert call.downstream.body.endswith(b"data: [DONE]\n\n")
            assert call.downstream.is_ended
        world.assert_idle()


def test_embeddings() -> None:
    with a_world() as world:
        call = world.post({"model": "m", "input": ["a", "b"], "encoding_format": "base64"}, path=b"/v1/embeddings")
        world.link.say(1, RunEmbedding(b"\0\0\x80?", 1))
        world.link.say(1, RunEmbedding(b"\0\0\0\0", 0), end=WHOLE)
        found = json.loads(call.downstream.body)
        assert [base64.b64decode(row["embedding"]) for row in found["data"]] == [b"\0\0\0\0", b"\0\0\x80?"]
        assert found["usage"] == {"prompt_tokens": 5, "total_tokens": 5}
        call = world.post({"model": "m", "input": ["a", "b"]}, path=b"/v1/embeddings")
        world.link.say(2, RunEmbedding(b"\0\0\0\0", 0), end=WHOLE)
        assert call.downstream.error["code"] == "upstream_error"
        world.assert_idle()


# ---------------------------------------------------------------------------------------------------------------------
# Refusals


def test_a_malformed_request_costs_the_provider_nothing() -> None:
    with a_world() as world:
        waiting = [world.post(body()) for _ in range(2)]
        bad = world.post(body(content=[{"type": "image_url", "image_url": {"url": "ftp://a/b.png"}}]))
        good = world.post(body())
        world.link.say(1, RunText("a", 0), end=WHOLE)
        world.link.say(2, RunText("a", 0), end=WHOLE)
        assert all(call.downstream.status == 200 for call in waiting)
        assert bad.downstream.status == 400
        assert bad.downstream.error["code"] == "invalid_request"
        assert bad.downstream.error["param"] == "messages[0].content[0].image_url.url"
        assert bad.downstream.field(b"x-iop-reason") == b"invalid_request"
        assert [opening.provider_id for opening in world.link.openings.values()] == ["p1"] * 3
        world.link.say(world.link.last, RunText("a", 0), end=WHOLE)
        assert good.downstream.status == 200
        world.assert_idle()


def test_an_image_that_breaks_on_its_way() -> None:
    text = base64.b64encode(bytes(300_000)).decode()
    url = "data:image/png;base64," + text[:-5] + "?" + text[-4:]
    with a_world() as world:
        call = world.post(body(content=[{"type": "image_url", "image_url": {"url": url}}]))
        assert call.exchange.state is State.DISPATCHED
        world.link.runs[1].on_window(WINDOW)
        assert call.downstream.error["param"] == "messages[0].content[0].image_url.url"
        assert world.link.cancelled == [1]
        assert world.in_flight == 1
        world.link.say(1, end=End(RunEnd.CANCELLED, "", None))
        world.assert_idle()


@pytest.mark.parametrize(
    ("status", "kind", "code"),
    [
        (400, "invalid_request_error", None),
        (401, "authentication_error", "invalid_api_key"),
        (403, "permission_error", None),
        (404, "invalid_request_error", "model_not_found"),
        (429, "rate_limit_error", "rate_limit_exceeded"),
        (500, "server_error", None),
        (599, "server_error", None),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
def test_a_providers_refusal_is_its_own_answer(status: int, kind: str, code: str | None, stream: bool) -> None:
    with a_world() as world:
        call = world.post(body(stream=stream))
        world.link.say(1, taken=True)
        world.link.say(1, end=refused(status))
        assert call.downstream.status == status
        assert call.downstream.error == {
            "message": "the model is asleep",
            "type": kind,
            "param": None,
            "code": code,
        }
        assert call.downstream.field(b"content-type") == b"application/json"
        assert call.downstream.field(b"x-iop-provider") == b"p1"
        assert call.downstream.field(b"x-iop-reason") is None
        assert call.exchange.outcome == "ok"
        world.assert_idle()


def test_a_refusal_with_no_status_and_one_in_the_middle_are_failures() -> None:
    with a_world() as world:
        call = world.post(body())
        world.link.say(1, end=refused(200))
        assert call.downstream.error["code"] == "upstream_error"
        call = world.post(body(stream=True))
        world.link.say(2, RunText("a", 0))
        world.link.say(2, end=refused(400))
        assert call.downstream.is_aborted
        assert b"[DONE]" not in call.downstream.body
        assert json.loads(call.downstream.body.split(b"\n\n")[-2][6:])["error"]["code"] == "upstream_error"
        world.assert_idle()


def test_a_refusal_behind_events_of_a_whole_answer_is_still_an_answer() -> None:
    with a_world() as world:
        call = world.post(body())
        world.link.say(1, RunText("a", 0))
        world.link.say(1, end=refused(429, ""))
        assert call.downstream.status == 429
        assert call.downstream.error["message"] == "the provider refused the request"
        world.assert_idle()


# ---------------------------------------------------------------------------------------------------------------------
# Failures


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    ("status", "code"),
    [(RunEnd.UPSTREAM_ERROR, "upstream_error"), (RunEnd.UPSTREAM_TIMEOUT, "upstream_timeout")],
)
def test_a_run_that_fails_before_its_answer(status: int, code: str, stream: bool) -> None:
    with a_world() as world:
        call = world.post(body(stream=stream))
        said = [] if stream else [RunText("a", 0)]
        world.link.say(1, *said, end=End(status, "why", None))
        assert call.downstream.error["code"] == code
        assert call.downstream.field(b"x-iop-reason") == code.encode()
        world.assert_idle()


def test_a_stream_that_fails_in_the_message_of_its_first_event_is_an_error_and_no_stream() -> None:
    with a_world() as world:
        call = world.post(body(stream=True))
        world.link.say(1, RunText("a", 0), end=End(RunEnd.UPSTREAM_ERROR, "", None))
        assert call.downstream.status == 502
        world.assert_idle()


def test_a_stream_that_breaks_off_says_what_came_and_why() -> None:
    with a_world() as world:
        call = world.post(body(stream=True))
        world.link.say(1, RunText("a", 0))
        world.link.say(1, RunText("b", 0), end=End(RunEnd.UPSTREAM_TIMEOUT, "", Usage(1, 2, 0)))
        assert call.downstream.is_aborted
        assert b'"content":"b"' in call.downstream.body
        assert call.downstream.body.endswith(b"}\n\n")
        assert b"[DONE]" not in call.downstream.body
        assert call.exchange.usage == Usage(1, 2, 0)
        world.assert_idle()


def test_events_that_make_no_answer_end_the_run() -> None:
    with a_world() as world:
        world.post(body(stream=True))
        with pytest.raises(FrameError, match="choice 3"):
            world.link.say(1, RunText("a", 3))
        with pytest.raises(FrameError, match="tunnel"):
            world.link.answer(1, JSON_HEAD, b"{}", end=OK)
        tunnel = ExchangeWorld()
        with tunnel:
            tunnel.post()
            with pytest.raises(FrameError, match="normalized"):
                tunnel.link.say(1, RunText("a", 0))


def test_a_whole_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "ANSWER_BYTES_MAX", 1000)
    with a_world() as world:
        world.post(body())
        world.link.say(1, RunText("a", 0), byte_count=1000)
        with pytest.raises(FrameError, match="larger than 1000"):
            world.link.say(1, RunText("a", 0), byte_count=1)


@pytest.mark.parametrize("status", [RunEnd.CONNECT_FAILED, RunEnd.UNKNOWN_PROVIDER, RunEnd.NODE_DRAINING])
def test_what_was_not_seen_is_admitted_again_as_the_kind_of_its_next_provider(status: int) -> None:
    providers = [ollama(), provider_spec("n1", "p2", priority=1)]
    with ExchangeWorld(providers) as world:
        call = world.post(body())
        assert call.exchange.provider_id == "p1"
        world.link.say(1, end=End(status, "", None))
        assert call.exchange.provider_id == "p2"
        assert world.link.openings[2].path == b"/v1/chat/completions"
        world.link.answer(2, JSON_HEAD, b'{"ok":1}', end=OK)
        assert call.downstream.body == b'{"ok":1}'
        world.assert_idle()


def test_from_a_tunnel_to_a_normalized_run() -> None:
    with ExchangeWorld([provider_spec("n1", "p1"), ollama("p2", priority=1)]) as world:
        call = world.post(body())
        world.link.answer(1, status=RunEnd.CONNECT_FAILED)
        assert call.exchange.provider_id == "p2"
        world.link.say(2, RunText("a", 0), end=WHOLE)
        assert json.loads(call.downstream.body)["choices"][0]["message"]["content"] == "a"
        world.assert_idle()


def test_events_say_that_it_was_seen() -> None:
    with ExchangeWorld([ollama(), ollama("p2", priority=1)]) as world:
        call = world.post(body())
        world.link.say(1, RunText("a", 0))
        world.link.say(1, end=End(RunEnd.CONNECT_FAILED, "", None))
        assert call.downstream.status == 502
        world.assert_idle()


def test_the_session_is_lost() -> None:
    with a_world() as world:
        calls = [world.post(body(stream=True))]
        world.link.say(1, RunText("a", 0))
        link = world.link
        link.lose()
        assert calls[0].downstream.is_aborted
        world.connect()
        unsent = world.link
        unsent.sends_at_once = False
        calls.append(world.post(body()))
        unsent.lose()
        assert calls[1].downstream.error["code"] == "upstream_error"
        world.assert_idle()


@pytest.mark.parametrize("stream", [True, False])
def test_the_client_leaves(stream: bool) -> None:
    with a_world() as world:
        call = world.post(body(stream=stream))
        world.link.say(1, RunText("a", 0))
        call.leave()
        assert world.link.cancelled == [1]
        world.link.say(1, RunText("b", 0), byte_count=400_000)
        assert world.in_flight == 1
        world.link.say(1, end=End(RunEnd.CANCELLED, "", None))
        assert call.exchange.outcome == "client_gone"
        world.assert_idle()


# ---------------------------------------------------------------------------------------------------------------------
# Windows and books


def start(world: ExchangeWorld, stream: bool) -> Call:
    call = world.post(body(stream=stream))
    world.link.say(1, RunReasoning("-", 0), byte_count=20)
    return call


@pytest.mark.parametrize("stream", [True, False])
def test_the_window_counts_what_the_events_took_on_the_link(stream: bool) -> None:
    with a_world() as world:
        start(world, stream)
        world.link.say(1, RunText("a", 0), byte_count=WINDOW // 2 - 21)
        assert world.link.grants == {}
        world.link.say(1, RunText("a", 0), byte_count=1)
        assert world.link.grants == {1: [WINDOW // 2]}
        world.link.say(1, RunText("a", 0), byte_count=WINDOW)
        assert world.link.grants == {1: [WINDOW // 2, WINDOW]}


def test_a_client_that_does_not_read_is_not_sent_more() -> None:
    with a_world() as world:
        call = start(world, True)
        call.downstream.is_writable = False
        world.link.say(1, RunText("a", 0), byte_count=WINDOW)
        assert world.link.grants == {}
        assert world.link.held[1] == WINDOW + 20
        call.downstream.is_writable = True
        call.receiver.on_writable()
        assert world.link.grants == {1: [WINDOW + 20]}
        call.downstream.is_writable = False
        world.link.say(1, RunText("a", 0), byte_count=WINDOW + run.OVERDRAFT_BYTES)
        assert not call.downstream.is_aborted
        world.link.say(1, RunText("a", 0), byte_count=1)
        assert call.downstream.is_aborted


def test_what_a_broken_node_sends_behind_its_cut_is_dropped() -> None:
    """The run was cut for its first overrun; the rest of what was sent is no fault of ours."""
    with a_world() as world:
        call = start(world, True)
        world.link.say(1, RunText("a", 0))
        call.downstream.is_writable = False
        for _ in range(3):
            world.link.say(1, RunText("a", 0), byte_count=WINDOW + run.OVERDRAFT_BYTES)
        assert call.downstream.is_aborted
        world.link.say(1, RunText("a", 0), end=WHOLE)
        assert "broken" not in world.edge.counters
        world.assert_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_more_events_at_once_than_a_window_holds_are_not_looked_at(stream: bool) -> None:
    with a_world() as world:
        start(world, stream)
        most = WINDOW // EVENT_BYTES + 1
        world.link.say(1, *[RunText("a", 0)] * most)
        with pytest.raises(FrameError, match="events came at once"):
            world.link.say(1, *[RunText("a", 0)] * (most + 1))


def test_what_is_collected_counts_as_held() -> None:
    with a_world() as world:
        start(world, False)
        world.link.say(1, RunText("a", 0), byte_count=1000)
        assert world.link.held[1] == 1020


def test_the_quiet_stream_is_kept_alive() -> None:
    with a_world(openai={"sse_keep_alive_ms": 1000}) as world:
        call = world.post(body(stream=True))
        world.link.say(1, RunText("a", 0))
        for _ in range(3):
            world.loop.run_for(2)
            assert world.edge.quiet is not None
            world.edge.quiet.sweep(world.loop.clock.now_ns())
        assert b": keep-alive\n\n" in call.downstream.body


def test_a_large_image_travels_in_pieces_and_is_dropped_when_taken() -> None:
    raw = bytes(range(256)) * 4096
    url = "data:image/png;base64," + base64.b64encode(raw).decode()
    with a_world() as world:
        call = world.post(body(content=[{"type": "image_url", "image_url": {"url": url}}]))
        opening = world.link.openings[1]
        assert not opening.body_complete
        world.link.say(1, taken=True)
        while 1 not in world.link.complete:
            assert world.edge.budget.used > 0
            before = len(world.link.bodies[1])
            world.link.runs[1].on_window(100_000)
            assert 0 < len(world.link.bodies[1]) - before <= 100_000
        assert world.edge.budget.used == 0
        found = pb.RunInput.FromString(bytes(world.link.bodies[1]))
        assert found.messages[0].parts[0].image == raw
        world.link.say(1, RunText("a cat", 0), end=WHOLE)
        assert call.downstream.status == 200
        world.assert_idle()


def test_tunnels_and_normalized_runs_share_one_line() -> None:
    providers = [ollama("o", capacity=1), provider_spec("n1", "t", capacity=1, priority=1)]
    with ExchangeWorld(providers, {"m": {"o": "a", "t": "b"}}) as world:
        calls = [world.post(body()) for _ in range(4)]
        assert [call.exchange.provider_id for call in calls] == ["o", "t", "", ""]
        world.link.answer(2, JSON_HEAD, b"{}", end=OK)
        assert [call.exchange.provider_id for call in calls] == ["o", "t", "t", ""]
        world.link.say(1, RunText("a", 0), end=WHOLE)
        assert [call.exchange.provider_id for call in calls] == ["o", "t", "t", "o"]
        world.link.answer(3, JSON_HEAD, b"{}", end=OK)
        world.link.say(4, RunText("a", 0), end=WHOLE)
        assert [call.downstream.status for call in calls] == [200] * 4
        world.assert_idle()


@pytest.mark.parametrize("stream", [False, True])
def test_counts_that_no_request_has_are_not_known(stream: bool) -> None:
    """Sums of them would be no numbers of JSON's, in the answer and in the page of all sums."""
    with a_world() as world:
        call = world.post(body(stream=stream, stream_options={"include_usage": True}))
        world.link.say(1, RunText("a", 0), end=End(RunEnd.OK, "", Usage(2**64 - 1, 2**64 - 1, 0)))
        assert call.downstream.status == 200
        assert b"total_tokens" not in call.downstream.body
        [row] = world.edge.books.usage.snapshot()["rows"]
        assert (row["prompt_tokens"], row["unknown"]) == (0, 1)
        world.assert_idle()


def test_usage_is_booked() -> None:
    with a_world() as world:
        world.post(body())
        world.link.say(1, RunText("a", 0), end=WHOLE)
        [row] = world.edge.books.usage.snapshot()["rows"]
        assert (row["prompt_tokens"], row["completion_tokens"], row["complete"]) == (5, 2, 1)
