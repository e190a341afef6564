"""The page in each state: nothing that axe-core finds, nothing wider than a telephone, and a picture to look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
from playwright.async_api import Page, expect

from tests.browser import worlds
from tests.browser.conftest import PICTURES, Stage
from tests.browser.scripted_edge import ScriptedEdge
from tests.browser.worlds import Parts

STATES: list[Callable[[], Parts]] = [
    worlds.steady,
    worlds.idle,
    worlds.empty,
    worlds.node_gone,
    worlds.queue_full,
    worlds.big,
    worlds.hostile,
]
# Those of which pictures are taken, and what axe-core looks for in them: everything, or what another look changes.
EVERYTHING = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LOOKS: list[tuple[Literal["light", "dark"], int, list[str]]] = [
    ("light", 1280, EVERYTHING),
    ("dark", 1280, []),
    ("light", 360, []),
    ("dark", 360, ["color-contrast", "target-size", "scrollable-region-focusable"]),
]


async def violations(stage: Stage, page: Page, rules: list[str]) -> list[str]:
    """What axe-core finds, with the first place of each."""
    await page.evaluate(stage.axe)
    found = await page.evaluate("(rules) => axe.run(document, { runOnly: rules })", rules)
    assert len(found["passes"]) >= min(2, len(rules))
    return [f"{one['id']}: {one['help']}: {one['nodes'][0]['html']}" for one in found["violations"]]


async def look(stage: Stage, page: Page, name: str) -> None:
    """Take the pictures of a state and judge it."""
    for scheme, width, rules in LOOKS:
        await page.emulate_media(color_scheme=scheme)
        await page.set_viewport_size({"width": width, "height": 800})
        await page.screenshot(path=PICTURES / f"{name}-{scheme}-{width}.png", full_page=True)
        if rules:
            assert await violations(stage, page, rules) == []
        assert await page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, f"{width} px: it scrolls"


async def busy_minutes(edge: ScriptedEdge, page: Page) -> None:
    """Let the page see some minutes pass."""
    parts = edge.parts
    for at in range(0, 300, 5):
        some = 2 + at // 20 % 5
        firsts = worlds.counts(le_500=some, le_1000=1 + at % 2)
        waits = worlds.counts(le_10=some, **({"le_5000": 2} if 120 < at < 220 else {}))
        refused = {"queue_full": 2} if 150 < at < 180 else {}
        await edge.change(
            rates=worlds.rates(at, some * 190, ok=some, **refused),
            durations=worlds.durations(at, waits, firsts),
            providers={**parts["providers"], "in_flight": 8 + at // 30 % 5},
        )
        await page.clock.set_fixed_time(f"2026-03-02T03:{12 + (40 + at) // 60:02}:{(40 + at) % 60:02}Z")
    await edge.change(providers=parts["providers"])


@pytest.mark.parametrize("state", STATES, ids=lambda state: str(state.__name__))
def test_a_state_is_accessible_and_fits(stage: Stage, state: Callable[[], Parts]) -> None:
    async def work() -> None:
        async with stage.scripted(state()) as (edge, page):
            if state is worlds.steady:
                await busy_minutes(edge, page)
            await look(stage, page, state.__name__.replace("_", "-"))

    stage.run(work())


def test_an_explanation_is_accessible_and_fits(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (edge, page):
            edge.explanation = (200, worlds.explanation())
            await page.get_by_role("button", name="Explain").click()
            await expect(page.locator("#explained table")).to_be_visible()
            await look(stage, page, "explained")

    stage.run(work())


def test_a_stale_page_is_accessible_and_fits(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (edge, page):
            await edge.stop()
            await expect(page.locator("#lost")).to_be_visible()
            await look(stage, page, "stale")

    stage.run(work())
