"""The whole request path of an Edge but for the wire to its Nodes: real sockets, real front, real core.

The Node's session is played in the process: it gets what the exchange opens and answers as a test's script says.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import json
import random
from collections.abc import Awaitable, Callable
from hashlib import sha256

import pytest
import uvloop

from iop_fast.edge.exchange import Exchange
from iop_fast.seams import Head
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.integration.exchange_bench import (
    CHAT,
    JSON_HEAD,
    OK,
    SSE_HEAD,
    WINDOW,
    Run,
    begin_stream,
    bench,
    stay_silent,
)


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    """Run a test on the loop that production uses, and on the standard one."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    def run_it(scenario: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await scenario()

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run_it


RunIt = Callable[[Callable[[], Awaitable[None]]], None]


def test_answers_of_one_connection_come_in_order_and_find_the_slot_free(run: RunIt) -> None:
    async def scenario() -> None:
        async with bench(provider_pool={"max_queue": 1}) as edge:
            client = await edge.connect()
            head = Head(200, b"OK", [(b"Content-Type", b"application/json"), (b"Content-Length", b"2")])
            edge.link.script = lambda run: run.answer(head, b"{}", end=OK)
            for _ in range(5):
                client.send()
            for _ in range(5):
                reply = await client.read()
                assert (reply.status, reply.body) == (200, b"{}")
                assert reply.headers[b"x-iop-provider"] == b"p1"
            assert len({run.request.headers[-1] for run in edge.link.seen}) == 5
            assert edge.link.highest == 1

    run(scenario)


def test_a_stream_arrives_as_it_was_sent(run: RunIt) -> None:
    async def scenario() -> None:
        async with bench() as edge:
            client = await edge.connect()
            edge.link.script = lambda run: run.answer(SSE_HEAD)
            client.send()
            status, headers = await client.read_head()
            assert (status, headers[b"content-type"]) == (200, b"text/event-stream")
            events = [f"data: {{'n': {number}, 'text': '안녕'}}\n\n".encode() for number in range(50)]
            for event in events:
                edge.link.seen[0].answer(None, event)
                assert await client.read_chunk() == event
            edge.link.seen[0].answer(None, b"data: [DONE]\n\n", end=OK)
            assert await client.read_chunk() == b"data: [DONE]\n\n"
            assert await client.read_chunk() == b""
            assert (await client.ask(method=b"GET", path=b"/v1/models")).status == 200

    run(scenario)


def test_cut_clients_give_their_slots_back_and_no_sooner_than_they_are_free(run: RunIt) -> None:
    """B01: streams cut after some chunks, answers awaited by nobody, waiters that leave; then all is as before."""

    async def scenario() -> None:
        async with bench(capacity=2) as edge:
            rng = random.Random(17)
            for number in range(60):
                clients = [await edge.connect() for _ in range(3)]
                edge.link.script = begin_stream if number % 2 else stay_silent
                for client in clients:
                    client.send()
                await edge.until(lambda: len(edge.link.runs) == 2 and edge.gate.waiting == 1)
                if number % 2:
                    for run in list(edge.link.runs.values()):
                        run.answer(None, b"data: 2\n\n")
                rng.shuffle(clients)
                for client in clients:
                    client.reset() if rng.random() < 0.5 else client.close()
                await edge.until_idle()
            edge.link.script = lambda run: run.answer(JSON_HEAD, b"{}", end=OK)
            reply = await (await edge.connect()).ask()
            assert (reply.status, reply.headers[b"x-iop-queue-ms"]) == (200, b"0")
            assert edge.link.highest == 2

    run(scenario)


