"""Chromium for the tests of the page. One browser and one loop for all of them; each test has pages of its own.

The browser is the system's (Debian's `chromium`, or what CHROMIUM names) and axe-core is npm's, installed by
`make dashboard-test`; nothing is downloaded here. Whatever a page logs as an error fails its test. Pictures of each
state are left in build/screenshots.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import uvloop
from playwright.async_api import Browser, ConsoleMessage, Page, async_playwright, expect

from tests.browser.scripted_edge import ScriptedEdge
from tests.browser.worlds import Parts

ROOT = Path(__file__).resolve().parents[2]
PICTURES = ROOT / "build" / "screenshots"
AXE = ROOT / "build" / "browser" / "node_modules" / "axe-core" / "axe.min.js"
NOW = "2026-03-02T03:12:40Z"
LIMIT_MS = 15_000
expect.set_options(timeout=LIMIT_MS)

# What Chromium says by itself when an Edge is away; the page has said so too.
EXPECTED = "Failed to load resource: "

T = TypeVar("T")


def chromium() -> str:
    """Where the browser is."""
    found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")
    assert found, "expected Chromium (Debian's package chromium), or its path in CHROMIUM"
    return found


class Stage:
    """A browser, and a loop to use it on."""

    def __init__(self, runner: asyncio.Runner, browser: Browser) -> None:
        self._runner = runner
        self._browser = browser
        self.axe = AXE.read_text(encoding="utf-8")

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a test's coroutine; what the loop could only report fails the test."""
        failures: list[dict[str, Any]] = []
        self._runner.get_loop().set_exception_handler(lambda loop, context: failures.append(context))
        result = self._runner.run(work)
        assert failures == []
        return result

    @asynccontextmanager
    async def page(
        self, url: str, *, width: int = 1280, now: str | None = NOW, ignore: bool = False, **more: Any
    ) -> AsyncIterator[Page]:
        """Open a page whose clock stands at `now`, its timers running on; with None it is the real one.

        `ignore` is for a page that is no page of ours: what it logs is its own.
        """
        context = await self._browser.new_context(
            viewport={"width": width, "height": 800}, timezone_id="UTC", locale="en-US", **more
        )
        context.set_default_timeout(LIMIT_MS)
        page = await context.new_page()
        errors: list[str] = []

        def hear(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not message.text.startswith(EXPECTED):
                errors.append(message.text)

        page.on("console", hear)
        page.on("pageerror", lambda error: errors.append(str(error)))
        try:
            if now is not None:
                await page.clock.set_fixed_time(now)
            await page.goto(url)
            yield page
        finally:
            await context.close()
        assert ignore or errors == []

    @asynccontextmanager
    async def scripted(self, parts: Parts, **more: Any) -> AsyncIterator[tuple[ScriptedEdge, Page]]:
        """A scripted Edge, and a page that has its first figures. Nothing but reading may ever be asked of it."""
        edge = ScriptedEdge(parts)
        try:
            await edge.start()
            async with self.page(edge.url, **more) as page:
                await page.locator("#main").wait_for()
                yield edge, page
        finally:
            await edge.stop()
        assert {method for method, _ in edge.requests} <= {"GET", "HEAD"}


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    """The browser of this run."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        manager = async_playwright()
        playwright = runner.run(manager.__aenter__())
        # Without a sandbox where this is root, as in containers: the only pages are our own.
        options = ["--no-sandbox"] if os.geteuid() == 0 else []
        try:
            browser = runner.run(playwright.chromium.launch(executable_path=chromium(), args=options))
            yield Stage(runner, browser)
            runner.run(browser.close())
        finally:
            runner.run(manager.__aexit__(None, None, None))
