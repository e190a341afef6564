"""A request's way in and its answer's way out, while everything goes well."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from iop_fast.edge.exchange import State
from iop_fast.edge.routes import SURFACES
from iop_fast.seams import End, Head, Usage
from iop_fast.wire.options import PIECE_BYTES
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import JSON_HEAD, OK, SSE_HEAD, ExchangeWorld, provider_spec

WINDOW = 256 * 1024


def test_an_answer_goes_out_as_it_comes_in_one_write_a_message() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        assert call.exchange.state is State.DISPATCHED
        run = world.link.last
        world.link.answer(run, SSE_HEAD, b"data: 1\n\n", b"data: 2\n\n", taken=True)
        assert call.exchange.state is State.STREAMING
        world.link.answer(run, None, b"data: 3\n\n")
        world.link.answer(run, None, b"data: [DONE]\n\n", end=OK)
        assert [(head is not None, b"".join(pieces), end) for head, pieces, end in call.downstream.sends] == [
            (True, b"data: 1\n\ndata: 2\n\n", False),
            (False, b"data: 3\n\n", False),
            (False, b"data: [DONE]\n\n", True),
        ]
        assert call.exchange.state is State.DONE
        assert call.exchange.outcome == "ok"
        world.assert_idle()


def test_head_data_and_end_in_one_message_are_one_write() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        head = Head(200, b"OK", [(b"Content-Length", b"2"), (b"Content-Type", b"application/json")])
        world.link.answer(world.link.last, head, b"{}", end=End(RunEnd.OK, "", Usage(3, 4, 1)))
        [(sent, pieces, end)] = call.downstream.sends
        assert sent is not None
        assert sent.headers == [
            (b"Content-Length", b"2"),
            (b"Content-Type", b"application/json"),
            (b"x-request-id", call.exchange.request.id),
            (b"x-iop-provider", b"p1"),
            (b"x-iop-node", b"n1"),
            (b"x-iop-queue-ms", b"0"),
        ]
        assert (pieces, end) == ([b"{}"], True)
        assert call.exchange.usage == Usage(3, 4, 1)
        world.assert_idle()


def test_the_route_is_not_told_where_it_is_not_to_be() -> None:
    with ExchangeWorld(openai={"expose_route": False}) as world:
        call = world.post()
        world.link.answer(world.link.last, JSON_HEAD, b"{}", end=OK)
        assert call.downstream.field(b"x-request-id")
        assert not [name for name, _ in call.downstream.heads[0].headers if name.startswith(b"x-iop-")]


@pytest.mark.parametrize("status", [201, 204, 301, 400, 404, 429, 500, 503, 599])
def test_a_provider_s_own_error_is_passed_through(status: int) -> None:
    """B28: status, fields and body reach the client, whatever the status."""
    with ExchangeWorld() as world:
        call = world.post()
        head = Head(status, b"As It Says", [(b"Retry-After", b"9"), (b"Content-Type", b"text/plain")])
        world.link.answer(world.link.last, head, b"their words", end=OK)
        assert (call.downstream.status, call.downstream.heads[0].reason) == (status, b"As It Says")
        assert call.downstream.field(b"retry-after") == b"9"
        assert call.downstream.field(b"x-iop-reason") is None
        assert call.downstream.body == b"their words"
        world.assert_idle()


@pytest.mark.parametrize("path", [path for path, surface in SURFACES.items() if not surface.is_form])
def test_every_surface_is_tunnelled_byte_for_byte(path: bytes) -> None:
    with ExchangeWorld() as world:
        body = b'{ "x" : [1.50, "\\u00e9", "model"] ,"model":"m" , "stream" : true}\n'
        call = world.post(body, path=path, query=b"api-version=1&x=%20", headers=[(b"accept", b"a"), (b"accept", b"b")])
        opening = world.link.openings[world.link.last]
        assert opening.method == b"POST"
        assert opening.path == path + b"?api-version=1&x=%20"
        assert opening.body == body.replace(b'"m"', b'"served-m"')
        assert opening.body_complete
        assert opening.body_length == len(opening.body)
        assert (opening.provider_id, opening.model, opening.stream) == ("p1", "served-m", True)
        assert list(opening.headers) == [
            (b"accept", b"a"),
            (b"accept", b"b"),
            (b"x-request-id", call.exchange.request.id),
        ]
        world.link.answer(world.link.last, JSON_HEAD, b"{}", end=OK)
        world.assert_idle()


def test_a_body_in_any_pieces_is_the_same_request() -> None:
    with ExchangeWorld() as world:
        content = json.dumps({"messages": [{"role": "user", "content": "안녕"}], "model": "m"}).encode()
        for cut in range(1, len(content)):
            call = world.open()
            call.receiver.on_body(content[:cut])
            call.receiver.on_body(content[cut:])
            call.receiver.on_body_complete()
            assert bytes(world.link.bodies[world.link.last]) == content.replace(b'"m"', b'"served-m"')
            world.link.answer(world.link.last, JSON_HEAD, end=OK)
        world.assert_idle()


def test_a_client_that_is_still_sending_holds_no_place() -> None:
    """B24: neither a slot nor a place in the queue before the body is whole."""
    with ExchangeWorld(provider_pool={"max_queue": 1}) as world:
        sending = world.open(length=1000)
        sending.receiver.on_body(b'{"model":')
        assert (world.in_flight, world.gate.waiting) == (0, 0)
        assert world.post().exchange.state is State.DISPATCHED
        assert world.post().exchange.state is State.QUEUED
        sending.receiver.on_body(b'"m"}')
        sending.receiver.on_body_complete()
        assert sending.downstream.status == 429


def test_a_large_body_follows_by_window_and_is_freed_once_it_is_taken() -> None:
    """B13: what the Node has not granted stays here, in pieces that it can take."""
    with ExchangeWorld() as world:
        filler = random.Random(5).randbytes(400_000).hex()
        content = json.dumps({"model": "m", "image": filler}).encode()
        wanted = content.replace(b'"m"', b'"served-m"', 1)
        call = world.post(content)
        run = world.link.last
        opening = world.link.openings[run]
        assert len(opening.body) == PIECE_BYTES
        assert not opening.body_complete
        assert opening.body_length == len(wanted)
        assert len(world.link.bodies[run]) == WINDOW
        world.link.answer(run, taken=True)
        assert world.edge.budget.used >= len(content)
        world.link.runs[run].on_window(100_000)
        assert len(world.link.bodies[run]) == WINDOW + 100_000
        world.link.runs[run].on_window(10_000_000)
        assert bytes(world.link.bodies[run]) == wanted
        assert run in world.link.complete
        assert world.edge.budget.used == 0
        world.link.runs[run].on_window(5)
        world.link.answer(run, JSON_HEAD, b"{}", end=OK)
        assert call.downstream.body == b"{}"
        world.assert_idle()


def test_the_body_is_kept_until_the_provider_has_the_request() -> None:
    with ExchangeWorld() as world:
        world.post()
        assert world.edge.budget.used > 0
        world.link.answer(world.link.last, taken=True)
        assert world.edge.budget.used == 0
        world.post()
        world.link.answer(world.link.last, JSON_HEAD, end=OK)
        # The second one is dispatched now; its answer's head says that it was taken.
        world.link.answer(world.link.last, JSON_HEAD)
        assert world.edge.budget.used == 0
        world.link.answer(world.link.last, end=OK)
        world.assert_idle()


def test_an_answer_may_come_before_the_body_is_sent() -> None:
    with ExchangeWorld() as world:
        call = world.post(json.dumps({"model": "m", "x": "y" * 500_000}).encode())
        world.link.answer(world.link.last, Head(413, b"Too Large", []), b"no", taken=True, end=OK)
        assert (call.downstream.status, call.downstream.body) == (413, b"no")
        world.assert_idle()


def test_the_window_of_the_answer_is_renewed_at_half_while_the_client_reads() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        run = world.link.last
        world.link.answer(run, SSE_HEAD, bytes(60_000))
        world.link.answer(run, None, bytes(60_000))
        assert run not in world.link.grants
        world.link.answer(run, None, bytes(60_000))
        assert world.link.grants[run] == [180_000]
        call.downstream.is_writable = False
        world.link.answer(run, None, bytes(60_000), bytes(60_000), bytes(60_000), bytes(60_000))
        assert world.link.grants[run] == [180_000]
        call.downstream.is_writable = True
        call.receiver.on_writable()
        assert world.link.grants[run] == [180_000, 240_000]
        call.receiver.on_writable()
        assert world.link.grants[run] == [180_000, 240_000]
        world.link.answer(run, None, b"x", end=OK)
        world.assert_idle()


def test_the_estimate_makes_a_request_long_at_the_threshold() -> None:
    with ExchangeWorld(
        [provider_spec("n1", "short"), provider_spec("n1", "long", long_context_capacity=1)],
        openai={"long_context_threshold_tokens": 1000},
    ) as world:
        long_body = {"model": "m", "messages": [{"role": "user", "content": "word " * 2000}]}
        world.post(long_body)
        assert world.link.openings[world.link.last].provider_id == "long"
        assert sum(row.long_in_flight for row in world.gate.snapshot()) == 1
        waiting = world.post(long_body)
        assert waiting.exchange.state is State.QUEUED
        # A short one passes the long one that cannot be placed (B06).
        world.post()
        assert world.link.openings[world.link.last].provider_id == "short"


def test_a_full_model_does_not_hold_up_a_free_one() -> None:
    """B06: the order is among those that can be dispatched now."""
    providers = [provider_spec("n1", "p1"), provider_spec("n1", "p2")]
    with ExchangeWorld(providers, {"a": {"p1": "s"}, "b": {"p2": "s"}}) as world:
        first = world.post(model="a")
        queued = [world.post(model="a") for _ in range(3)]
        assert [call.exchange.state for call in queued] == [State.QUEUED] * 3
        other = world.post(model="b")
        assert other.exchange.state is State.DISPATCHED
        later = world.post(model="b")
        world.link.answer(2, JSON_HEAD, end=OK)
        assert later.exchange.state is State.DISPATCHED
        assert [call.exchange.state for call in queued] == [State.QUEUED] * 3
        world.link.answer(1, JSON_HEAD, end=OK)
        assert first.exchange.is_done
        assert [call.exchange.state for call in queued] == [State.DISPATCHED, State.QUEUED, State.QUEUED]


def test_the_queue_has_its_bound_over_all_models() -> None:
    """B07: three wait, the fourth is refused, a cancelled place is free again, a free slot serves past a full queue."""
    with ExchangeWorld(
        [provider_spec("n1", "p1"), provider_spec("n1", "p2")],
        {"a": {"p1": "s"}, "b": {"p1": "s"}, "c": {"p2": "s"}},
        provider_pool={"max_queue": 3},
    ) as world:
        calls = [world.post(model="ab"[index % 2]) for index in range(50)]
        states = [call.exchange.state for call in calls]
        assert states == [State.DISPATCHED] + [State.QUEUED] * 3 + [State.DONE] * 46
        for call in calls[4:]:
            assert (call.downstream.status, call.downstream.error["code"]) == (429, "queue_full")
            assert call.downstream.error["type"] == "rate_limit_error"
            retry_after = call.downstream.field(b"retry-after")
            assert retry_after is not None
            assert 1 <= int(retry_after) <= 30
        assert world.post(model="c").exchange.state is State.DISPATCHED
        calls[2].leave()
        assert world.gate.waiting == 2
        assert world.post(model="a").exchange.state is State.QUEUED
        assert world.post(model="a").downstream.status == 429


def test_the_slot_is_free_when_the_client_learns_that_its_answer_ended() -> None:
    """A client that sends its next request at once must not find its own last one in the way."""
    with ExchangeWorld(provider_pool={"max_queue": 1}) as world:
        following: list[Any] = []
        call = world.post()
        call.downstream.on_send = lambda: following.append(world.post())
        world.link.answer(1, JSON_HEAD, b"{}", end=OK)
        assert [later.exchange.state for later in following] == [State.DISPATCHED]


def test_a_grant_is_served_by_the_configuration_of_that_moment() -> None:
    """B04: capacity up wakes the waiter, and the served name is the new one."""
    with ExchangeWorld() as world:
        world.post()
        waiting = world.post()
        assert waiting.exchange.state is State.QUEUED
        world.loop.run_for(1.5)
        world.refresh([provider_spec("n1", "p1", capacity=2)], {"m": {"p1": "renamed"}})
        assert waiting.exchange.state is State.DISPATCHED
        assert json.loads(world.link.bodies[world.link.last])["model"] == "renamed"
        world.link.answer(world.link.last, JSON_HEAD, end=OK)
        assert waiting.downstream.field(b"x-iop-queue-ms") == b"1500"


def test_a_policy_s_clamp_is_named_in_the_answer() -> None:
    with ExchangeWorld(models={"m": {"p1": "s"}}, policies={"m": {"max_tokens_ceiling": 10}}) as world:
        call = world.post(b'{"model":"m","max_tokens":100}')
        assert bytes(world.link.bodies[1]) == b'{"model":"s","max_tokens":10}'
        world.link.answer(1, JSON_HEAD, end=OK)
        assert call.downstream.field(b"x-iop-clamped") == b"max_tokens"


def test_labels_stay_on_the_exchange() -> None:
    with ExchangeWorld() as world:
        call = world.post()
        world.link.answer(1, JSON_HEAD, b"12345", end=End(RunEnd.OK, "", None))
        exchange = call.exchange
        assert (exchange.model, exchange.node_id, exchange.provider_id, exchange.outcome) == ("m", "n1", "p1", "ok")
        assert (exchange.reply.status, exchange.reply.bytes_out, exchange.usage) == (200, 5, None)
        assert repr(exchange) == f"<Exchange {exchange.request.id.decode()} DONE m>"


def test_a_trace_goes_on_to_the_provider() -> None:
    trace = (b"traceparent", b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    with ExchangeWorld() as world:
        world.post(headers=[trace, (b"tracestate", b"a=1")])
        assert {trace, (b"tracestate", b"a=1")} <= set(world.link.openings[1].headers)