def test_a_capacity_of_one_is_never_two(run: RunIt) -> None:
    """B01 (b): the slot is held until the answer has ended, not until its head."""

    async def scenario() -> None:
        async with bench() as edge:
            loop = asyncio.get_running_loop()

            def stream(run: Run) -> None:
                run.answer(SSE_HEAD, b"data: 1\n\n")
                loop.call_later(0.01, lambda: run.answer(None, b"data: 2\n\n", end=OK))

            edge.link.script = stream
            clients = [await edge.connect() for _ in range(8)]
            replies = await asyncio.gather(*(client.ask() for client in clients))
            assert [reply.status for reply in replies] == [200] * 8
            assert all(reply.is_whole and reply.body == b"data: 1\n\ndata: 2\n\n" for reply in replies)
            assert edge.link.highest == 1

    run(scenario)


def test_of_a_burst_one_runs_three_wait_and_the_rest_is_refused(run: RunIt) -> None:
    """B07."""

    async def scenario() -> None:
        async with bench(provider_pool={"max_queue": 3}) as edge:
            edge.link.script = stay_silent
            clients = [await edge.connect() for _ in range(50)]
            asked = [asyncio.create_task(client.ask()) for client in clients]
            await edge.until(lambda: sum(task.done() for task in asked) == 46)
            refused = [task.result() for task in asked if task.done()]
            assert {(reply.status, reply.code) for reply in refused} == {(429, "queue_full")}
            assert all(1 <= int(reply.headers[b"retry-after"]) <= 30 for reply in refused)
            assert (edge.in_flight, edge.gate.waiting) == (1, 3)
            edge.link.script = lambda run: run.answer(JSON_HEAD, b"{}", end=OK)
            edge.link.seen[0].answer(JSON_HEAD, b"{}", end=OK)
            rest = await asyncio.gather(*(task for task in asked if not task.done()))
            assert [reply.status for reply in rest] == [200] * 4
            assert edge.link.highest == 1

    run(scenario)


def test_a_client_that_leaves_the_queue_is_served_no_more(run: RunIt) -> None:
    async def scenario() -> None:
        async with bench() as edge:
            edge.link.script = stay_silent
            first, second, third = [await edge.connect() for _ in range(3)]
            for waiting, client in enumerate((first, second, third)):
                client.send()
                await edge.until(lambda count=waiting: edge.gate.waiting == count)  # type: ignore[misc]
            await edge.until(lambda: len(edge.link.seen) == 1)
            second.close()
            await edge.until(lambda: edge.gate.waiting == 1)
            edge.link.script = lambda run: run.answer(JSON_HEAD, b"{}", end=OK)
            edge.link.seen[0].answer(JSON_HEAD, b"{}", end=OK)
            assert (await first.read()).status == 200
            assert (await third.read()).status == 200
            assert len(edge.link.seen) == 2

    run(scenario)


def test_refusals_keep_the_connection_fit_for_the_next_request(run: RunIt) -> None:
    """B02, B24: each kind has its answer, none takes a slot, and what follows is a request of its own."""

    async def scenario() -> None:
        async with bench() as edge:
            client = await edge.connect()
            for body, path, status, code in (
                (b'{"model":"x"}', b"/v1/chat/completions", 404, "model_not_found"),
                (b"{", b"/v1/chat/completions", 400, "invalid_request"),
                (b"[]", b"/v1/embeddings", 400, "invalid_request"),
                (b"GET /v1/models HTTP/1.1\r\nHost: a\r\n\r\n", b"/v1/unknown", 404, "not_found"),
                (b'{"model":"m","model":"m"}', b"/v1/completions", 400, "invalid_request"),
            ):
                reply = await client.ask(body, path=path)
                assert (reply.status, reply.code) == (status, code)
                assert reply.headers[b"x-iop-reason"] == code.encode()
            assert (await client.ask(method=b"PUT", path=b"/v1/models")).headers[b"allow"] == b"GET, HEAD"
            listed = await client.ask(method=b"HEAD", path=b"/v1/models")
            assert int(listed.headers[b"content-length"]) > 0
            reply = await client.ask()
            assert reply.status == 200
            assert len(edge.link.seen) == 1

    run(scenario)


