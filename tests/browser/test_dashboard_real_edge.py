"""The page before a real Edge, one story from its start to its restart; pages of other sites before its listener."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import yaml
from aiohttp import ClientTimeout, web
from playwright.async_api import Page, expect

from tests.browser import worlds
from tests.browser.conftest import Stage
from tests.browser.scripted_edge import ScriptedEdge
from tests.integration.edge_harness import CHAT, Bench, bench, config, provider

HOSTS = {"n1": [provider("p1")], "n2": [provider("p2", 2, long_context_capacity=1)]}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


async def refresh(b: Bench, file: Path, settings: dict[str, Any]) -> None:
    """Take a changed file over."""
    await asyncio.to_thread(file.write_text, yaml.safe_dump(settings))
    async with b.client.post(b.admin("/refresh"), json={"mode": "apply"}) as answer:
        assert (await answer.json())["status"] == "applied"


async def chat(b: Bench) -> int:
    """Ask, and have the patience that a page before a slow machine takes; return the status."""
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
    async with b.client.post(b.http(CHAT), json=body, timeout=ClientTimeout(100)) as answer:
        return answer.status


async def node_gone(b: Bench, page: Page, calls: list[asyncio.Task[int]]) -> None:
    """A second Node takes who waits and goes with the run; one waits again, for the Node that is left."""
    headline = page.locator("#headline")
    other = await b.ready("n2", "i2")
    await other.next_run()
    await expect(headline).to_have_text("2 running on 2 of 2 nodes; nothing waits.")
    await expect(page.locator("#attention")).not_to_contain_text("n2 is offline")
    await other.close()
    await expect(page.locator("#attention")).to_contain_text("n2 is offline since ")
    await expect(headline).to_have_text("1 running on 1 of 2 nodes; nothing waits.")
    calls.append(asyncio.create_task(chat(b)))
    await expect(headline).to_contain_text("1 waits")


async def story(b: Bench, page: Page, file: Path, settings: dict[str, Any]) -> None:
    """A Node comes, its slot is taken, one waits, another Node comes and goes, the capacity is raised, all ends."""
    headline = page.locator("#headline")
    await expect(headline).to_have_text("None of 2 nodes is connected, so requests are refused.")
    node = await b.ready("n1")
    await expect(headline).to_have_text("Idle: nothing runs, nothing waits; 1 of 2 nodes ready.")
    await expect(page.locator("#attention")).to_have_text("n2 is offline.")
    calls = [asyncio.create_task(chat(b))]
    runs = [await node.next_run()]
    calls.append(asyncio.create_task(chat(b)))
    await expect(headline).to_have_text(
        re.compile(r"^1 running on 1 of 2 nodes; 1 waits, oldest [0-9.]+ m?s: n1 is full\.$")
    )
    row = page.get_by_role("list", name="Waiting, oldest first").get_by_role("listitem")
    await expect(row).to_contain_text("1 full, 1 on a node that is offline")
    await page.get_by_role("button", name="Explain").click()
    await expect(page.locator("#explained")).to_contain_text(
        "It would wait at place 2: 1 full, 1 on a node that is offline."
    )
    await node_gone(b, page, calls)
    settings["nodes"][0]["providers"][0]["capacity"] = 2
    await refresh(b, file, settings)
    runs.append(await node.next_run())
    await expect(headline).to_have_text("2 running on 1 of 2 nodes; nothing waits.")
    applied = page.locator("#refresh-list")
    for text in ("applied, revision 2 · 1 change", "nodes[n1].providers[p1].capacity 1 → 2", "1 waiter got a slot."):
        await expect(applied).to_contain_text(text)
    for one in runs:
        await one.answer(b"{}")
    assert sorted(await asyncio.gather(*calls)) == [200, 200, 502]
    await expect(headline).to_contain_text("Idle")
    ended = page.get_by_role("img", name="Ended per second")
    await expect(ended).to_have_attribute("aria-label", re.compile(r"at most [12]\.0$"))
    waits = page.get_by_role("img", name="Wait for a slot")
    await expect(waits).to_have_attribute("aria-label", re.compile("now [0-9.]+ m?s p50, [0-9.]+ m?s p95"))


def test_the_page_tells_what_a_real_edge_goes_through(stage: Stage, tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"
    pool = {"queue_timeout_ms": 0}
    # A slow machine tells this story in minutes, and the Nodes here say nothing of their own accord.
    edge = {"link": {"heartbeat_ms": 60_000, "silence_ms": 600_000}}
    settings = config(HOSTS, admin={"listen": f"127.0.0.1:{free_port()}"}, provider_pool=pool, edge=edge)

    async def work() -> None:
        async with AsyncExitStack() as stack:
            async with bench(settings, file) as b:
                page = await stack.enter_async_context(stage.page(b.admin("/"), now=None))
                await story(b, page, file, settings)
            await expect(page.locator("#connection")).to_contain_text("stale since")
            async with bench(settings, file):
                await expect(page.locator("#connection")).to_contain_text("live")
                await expect(page.locator("#headline")).to_contain_text("None of 2 nodes is connected")

    stage.run(work())


@asynccontextmanager
async def other_site(url: str) -> AsyncIterator[str]:
    """A site of somebody else's, whose page frames the listener; yields its address."""

    async def get_page(request: web.Request) -> web.Response:
        return web.Response(text=f'<!doctype html><title>other</title><iframe src="{url}">', content_type="text/html")

    app = web.Application()
    app.router.add_get("/", get_page)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        # One machine, another site: localhost is not 127.0.0.1 to a browser.
        yield f"http://localhost:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


def test_a_page_of_another_site_neither_reads_nor_frames_it(stage: Stage) -> None:
    async def work() -> None:
        edge = ScriptedEdge(worlds.steady())
        try:
            await edge.start()
            async with other_site(edge.url) as site, stage.page(site, now=None, ignore=True) as page:
                await expect(page).to_have_title("other")
                assert len(page.frames) == 2
                await expect(page.frame_locator("iframe").locator("#headline")).to_have_count(0)
                for path in ("", "events", "explain?model=m"):
                    script = f"fetch('{edge.url}{path}').then(() => 'read', () => 'refused')"
                    assert await page.evaluate(script) == "refused"
            assert (edge.connections, edge.asked) == (0, [])
        finally:
            await edge.stop()

    stage.run(work())
