"""How programs of the cli adapter end, and that nothing of them is left."""

from __future__ import annotations

import asyncio
import signal

import pytest

from iop_fast.config.schema import CliProfile
from iop_fast.node.adapters.cli import CliAdapter
from iop_fast.node.health import State
from iop_fast.node.registry import Router
from iop_fast.seams import End
from tests.fakes.cli_tools import tool
from tests.integration.cli_bench import CANCELLED, OK, RunEnd, TaskSink, chat, cli_bench, secretive, surroundings
from tests.integration.node_bench import on_uvloop, until
from tests.unit.node.worlds import payload, provider, settings

# How it ends.


@on_uvloop
async def test_exit_codes_before_and_after_output() -> None:
    """B29, B28: a program's failure is the request's, and says nothing of its provider's health."""
    async with cli_bench(tool("fail", "3", "\x1b[31mbad\x1b[0m thing\nworse\x07\n")) as bench:
        end = (await bench.ask()).end
        assert end == End(RunEnd.REFUSED, "the program exited with code 3: bad thing; worse\ufffd", None, 502)
        assert bench.adapter.health.state is State.UP
    async with cli_bench(tool("fail", "1", "oops", "some text")) as bench:
        sink = await bench.ask()
        assert sink.text == "some text"
        assert sink.end == End(RunEnd.UPSTREAM_ERROR, "the program exited with code 1: oops", None)
        assert sink.finish is None


@on_uvloop
async def test_killed_by_a_signal() -> None:
    async with cli_bench(tool("die", str(int(signal.SIGSEGV)))) as bench:
        assert (await bench.ask()).end == End(RunEnd.REFUSED, "the program was killed by SIGSEGV", None, 502)
    async with cli_bench(tool("die", str(int(signal.SIGTERM)), "text")) as bench:
        assert (await bench.ask()).end == End(RunEnd.UPSTREAM_ERROR, "the program was killed by SIGTERM", None)


@on_uvloop
async def test_secrets_never_stand_in_an_error() -> None:
    """B29: standard error is capped and free of what the environment held."""
    command = tool("fail", "1", "x" * 20_000 + "\nbad key key-of-the-tool for /home/x")
    async with cli_bench(command, environ=secretive(), pass_environment=("TOOL_KEY",)) as bench:
        end = (await bench.ask()).end
        assert end is not None
        assert end.detail.endswith("bad key [TOOL_KEY] for /home/x")
        assert len(end.detail) < 600
    async with cli_bench(tool("fail", "1", "secret"), stderr_bytes_max=0) as bench:
        end = (await bench.ask()).end
        assert end is not None
        assert end.detail == "the program exited with code 1"


@pytest.mark.parametrize(
    ("silence", "expected"),
    [({"first_byte_ms": 100}, "100 ms"), ({"run_ms_max": 150, "first_byte_ms": 60_000}, "ran for 150 ms")],
)
@on_uvloop
async def test_time_limits(silence: dict[str, int], expected: str) -> None:
    async with cli_bench(["sleep", "3600"], **silence) as bench:
        end = (await bench.ask()).end
        assert end is not None
        assert end.status == RunEnd.UPSTREAM_TIMEOUT
        assert expected in end.detail


@on_uvloop
async def test_silence_after_output() -> None:
    """B21."""
    async with cli_bench(tool("stubborn"), idle_ms=100, first_byte_ms=60_000) as bench:
        sink = await bench.ask()
        assert sink.text == "I stay"
        assert sink.end == End(RunEnd.UPSTREAM_TIMEOUT, "the program printed nothing for 100 ms", None)


@on_uvloop
async def test_progress_on_standard_error_is_no_silence() -> None:
    async with cli_bench(tool("mumble", "0.6"), first_byte_ms=10_000, idle_ms=250) as bench:
        assert (await bench.ask()).text == "answer"


@on_uvloop
async def test_a_program_that_reads_nothing_of_5_mb() -> None:
    """B29: a broken pipe is normal, and a full one hangs nobody."""
    async with cli_bench(tool("deaf", "0.1")) as bench:
        sink = await bench.ask(chat("x" * 5_000_000))
        assert (sink.text, sink.end) == ("heard nothing", OK)


@on_uvloop
async def test_5_mb_through_a_program() -> None:
    async with cli_bench(tool("say")) as bench:
        text = "añ" * 1_700_000
        assert (await bench.ask(chat(text))).text == text


@on_uvloop
async def test_output_that_is_closed_early_is_no_end() -> None:
    async with cli_bench(tool("mute", "0.3")) as bench:
        sink = bench.start()
        await sink.said("said")
        await asyncio.sleep(0.1)
        assert sink.end is None
        assert await sink.ended() == OK