def test_a_stranger_is_refused_before_its_body_is_asked_for(run: RunIt) -> None:
    """B18: with odd bytes too; a client that waits for 100 Continue gets its 401 instead."""
    known = [{"token_ref": "t", "token_hash_sha256": sha256(b"good").hexdigest(), "principal_ref": "p"}]

    async def scenario() -> None:
        async with bench(openai={"require_principal": True, "principal_tokens": known}) as edge:
            for token in (b"caf\xe9", "café".encode(), b"", b"a" * 8000, sha256(b"good").hexdigest().encode()):
                client = await edge.connect()
                client.writer.write(
                    b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\n"
                    b"Expect: 100-continue\r\nContent-Length: 100000\r\n\r\n" % token
                )
                reply = await client.read()
                assert (reply.status, reply.code) == (401, "invalid_api_key")
            client = await edge.connect()
            assert (await client.ask(fields=b"Authorization: Bearer good\r\n")).status == 200
            assert [name for name, _ in edge.link.seen[0].request.headers] == [b"x-request-id"]

    run(scenario)


def test_a_large_body_reaches_the_node_byte_for_byte(run: RunIt) -> None:
    """B13: ten megabytes through a window of 256 KiB, with a length and in chunks."""

    async def scenario() -> None:
        async with bench() as edge:
            image = random.Random(23).randbytes(5_000_000).hex().encode()
            body = b'{"model":"m","image":"' + image + b'"}'
            wanted = hashlib.sha256(body.replace(b'"m"', b'"served"', 1)).hexdigest()
            client = await edge.connect()
            assert (await client.ask(body)).status == 200
            client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n")
            for start in range(0, len(body), 100_003):
                piece = body[start : start + 100_003]
                client.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            client.writer.write(b"0\r\n\r\n")
            assert (await client.read()).status == 200
            assert [hashlib.sha256(run.body).hexdigest() for run in edge.link.seen] == [wanted] * 2

    run(scenario)


def test_a_body_above_the_limit_is_a_413_and_takes_no_slot(run: RunIt) -> None:
    async def scenario() -> None:
        async with bench(openai={"limits": {"body_bytes": 4096}}) as edge:
            reply = await (await edge.connect()).ask(b"x" * 5000)
            assert (reply.status, reply.code) == (413, "request_too_large")
            client = await edge.connect()
            client.writer.write(
                b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
                b"1388\r\n" + b'{"x":"' + b"y" * 5000
            )
            reply = await client.read()
            assert (reply.status, reply.code) == (413, "request_too_large")
            assert reply.headers[b"connection"] == b"close"
            assert edge.gate.counters()["submitted"] == 0

    run(scenario)


def test_a_stream_that_breaks_off_says_so_and_does_not_look_whole(run: RunIt) -> None:
    """B21."""

    async def scenario() -> None:
        async with bench() as edge:
            client = await edge.connect()
            edge.link.script = lambda run: run.answer(SSE_HEAD, b"data: 1\n\nda")
            client.send()
            await edge.until(lambda: bool(edge.link.seen))
            edge.link.seen[0].end(RunEnd.UPSTREAM_TIMEOUT)
            reply = await client.read()
            assert not reply.is_whole
            _, first, error = reply.body.split(b"data: ")
            assert first == b"1\n\nda\n\n"
            assert json.loads(error)["error"]["code"] == "upstream_timeout"
            # Anything else is cut and nothing added.
            client = await edge.connect()
            edge.link.script = lambda run: run.answer(JSON_HEAD, b'{"half":')
            client.send()
            await edge.until(lambda: len(edge.link.seen) == 2)
            edge.link.seen[1].end(RunEnd.UPSTREAM_ERROR)
            reply = await client.read()
            assert (reply.body, reply.is_whole) == (b'{"half":', False)

    run(scenario)


