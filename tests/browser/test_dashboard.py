"""What the page does: says what is so, follows what changes, says when it cannot, and is used without a mouse."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from playwright.async_api import Page, expect

from tests.browser import worlds
from tests.browser.conftest import LIMIT_MS, Stage
from tests.browser.scripted_edge import ScriptedEdge
from tests.browser.worlds import node, provider, queue, rates, snapshot, waiter


async def said(page: Page, view: worlds.Parts) -> tuple[str, list[str]]:
    """The sentence and the items of attention that the page's own code makes of a snapshot."""
    script = """async (view) => {
        const { sentence, attention } = await import("./dashboard/headline.js");
        const history = { lastMinute: () => ({ failures: {}, ended: 0 }) };
        const text = sentence(view).map((part) => (typeof part === "string" ? part : part[1])).join("");
        return [text, attention(view, history, { since: () => "" }).map((one) => one.text)];
    }"""
    text, items = await page.evaluate(script, view)
    return text, items


def running(count: int = 1) -> list[worlds.Row]:
    return [node("a", runs=count), node("b")]


DRAINING = {"edge": {**snapshot([], [])["edge"], "is_draining": True}}

SENTENCES: list[tuple[worlds.Parts, str]] = [
    (worlds.steady(), "12 running on 3 of 4 nodes; 5 wait, oldest 4.2 s: gpu-a is full."),
    (worlds.idle(), "Idle: nothing runs, nothing waits; 2 of 2 nodes ready."),
    (worlds.empty(), "None of 2 nodes is connected, so requests are refused."),
    (worlds.queue_full(), "12 running on 2 of 2 nodes; 64 wait, oldest 28 s: qwen-a and llama-b are full."),
    (snapshot([], []), "No node is configured, so every request is refused."),
    (snapshot([node("a", "offline")], []), "The one node is not connected, so requests are refused."),
    (snapshot(running(), [provider("a", "p", 4, 1)]), "1 running on 1 of 2 nodes; nothing waits."),
    (
        snapshot(
            running(),
            [provider("a", "p", 4, 1, long_capacity=1, long_in_flight=1, queued=1)],
            queue=queue([waiter(1, 65_000, "m", "long")]),
        ),
        "1 running on 1 of 2 nodes; 1 waits, oldest 1 min 5 s: no free long slot on p.",
    ),
    (
        snapshot(running(0), [provider("a", "p", 4)], queue=queue([waiter(1, 20, "m", why="1 disabled")])),
        "Nothing runs; 1 waits, oldest 20 ms: 1 disabled.",
    ),
    (
        snapshot(running(3), [provider("a", "p", 4, 3)], **DRAINING),
        "This Edge shuts down: 3 still running on 1 of 2 nodes.",
    ),
]