# What is left: nothing.


@on_uvloop
async def test_a_child_that_holds_the_pipes_delays_nothing_for_long() -> None:
    """B29."""
    async with cli_bench(tool("holder")) as bench:
        sink = bench.start()
        await sink.ended(limit_s=2.0)
        assert (sink.text, sink.end) == ("done", OK)
        assert bench.marked() == []


@on_uvloop
async def test_what_a_child_still_says_within_a_moment_counts() -> None:
    async with cli_bench(tool("straggler")) as bench:
        assert (await bench.ask()).text == "first\nlast"


@pytest.mark.parametrize("name", ["stubborn", "family"])
@on_uvloop
async def test_cancel_ends_the_whole_group(name: str) -> None:
    """B29: also one that ignores SIGTERM, in less than 2 s."""
    async with cli_bench(tool(name)) as bench:
        sink = bench.start()
        assert sink.handle is not None
        await until(lambda: sink.text != "", "it runs")
        assert len(bench.marked()) > 1
        sink.handle.cancel()
        sink.handle.cancel()
        assert await sink.ended(limit_s=2.0) == CANCELLED
        assert bench.marked() == []
        assert bench.children() == []


@on_uvloop
async def test_a_program_that_ends_at_sigterm_is_not_waited_for_longer() -> None:
    async with cli_bench(["sleep", "3600"], kill_after_ms=60_000) as bench:
        sink = bench.start()
        assert sink.handle is not None
        await until(lambda: "taken" in sink.calls, "it runs")
        sink.handle.cancel()
        assert await sink.ended(limit_s=2.0) == CANCELLED


@on_uvloop
async def test_a_program_that_is_stopped_ends_too() -> None:
    async with cli_bench(["sh", "-c", "echo here; kill -STOP $$"], kill_after_ms=60_000) as bench:
        sink = bench.start()
        assert sink.handle is not None
        await until(lambda: [state for _, state in bench.children()] == ["T"], "it has stopped")
        sink.handle.cancel()
        assert await sink.ended(limit_s=2.0) == CANCELLED


@on_uvloop
async def test_cancel_before_the_start() -> None:
    async with cli_bench(["sleep", "3600"]) as bench:
        sink = bench.start()
        assert sink.handle is not None
        sink.handle.cancel()
        assert await sink.ended(limit_s=2.0) == CANCELLED
        assert sink.calls == ["end"]


@pytest.mark.parametrize("more", [(), ("--hidden",)])
@on_uvloop
async def test_a_daemon_is_found_and_ended(more: tuple[str, ...]) -> None:
    async with cli_bench(tool("escapee", "0.1", *more)) as bench:
        for _ in range(3):
            sink = await bench.ask()
            assert sink.text == "done"
            assert bench.children() == []
            assert bench.marked() == []


@on_uvloop
async def test_the_daemon_of_one_run_is_not_anothers() -> None:
    async with cli_bench([*tool("escapee"), "{last_user}"], input="argument") as bench:
        long, short = bench.start(chat("1.0")), bench.start(chat("0.3"))
        await until(lambda: len(bench.marked()) >= 4, "two programs and two daemons")
        await short.ended()
        assert long.end is None
        assert len(bench.marked()) == 2, "the other run and its daemon"
        await long.ended()
        assert bench.marked() == []


@on_uvloop
async def test_a_replaced_adapter_lets_its_program_finish() -> None:
    """B29: swapped by a refresh while it runs; its spawner goes when the last run has ended."""
    profile = CliProfile(id="p", command=tuple(tool("trickle", "10", "30")))
    router = Router(surroundings(profile))
    entry = provider(adapter_type="cli", settings=settings("", profile="p"))
    await router.apply(payload(entry))
    backend = router.current.providers["p1"].backend
    adapter = backend.adapter
    assert isinstance(adapter, CliAdapter)
    sink = TaskSink()
    run = InRegistry()
    backend.enter(run)
    adapter.run_adapter(entry).start(chat(), sink)
    await sink.said("3")
    await router.apply(payload())
    assert router.retired_count == 1
    assert await sink.ended() == OK
    assert sink.text.endswith("29")
    backend.leave(run)
    await until(lambda: adapter.spawner.pid is None, "the spawner has gone")
    await until(lambda: router.retired_count == 0, "the adapter is closed")
    await router.close()


class InRegistry:
    """A run, as far as a registry knows of runs."""

    def cut(self, detail: str) -> None:
        raise AssertionError(detail)
