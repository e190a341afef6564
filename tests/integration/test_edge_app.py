"""A whole Edge: HTTP in front, real gRPC behind, a scripted Node at its end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from iop_fast.wire import runtime_pb2 as pb
from tests.fakes.fake_node import FakeNode, FakeRun
from tests.integration.edge_harness import CHAT, Bench, bench, config, provider, run, until

Answer = asyncio.Task[aiohttp.ClientResponse]


def start(work: Any) -> Answer:
    return asyncio.ensure_future(work)


async def error_of(answer: aiohttp.ClientResponse) -> tuple[int, str]:
    body = await answer.json()
    assert set(body["error"]) == {"message", "type", "param", "code"}
    return answer.status, body["error"]["code"]


# Through


def test_a_chat_request_goes_through() -> None:
    async def work() -> None:
        async with bench() as b:
            node = await b.ready()
            answer = start(b.chat())
            run = await node.next_run()
            assert run.request.provider_id == "p1"
            assert json.loads(bytes(run.body))["model"] == "served"
            assert (await b.row())["effective"]["in_flight"] == 1
            await run.answer(b'{"object":"chat.completion"}')
            got = await answer
            assert (got.status, await got.json()) == (200, {"object": "chat.completion"})
            assert (got.headers["x-iop-node"], got.headers["x-iop-provider"]) == ("n1", "p1")
            await b.idle()

    run(work())


def test_a_stream_is_passed_on_as_it_comes() -> None:
    async def work() -> None:
        async with bench() as b:
            node = await b.ready()
            answering = start(b.client.post(b.http(CHAT), json={"model": "m", "stream": True, "messages": []}))
            run = await node.next_run()
            await run.taken()
            await run.head(200, (b"content-type", b"text/event-stream"))
            answer = await answering
            for number in range(5):
                piece = b"data: %d\n\n" % number
                await run.data(piece)
                assert await answer.content.readexactly(len(piece)) == piece
            await run.end(usage=pb.Usage(prompt_tokens=3, completion_tokens=5))
            assert await answer.read() == b""
            await b.idle()

    run(work())


def test_many_clients_share_a_node() -> None:
    async def work() -> None:
        async with bench(config({"n1": [provider("p1", 8)]}, provider_pool={"max_queue": 100})) as b:
            node = b.node()

            async def echo(run: FakeRun) -> None:
                await until(lambda: run.is_complete, "the whole body")
                await run.answer(bytes(run.body))

            node.on_run = echo
            await node.register()
            await node.ack()
            await until(lambda: b.edge.links.was_ready, "ready")
            answers = await asyncio.gather(*(b.chat(user=str(number)) for number in range(80)))
            assert [answer.status for answer in answers] == [200] * 80
            users = [(await answer.json())["user"] for answer in answers]
            assert users == [str(number) for number in range(80)]
            await b.idle()

    run(work())


def test_a_large_body_waits_for_the_nodes_window() -> None:
    async def work() -> None:
        async with bench() as b:
            node = await b.ready()
            answer = start(b.chat(user="x" * 600_000))
            run = await node.next_run()
            await until(lambda: len(run.body) >= 256 * 1024, "the first window")
            await node.heartbeat()
            assert not run.is_complete
            assert len(run.body) == 256 * 1024
            while not run.is_complete:
                before = len(run.body)
                await node.send(pb.Frame(run_id=run.run_id, window=pb.WindowUpdate(bytes=100_000)))
                await until(lambda before=before: len(run.body) > before or run.is_complete, "more of the body")
            assert json.loads(bytes(run.body))["user"] == "x" * 600_000
            await run.answer(b"{}")
            assert (await answer).status == 200
            await b.idle()

    run(work())


# B02


def test_what_fails_before_dispatch_holds_no_slot() -> None:
    """B02: each kind of bad request has its own answer, and the good one after it goes through at once."""

    async def ask(b: Bench, data: bytes, path: str = CHAT) -> tuple[int, str]:
        headers = {"content-type": "application/json"}
        async with b.client.post(b.http(path), data=data, headers=headers) as answer:
            return await error_of(answer)

    async def work() -> None:
        async with bench() as b:
            node = await b.ready()
            bad: list[tuple[bytes, str, tuple[int, str]]] = [
                (b'{"model":"nope","messages":[]}', CHAT, (404, "model_not_found")),
                (b'{"model":"m",', CHAT, (400, "invalid_request")),
                (b'["m"]', CHAT, (400, "invalid_request")),
                (b'{"messages":[]}', CHAT, (400, "invalid_request")),
                (b'{"model":7}', CHAT, (400, "invalid_request")),
                (b'{"model":"m","model":"m"}', CHAT, (400, "invalid_request")),
                (b"", CHAT, (400, "invalid_request")),
                (b'{"model":"m"}', "/v1/unknown", (404, "not_found")),
            ]
            for data, path, expected in bad:
                for _ in range(10):
                    assert await ask(b, data, path) == expected
                assert (b.in_flight, b.edge.gate.waiting, b.edge.links.run_count) == (0, 0, 0)
            good = start(b.chat())
            await (await node.next_run()).answer(b"{}")
            assert (await good).status == 200
            await b.idle()

    run(work())


def test_what_fails_at_the_provider_gives_its_slot_back() -> None:
    """B02: refused port, provider errors, a provider that closes before its head."""

    async def connect_failed(run: FakeRun) -> None:
        await run.end(pb.RunEnd.CONNECT_FAILED, "connection refused")

    async def bad_request(run: FakeRun) -> None:
        await run.answer(b'{"error":{"message":"too long"}}', 400)

    async def server_error(run: FakeRun) -> None:
        await run.answer(b"oops", 500, b"text/plain")

    async def closed_early(run: FakeRun) -> None:
        await run.taken()
        await run.end(pb.RunEnd.UPSTREAM_ERROR, "closed before the head")

    async def too_late(run: FakeRun) -> None:
        await run.taken()
        await run.end(pb.RunEnd.UPSTREAM_TIMEOUT, "first byte")

    async def ours(run: FakeRun) -> None:
        await run.answer(b"{}")

    async def work() -> None:
        async with bench() as b:
            node = await b.ready()
            for script, expected in (
                (connect_failed, (502, "upstream_error")),
                (closed_early, (502, "upstream_error")),
                (too_late, (504, "upstream_timeout")),
            ):
                node.on_run = script
                for _ in range(10):
                    assert await error_of(await b.chat()) == expected
                await b.idle()
            node.on_run = bad_request
            answer = await b.chat()
            assert (answer.status, await answer.json()) == (400, {"error": {"message": "too long"}})
            node.on_run = server_error
            answer = await b.chat()
            assert (answer.status, await answer.text()) == (500, "oops")
            node.on_run = ours
            assert (await b.chat()).status == 200
            await b.idle()

    run(work())


def test_a_client_that_leaves_is_cancelled_and_its_slot_comes_back() -> None:
    """B01: the slot is held until the Node confirms, and not longer."""

    async def work() -> None:
        async with bench() as b:
            node = await b.ready()
            leaving = start(b.chat())
            run = await node.next_run()
            leaving.cancel()
            await until(lambda: run.is_cancelled, "the cancel")
            assert b.in_flight == 1
            await run.end(pb.RunEnd.CANCELLED)
            await b.idle()

    run(work())


# B10


def test_the_old_sessions_close_never_kills_the_new_one() -> None:
    """B10: the same instance connects again while its old connection hangs; the old one closes late."""

    async def work() -> None:
        async with bench() as b:
            first = await b.ready(instance_id="i1")
            lost = start(b.chat())
            old_run = await first.next_run()
            first.freeze()
            second = await b.ready(instance_id="i1")
            assert (first.response.generation, second.response.generation) == (1, 2)
            assert await error_of(await lost) == (502, "upstream_error")
            answer = start(b.chat())
            new_run = await second.next_run()
            # Late frames of the old session, then its end.
            await first.send_late(
                pb.Frame(run_id=old_run.run_id, head=pb.ResponseHead(status=200)),
                pb.Frame(run_id=new_run.run_id, end=pb.RunEnd()),
                pb.Frame(run_id=old_run.run_id, end=pb.RunEnd()),
            )
            await first.close()
            await second.heartbeat([new_run.run_id])
            assert (b.in_flight, b.edge.links.run_count) == (1, 1)
            assert (await b.row())["link"] == "ready"
            await new_run.answer(b'{"new":true}')
            got = await answer
            assert (got.status, await got.json()) == (200, {"new": True})
            await b.idle()

    run(work())


def test_another_instance_is_kept_out_while_the_holder_lives_and_let_in_when_it_dies() -> None:
    """B10: the holder keeps its streams; a replacement takes over when it is gone."""

    async def work() -> None:
        async with bench() as b:
            holder = await b.ready(instance_id="i1")
            answer = start(b.chat())
            run = await holder.next_run()
            other = b.node(instance_id="i2")
            response = await other.register()
            assert response.refusal == pb.NODE_ID_IN_USE
            assert "another process holds node 'n1'" in response.detail
            await other.ended()
            await run.answer(b"{}")
            assert (await answer).status == 200
            await holder.close()
            await until(lambda: b.edge.links.current("n1") is None, "the holder's end")
            taken = await b.ready(instance_id="i3")
            assert taken.response.generation == 2
            await b.idle()

    run(work())


# B11


def test_nothing_is_dispatched_before_the_ack() -> None:
    """B11: a request before the ack ends unavailable at once; after it the Node serves."""

    async def work() -> None:
        async with bench() as b:
            node = b.node()
            response = await node.register()
            assert [entry.id for entry in response.payload.providers] == ["p1"]
            refused = await b.chat()
            assert await error_of(refused) == (503, "provider_unavailable")
            status = await b.status()
            assert (status["nodes"][0]["connected"], status["nodes"][0]["link"]) == (False, "accepted")
            row = status["providers"][0]
            assert (row["link"], row["configured"]["capacity"], row["effective"]["capacity"]) == ("offline", 1, 0)
            async with b.client.get(b.http("/v1/models")) as models:
                assert [entry["id"] for entry in (await models.json())["data"]] == ["m"]
            for wrong in ({"revision": 99}, {"generation": 99}):
                await node.ack(**wrong)
            await until(lambda: b.edge.links.counters.ready_acks_ignored == 2, "both wrong acks")
            assert await error_of(await b.chat()) == (503, "provider_unavailable")
            await node.ack()
            await until(lambda: b.edge.links.was_ready, "ready")
            answer = start(b.chat())
            run = await node.next_run()
            await node.ack([])
            await until(lambda: b.edge.links.counters.ready_acks_ignored == 3, "the second ack")
            assert (await b.row())["effective"]["in_flight"] == 1
            await run.answer(b"{}")
            assert (await answer).status == 200
            await b.idle()

    run(work())


def test_the_ack_serves_those_who_wait() -> None:
    """B11: what waits for a full Node goes to the one that becomes ready, in the step of its ack."""

    async def work() -> None:
        async with bench(config({"n1": [provider("p1")], "n2": [provider("p2")]})) as b:
            first = await b.ready("n1")
            running = start(b.chat())
            held = await first.next_run()
            waiting = start(b.chat())
            await b.waiting(1)
            second = b.node("n2", "i2")
            await second.register()
            assert b.edge.gate.waiting == 1
            await second.ack()
            run = await second.next_run()
            assert b.edge.gate.waiting == 0
            await run.answer(b"{}")
            assert (await waiting).headers["x-iop-node"] == "n2"
            await held.answer(b"{}")
            assert (await running).status == 200
            await b.idle()

    run(work())


def test_a_node_that_drops_before_its_ack_leaves_nothing() -> None:
    """B11: drops before the ack, then another instance takes its place."""

    async def work() -> None:
        async with bench() as b:
            node = b.node()
            await node.register()
            await node.close()
            await until(lambda: b.edge.links.current("n1") is None, "the end of the session")
            again = await b.ready(instance_id="i2")
            assert again.response.generation == 2
            answer = start(b.chat())
            await (await again.next_run()).answer(b"{}")
            assert (await answer).status == 200
            await b.idle()

    run(work())


# Losing a Node


def test_a_node_that_dies_ends_its_runs_and_the_waiters_of_its_models() -> None:
    """B09: the running request ends with an error, the waiting ones are unavailable at once, a fresh one works."""

    async def work() -> None:
        async with bench() as b:
            node = await b.ready()
            running = start(b.chat())
            await node.next_run()
            waiting = [start(b.chat()) for _ in range(3)]
            await b.waiting(3)
            await node.close()
            assert await error_of(await running) == (502, "upstream_error")
            for answer in await asyncio.gather(*waiting):
                assert await error_of(answer) == (503, "provider_unavailable")
            await b.idle()
            again = await b.ready(instance_id="i2")
            answer = start(b.chat())
            await (await again.next_run()).answer(b"{}")
            assert (await answer).status == 200

    run(work())


def test_a_node_that_hangs_is_lost_by_its_silence() -> None:
    """B12: its connection stays open and it says nothing; it comes back as a new session."""

    async def work() -> None:
        link = {"heartbeat_ms": 50, "silence_ms": 400}
        async with bench(config(edge={"listen": "127.0.0.1:0", "link": link})) as b:
            node = await b.ready()
            node.beat_every(0.05)
            running = start(b.chat())
            await node.next_run()
            await until(lambda: len(node.frames) >= 12, "heartbeats of the Edge over more than the limit")
            assert b.in_flight == 1
            node.freeze()
            assert await error_of(await running) == (502, "upstream_error")
            assert b.edge.links.counters.silent == 1
            assert (await b.row())["link"] == "offline"
            again = await b.ready(instance_id="i1")
            assert again.response.generation == 2
            await b.idle()

    run(work())


def test_a_malformed_message_ends_that_session_alone() -> None:
    async def work() -> None:
        async with bench(config({"n1": [provider("p1")], "n2": [provider("p2")]})) as b:
            broken, good = await b.ready("n1"), await b.ready("n2", "i2")
            await broken.send_bytes(b"\xff\xff\xff\xff")
            await broken.ended()
            answer = start(b.chat())
            await (await good.next_run()).answer(b"{}")
            assert (await answer).headers["x-iop-node"] == "n2"
            assert b.edge.links.counters.malformed == 1

    run(work())


@pytest.mark.parametrize(
    ("node_id", "token", "protocol", "refusal"),
    [
        ("n1", "wrong", "1.0", pb.BAD_TOKEN),
        ("n9", "node-token", "1.0", pb.UNKNOWN_NODE),
        ("n1", "node-token", "2.0", pb.VERSION),
    ],
)
def test_a_refused_node_hears_why_and_its_stream_ends(node_id: str, token: str, protocol: str, refusal: int) -> None:
    async def work() -> None:
        async with bench() as b:
            node = FakeNode(b.edge.link_port, node_id, token, protocol=protocol)
            b.nodes.append(node)
            response = await node.register()
            assert response.refusal == refusal
            await node.ended()
            assert b.edge.links.current("n1") is None

    run(work())


# Draining


def test_a_drain_lets_the_running_finish_and_turns_away_everybody_else() -> None:
    async def work() -> None:
        async with bench() as b:
            node = await b.ready()
            running = start(b.chat())
            held = await node.next_run()
            waiting = start(b.chat())
            await b.waiting(1)
            draining = asyncio.create_task(b.edge.drain())
            assert await error_of(await waiting) == (503, "draining")
            turned_away = await b.chat()
            assert await error_of(turned_away) == (503, "draining")
            assert turned_away.headers["connection"] == "close"
            async with b.client.get(b.admin("/readyz")) as answer:
                assert (answer.status, (await answer.json())["reasons"]) == (503, ["draining"])
            said = (await node.frame("draining")).draining
            assert (said.reconnect_after_ms, said.limit_ms) == (1000, 30000)
            late = b.node(instance_id="i2")
            assert (await late.register()).refusal == pb.EDGE_DRAINING
            assert not draining.done()
            await held.answer(b"{}")
            assert (await running).status == 200
            await asyncio.wait_for(draining, 5)
            await b.idle()

    run(work())


def test_load_balancers_may_turn_away_before_a_drain_refuses_anything() -> None:
    async def work() -> None:
        limits = {"listen": "127.0.0.1:0", "limits": {"drain_delay_ms": 86_400_000}}
        async with bench(config(openai=limits)) as b:
            node = await b.ready()
            draining = start(b.edge.drain())

            async def is_unready() -> bool:
                async with b.client.get(b.admin("/readyz")) as answer:
                    return answer.status == 503 and (await answer.json())["reasons"] == ["draining"]

            await until(is_unready, "not ready")
            running = start(b.chat())
            await (await node.next_run()).answer(b"{}")
            assert (await running).status == 200
            assert not draining.done()
            draining.cancel()
            await asyncio.gather(draining, return_exceptions=True)
            await b.idle()

    run(work())


def test_a_drain_ends_at_its_limit() -> None:
    async def work() -> None:
        limits = {"listen": "127.0.0.1:0", "limits": {"drain_ms": 200}}
        async with bench(config(openai=limits)) as b:
            node = await b.ready()
            running = start(b.chat())
            await node.next_run()
            await asyncio.wait_for(b.edge.drain(), 5)
            assert b.edge.links.run_count == 1
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    run(work())