def test_the_sentence_says_what_is_so(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (_, page):
            await expect(page.locator("#headline")).to_have_text(SENTENCES[0][1])
            for view, expected in SENTENCES:
                assert (await said(page, view))[0] == expected

    stage.run(work())


def test_what_stands_out_is_named(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (_, page):
            assert (await said(page, worlds.steady()))[1] == []
            assert (await said(page, worlds.node_gone()))[1] == [
                "gpu-b is offline.",
                "gpu-c is shutting down.",
                "llama-d is down: unreachable: connect to 127.0.0.1:8000: refused.",
                "gpu-d does not run the current configuration yet.",
            ]
            assert (await said(page, worlds.queue_full()))[1] == [
                "The queue is full (64): what finds no free slot gets 429."
            ]
            down = [provider("a", f"p{at}", 1, state="down", reason="refused") for at in range(5)]
            assert (await said(page, snapshot([node("a")], down)))[1] == ["p0, p1 and 3 more are down."]
            refused = snapshot([node("a")], [], refreshes=worlds.REFRESHES[1:])
            assert (await said(page, refused))[1] == [
                "The last refresh was not applied: restart required. Revision 12 runs on."
            ]

    stage.run(work())


async def until(page: Page, condition: str) -> None:
    """Poll a condition of a page whose own timers stand still."""
    deadline = asyncio.get_running_loop().time() + LIMIT_MS / 1000
    while not await page.evaluate(condition):
        assert asyncio.get_running_loop().time() < deadline, f"not so within {LIMIT_MS} ms: {condition}"
        await asyncio.sleep(0.01)


class Times:
    """A page whose clock goes as the test says. What the Edge says has arrived before the clock goes on."""

    LISTEN = """
        const Source = EventSource;
        window.heard = { snapshot: 0, change: 0, quiet: 0 };
        window.EventSource = class extends Source {
            constructor(url) {
                super(url);
                for (const kind in window.heard) this.addEventListener(kind, () => window.heard[kind]++);
            }
        };
    """

    def __init__(self, edge: ScriptedEdge, page: Page) -> None:
        self.edge, self.page = edge, page
        self.changes = self.quiets = 0

    @classmethod
    async def begin(cls, edge: ScriptedEdge, page: Page) -> Times:
        """Load the page anew, under such a clock."""
        await page.clock.install()
        await page.add_init_script(cls.LISTEN)
        await page.reload()
        await until(page, "window.heard.snapshot === 1")
        await page.clock.run_for(100)
        return cls(edge, page)

    async def change(self, **parts: Any) -> None:
        self.changes += 1
        await self.edge.change(**parts)
        await until(self.page, f"window.heard.change === {self.changes}")

    async def go(self, seconds: int) -> None:
        """Let so many seconds pass, in which the Edge says that nothing differs as often as it does."""
        for second in range(1, seconds + 1):
            await self.page.clock.run_for(1_000)
            if second % 5 == 0:
                self.quiets += 1
                await self.edge.quiet()
                await until(self.page, f"window.heard.quiet === {self.quiets}")


# What the Edge sends is text


def test_hostile_names_are_text_wherever_they_stand(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.hostile()) as (edge, page):
            edge.explanation = (404, {"error": {"message": worlds.HOSTILE}})
            await page.get_by_role("button", name="Explain").click()
            await expect(page.locator("#explained")).to_have_text(worlds.HOSTILE)
            edge.explanation = (
                200,
                worlds.explanation(
                    why=worlds.HOSTILE, candidates=[worlds.candidate(*[worlds.HOSTILE] * 4, served=worlds.HOSTILE)]
                ),
            )
            await page.get_by_role("button", name="Explain").click()
            await expect(page.locator("#explained table")).to_contain_text(worlds.HOSTILE)
            for place in ("#edge", "#about", "#attention", "#headline", "#queue", "#nodes", "#refresh-list"):
                await expect(page.locator(place)).to_contain_text("<img src=x onerror=")
            assert edge.asked[0]["model"] == worlds.HOSTILE
            assert await page.evaluate("document.querySelectorAll('img, script:not([src]), iframe, style').length") == 0
            assert await page.evaluate("window.owned") is None

    stage.run(work())


def test_the_policy_of_the_page_stops_markup_even_from_within(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (edge, page):
            refused = """() => {
                try { document.body.innerHTML = "<b>x</b>"; } catch (error) { return error.name; }
            }"""
            with pytest.raises(AssertionError, match="TrustedHTML"):
                async with stage.page(edge.url) as other:
                    assert await other.evaluate(refused) == "TypeError"
            with pytest.raises(AssertionError, match="Content Security Policy"):
                async with stage.page(edge.url) as other:
                    await other.evaluate("fetch('http://127.0.0.1:9/').catch(() => null)")
            await expect(page.locator("#headline")).to_contain_text("running")

    stage.run(work())


# Live, and not


def test_changes_are_followed(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (edge, page):
            await edge.change(queue=queue([]), edge={**edge.parts["edge"], "name": "main"})
            await expect(page.locator("#headline")).to_have_text("12 running on 3 of 4 nodes; nothing waits.")
            await expect(page.locator("#queue-body")).to_contain_text("Nobody waits.")
            await expect(page).to_have_title("12 run · main")
            await edge.change(queue=queue([waiter(1, 29_000, "qwen3-8b", "long")]))
            row = page.get_by_role("list", name="Waiting, oldest first").get_by_role("listitem")
            await expect(row).to_have_text("129 s for qwen3-8b long1.0 s left · 2 full")
            await expect(page).to_have_title("1 wait, 12 run · main")
            await edge.change(rates=rates(1, 900, ok=20, queue_full=3, model_not_found=5))
            await expect(page.locator("#attention")).to_have_text(
                "Of 28 requests in the last minute failed: 3 queue full."
            )
            plot = page.get_by_role("img", name="Ended per second")
            await expect(plot).to_have_attribute(
                "aria-label", re.compile(r"now [0-9.]+ /s, [0-9.]+ failed; at most 28")
            )

    stage.run(work())


def test_a_page_comes_again_by_itself_and_says_meanwhile_that_it_is_stale(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (edge, page):
            connection = page.locator("#connection")
            await expect(connection).to_have_text("live · 03:12:40")
            await edge.stop()
            await expect(connection).to_have_text("stale since 03:12:40")
            await expect(page.locator("#lost-text")).to_contain_text("the Edge does not answer")
            await expect(page).to_have_title("stale · edge-main")
            await expect(page.locator("html")).to_have_attribute("data-stale", "")
            edge.parts = worlds.idle()
            edge.parts["edge"]["started_at"] = "2026-03-02T03:12:39.000+00:00"
            await edge.start()
            await expect(connection).to_have_text("live · 03:12:40")
            await expect(page.locator("#headline")).to_contain_text("Idle")
            await expect(page.locator("#lost")).to_be_hidden()
            assert edge.connections == 2

    stage.run(work())


def test_a_connection_that_hangs_is_found_out_and_a_quiet_one_is_not(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady(), now=None) as (edge, page):
            times = await Times.begin(edge, page)
            await times.go(20)
            await expect(page.locator("#connection")).to_contain_text("live")
            edge.is_mute = True
            await page.clock.run_for(14_000)
            await expect(page.locator("#connection")).to_contain_text("stale since")
            edge.is_mute = False
            await page.get_by_role("button", name="Try now").click()
            await until(page, "window.heard['snapshot'] === 2")
            await page.clock.run_for(100)
            await expect(page.locator("#lost")).to_be_hidden()

    stage.run(work())


def test_a_page_that_finds_no_room_says_so(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (edge, page):
            edge.is_busy = True
            await edge.stop()
            await edge.start()
            await expect(page.locator("#lost-text")).to_contain_text("has as many readers as it takes")
            edge.is_busy = False
            await expect(page.locator("#lost")).to_be_hidden()

    stage.run(work())


# A large fleet


def test_a_large_fleet_is_summed_up_and_found_by_the_filter(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.big()) as (_, page):
            drawn = page.locator(".provider")
            await expect(drawn).to_have_count(120)
            await expect(page.locator("#filter-rest")).to_have_text(
                "Not drawn: 80 providers on 16 nodes (80 up), 540 of 1,040 slots taken. The filter finds them."
            )
            await expect(page.locator(".node").filter(has_text="gpu-0199")).to_be_visible()
            await page.get_by_label("Filter").fill("GPU-019")
            await expect(drawn).to_have_count(10)
            await expect(page.locator("#filter-found")).to_have_text("10 providers on 10 nodes.")
            await page.get_by_label("Filter").fill("down")
            await expect(drawn).to_have_count(1)
            await page.get_by_label("Filter").fill("node-007")
            await expect(drawn).to_have_count(5)
            await page.get_by_label("Filter").fill("nothing like it")
            await expect(drawn).to_have_count(0)

    stage.run(work())


def test_one_change_in_a_large_fleet_touches_little(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.big()) as (edge, page):
            await page.evaluate(
                """() => {
                    window.touched = new Set();
                    const every = { subtree: true, childList: true, attributes: true, characterData: true };
                    const note = (all) => all.forEach((one) => window.touched.add(one.target));
                    new MutationObserver(note).observe(document.getElementById("nodes"), every);
                }"""
            )
            parts: dict[str, Any] = edge.parts["providers"]
            rows = [dict(row) for row in parts["rows"]]
            rows[0].update(in_flight=3)
            await edge.change(providers={**parts, "rows": rows})
            await expect(page.locator(".provider").first.locator(".count")).to_have_text("3/4")
            assert await page.evaluate("window.touched.size") <= 6

    stage.run(work())


# By keyboard, and read aloud


async def focused(page: Page) -> str:
    """What has the focus; fails where it cannot be seen."""
    found = await page.evaluate(
        """() => {
            const one = document.activeElement, style = getComputedStyle(one), box = one.getBoundingClientRect();
            const isOutlined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
            return [one.id || one.textContent.trim(), isOutlined && box.top >= 0 && box.width > 0];
        }"""
    )
    assert found[1], f"the focus on {found[0]!r} cannot be seen"
    return str(found[0])


@pytest.mark.parametrize("width", [1280, 360])
def test_everything_is_reached_by_keyboard_in_the_order_it_stands(stage: Stage, width: int) -> None:
    async def work() -> None:
        world = {**worlds.big(), "refreshes": worlds.REFRESHES}
        async with stage.scripted(world, width=width) as (edge, page):
            edge.explanation = (200, worlds.explanation())
            walked = []
            for _ in range(6):
                await page.keyboard.press("Tab")
                walked.append(await focused(page))
            assert walked == ["Skip to what runs and waits", "model", "tokens", "Explain", "2 more", "filter"]
            summary = page.locator("summary")
            await summary.focus()
            await page.keyboard.press("Enter")
            await expect(page.locator("details")).to_have_attribute("open", "")
            await page.get_by_label("Model", exact=True).focus()
            await page.keyboard.press("Control+A")
            await page.keyboard.type("model-007")
            await page.keyboard.press("Tab")
            await page.keyboard.type("2000")
            await page.keyboard.press("Enter")
            await expect(page.locator("#explained")).to_contain_text("It would wait at place 6: 1 full")
            assert edge.asked == [{"model": "model-007", "tokens": "2000"}]

    stage.run(work())


def test_the_skip_link_leads_to_what_runs_and_waits(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (_, page):
            await page.keyboard.press("Tab")
            await expect(page.get_by_role("link", name="Skip to what runs and waits")).to_be_in_viewport()
            await page.keyboard.press("Enter")
            await expect(page.locator("#main")).to_be_focused()
            await page.keyboard.press("Tab")
            await expect(page.get_by_label("Model", exact=True)).to_be_focused()

    stage.run(work())


def test_an_explanation_names_each_candidate_and_its_reason(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (edge, page):
            await expect(page.get_by_label("Model", exact=True)).to_have_value(
                "llama-70b"
            )  # the one that waits longest
            edge.explanation = (200, worlds.explanation())
            await page.get_by_label("Model", exact=True).fill("qwen3-8b")
            await page.get_by_role("button", name="Explain").click()
            rows = page.get_by_role("table", name="Providers of qwen3-8b").get_by_role("row")
            await expect(rows).to_have_count(4)
            await expect(rows.nth(1)).to_have_text("qwen-a on gpu-a as Qwen/Qwen3-8B6/6 long 1/2full")
            await expect(rows.nth(2)).to_contain_text("on a node that is offline")
            edge.explanation = (404, {"error": {"message": "no model 'x' is configured"}})
            await page.get_by_label("Model", exact=True).fill("x")
            await page.get_by_role("button", name="Explain").click()
            await expect(page.locator("#explained")).to_have_text("no model 'x' is configured")
            await edge.stop()
            await page.get_by_role("button", name="Explain").click()
            await expect(page.locator("#explained")).to_have_text("The Edge does not answer.")
            assert edge.asked[0] == {"model": "qwen3-8b", "tokens": "0"}

    stage.run(work())


def test_what_is_read_aloud_names_everything(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady()) as (_, page):
            fleet = await page.get_by_role("region", name="Fleet").aria_snapshot()
            assert 'heading "gpu-a rack 2" [level=3]' in fleet
            assert "qwen-a vllm 6 of 6 slots taken, 1 of 2 long" in fleet
            assert "mlx lmstudio 0 of 2 slots taken" in fleet
            assert "disabled" in fleet
            waiting = await page.get_by_role("list", name="Waiting, oldest first").aria_snapshot()
            assert "1 4.2 s for llama-70b long 2 full" in waiting
            assert await page.get_by_role("img").count() == 4
            assert await page.get_by_role("heading", level=2).count() == 5

    stage.run(work())


def test_what_is_spoken_is_news_and_not_numbers(stage: Stage) -> None:
    async def work() -> None:
        async with stage.scripted(worlds.steady(), now=None) as (edge, page):
            times = await Times.begin(edge, page)
            await expect(page.get_by_role("status").first).to_contain_text("12 running")
            await page.evaluate(
                """() => {
                    const spoken = document.getElementById("spoken");
                    window.spoken = [];
                    const note = () => window.spoken.push(spoken.textContent);
                    new MutationObserver(note).observe(spoken, { childList: true, characterData: true, subtree: true });
                }"""
            )
            for age in range(12):
                await times.change(queue=queue([waiter(1, age * 1000, "qwen3-8b")]))
                await times.go(1)
            assert await page.evaluate("window.spoken") == []
            gone = worlds.node_gone()
            await times.change(nodes=gone["nodes"], providers=gone["providers"])
            await times.go(12)
            (told,) = await page.evaluate("window.spoken")
            assert told.startswith("gpu-b is offline since ")
            assert told.endswith(" And 1 more.")
            back = worlds.steady()
            anew = {**back["edge"], "started_at": "2026-03-02T03:12:39.000+00:00"}
            await times.change(nodes=back["nodes"], providers=back["providers"], edge=anew)
            await times.go(12)
            _, restart, over = await page.evaluate("window.spoken")
            assert restart == "The Edge was started anew."
            assert over.startswith("Over: gpu-b is offline since ")

    stage.run(work())


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_nothing_moves(stage: Stage, motion: str) -> None:
    async def work() -> None:
        script = """() => [...document.querySelectorAll("*")].filter((one) => {
            const style = getComputedStyle(one);
            return style.animationName !== "none" || style.transitionDuration.split(", ").some((time) => time !== "0s");
        }).length"""
        async with stage.scripted(worlds.steady(), reduced_motion=motion) as (_, page):
            assert await page.evaluate(script) == 0

    stage.run(work())
