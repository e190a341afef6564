"""The feed of a running Edge: everything once, then what differs."""

from __future__ import annotations

import asyncio

from iop_fast.edge.feed import READERS_MAX
from tests.integration.edge_harness import bench, run, until
from tests.integration.edge_pages import page, reader


def test_the_feed_says_everything_once_and_then_what_differs() -> None:
    async def work() -> None:
        async with bench() as b, reader(b) as first:
            kind, snapshot = await first.next() or ("", {})
            assert kind == "snapshot"
            assert list(snapshot) == [
                "edge", "config", "nodes", "providers", "models", "queue", "rates", "durations", "refreshes"
            ]  # fmt: skip
            assert (snapshot["providers"]["rows"][0]["state"], snapshot["edge"]["is_ready"]) == ("offline", False)
            node = await b.ready()
            kind, change = await first.next() or ("", {})
            assert (kind, set(change)) == ("change", {"edge", "nodes", "providers"})
            assert change["providers"]["rows"][0]["state"] == "up"
            call = asyncio.create_task(b.chat())
            await (await node.next_run()).answer(b"{}")
            await call
            while "rates" not in change or not change["rates"]["requests"]:
                _, change = await first.next() or ("", {})
            assert change["rates"]["outcomes"] == {"ok": 1}
            assert sum(change["durations"]["total"]["counts"]) == sum(change["durations"]["queue"]["counts"]) == 1
            assert len(change["durations"]["bounds_ms"]) + 1 == len(change["durations"]["ttfb"]["counts"])

    run(work())


def test_readers_are_few_and_a_place_is_free_again_when_one_leaves() -> None:
    async def work() -> None:
        async with bench() as b:
            open_readers = [await b.client.get(b.admin("/events")) for _ in range(READERS_MAX)]
            assert {answer.status for answer in open_readers} == {200}
            await page(b, "/events", 503)
            async with b.client.head(b.admin("/events")) as answer:
                assert answer.status == 503
            open_readers.pop().close()

            async def has_room() -> bool:
                async with b.client.get(b.admin("/events")) as answer:
                    return answer.status == 200

            await until(has_room, "a place")
            for answer in open_readers:
                answer.close()

    run(work())


def test_a_stop_ends_the_stream() -> None:
    async def work() -> None:
        async with bench() as b, reader(b) as one:
            assert await one.next()
            await b.edge.stop()
            assert await one.next() is None

    run(work())