def test_a_client_that_does_not_read_holds_back_its_own_provider_and_nobody_else(run: RunIt) -> None:
    async def scenario() -> None:
        async with bench(capacity=2) as edge:
            slow, quick = await edge.connect(), await edge.connect()
            slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
            edge.link.script = lambda run: run.answer(SSE_HEAD)
            slow.send()
            await edge.until(lambda: bool(edge.link.seen))
            stalled = edge.link.seen[0]
            sent = 0
            piece = bytes(65_536)
            # Fed as a Node feeds it: only what the window allows.
            for _ in range(2_000):
                if stalled.window < len(piece):
                    break
                stalled.answer(None, piece)
                sent += len(piece)
                await asyncio.sleep(0)
            assert stalled.window < len(piece), "the window was never used up"
            edge.link.script = lambda run: run.answer(JSON_HEAD, b"{}", end=OK)
            assert (await quick.ask()).status == 200
            slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
            status, _ = await slow.read_head()
            assert status == 200
            received = 0
            while received < sent:
                chunk = await slow.read_chunk()
                assert chunk
                received += len(chunk)
            await edge.until(lambda: stalled.window >= WINDOW // 2)
            stalled.answer(None, b"end", end=OK)
            assert await slow.read_chunk() == b"end"
            assert await slow.read_chunk() == b""

    run(scenario)


def test_an_unconfirmed_cancel_gives_the_slot_back_after_its_limit(run: RunIt) -> None:
    async def scenario() -> None:
        async with bench(edge={"link": {"cancel_confirm_ms": 100}}) as edge:
            edge.link.confirms = False
            edge.link.script = stay_silent
            client = await edge.connect()
            client.send()
            await edge.until(lambda: bool(edge.link.seen))
            client.close()
            await edge.until(lambda: edge.link.seen[0].is_cancelled)
            assert edge.in_flight == 1
            await edge.until(lambda: edge.in_flight == 0)
            assert edge.edge.counters["released_unconfirmed"] == 1

    run(scenario)


def test_draining_lets_answers_end_and_refuses_the_rest(run: RunIt) -> None:
    async def scenario() -> None:
        async with bench() as edge:
            edge.link.script = begin_stream
            running, waiting, late = [await edge.connect() for _ in range(3)]
            running.send()
            await edge.until(lambda: bool(edge.link.seen))
            waiting.send()
            await edge.until(lambda: edge.gate.waiting == 1)
            edge.edge.start_draining()
            edge.front.drain()
            for client in (waiting, late):
                reply = await (client.read() if client is waiting else client.ask())
                assert (reply.status, reply.code, reply.headers[b"connection"]) == (503, "draining", b"close")
            edge.link.seen[0].answer(None, b"data: 2\n\n", end=OK)
            reply = await running.read()
            assert (reply.body, reply.is_whole) == (b"data: 1\n\ndata: 2\n\n", True)

    run(scenario)


def test_finished_requests_leave_nothing_for_the_collector(run: RunIt) -> None:
    """With the collector off: what answers, refusals and clients that leave make is gone when they are."""

    async def scenario() -> None:
        async with bench(capacity=4) as edge:

            async def round_of_requests() -> None:
                edge.link.script = lambda run: run.answer(JSON_HEAD, b"{}", end=OK)
                client = await edge.connect()
                for body in (CHAT, b"[]", b'{"model":"x"}', CHAT):
                    await client.ask(body)
                edge.link.script = begin_stream
                client.send()
                await client.read_head()
                client.reset()
                await edge.until(lambda: not edge.in_flight and not edge.front.connections)
                edge.link.seen.clear()

            await round_of_requests()
            gc.collect()
            gc.disable()
            try:
                before = count_exchanges()
                for _ in range(50):
                    await round_of_requests()
                assert count_exchanges() == before
            finally:
                gc.enable()

    run(scenario)


def count_exchanges() -> int:
    return sum(type(item) is Exchange for item in gc.get_objects())
