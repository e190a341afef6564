"""The cli adapter with real programs: what they are told and given, and what becomes of their output."""

from __future__ import annotations

import asyncio
import json
import os
import stat
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from iop_fast.node.adapters import BrokenAdapter
from iop_fast.node.health import State
from iop_fast.seams import End, Usage
from tests.fakes.cli_tools import tool
from tests.integration.cli_bench import OK, RunEnd, chat, cli_bench, exists, secretive, task
from tests.integration.node_bench import on_uvloop, until

# What goes in.


@on_uvloop
async def test_the_prompt_on_standard_input() -> None:
    async with cli_bench(tool("say")) as bench:
        sink = await bench.ask(chat("hello\nwörld\n\n"))
        assert (sink.text, sink.finish, sink.end) == ("hello\nwörld", "stop", OK)
        assert sink.calls == ["taken", "text", "finish", "end"]


@on_uvloop
async def test_the_prompt_as_an_argument() -> None:
    command = [*tool("say"), "--", "{system}", "{prompt}", "{model}", "{last_user}", "x={model}"]
    async with cli_bench(command, input="argument") as bench:
        sink = await bench.ask(task(("system", "be brief"), ("user", "{model} $HOME; `ls`"), model="m-1"))
        assert sink.text == "-- be brief {model} $HOME; `ls` m-1 {model} $HOME; `ls` x=m-1"


@on_uvloop
async def test_a_template_renders_the_messages() -> None:
    async with cli_bench(tool("say"), template="<{system}|{last_user}|{model}|{other}>\n{prompt}") as bench:
        sink = await bench.ask(task(("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "{prompt}")))
        assert sink.text == "<s|{prompt}|served|{other}>\nUser: a\n\nAssistant: b\n\nUser: {prompt}\n\nAssistant:"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["{prompt}"], " --evil"),
        (["--", "{prompt}"], "-- --evil"),
        (["-p={prompt}"], "-p=--evil"),
        (["{system}{prompt}"], " --evil"),
    ],
)
@on_uvloop
async def test_a_prompt_is_never_an_option(command: list[str], expected: str) -> None:
    async with cli_bench([*tool("say"), *command], input="argument") as bench:
        assert (await bench.ask(chat("--evil"))).text == expected


@on_uvloop
async def test_a_model_that_looks_like_an_option_is_refused() -> None:
    async with cli_bench([*tool("say"), "{model}"]) as bench:
        end = (await bench.ask(task(("user", "x"), model="-rf"))).end
        assert end is not None
        assert (end.status, end.refusal_status) == (RunEnd.REFUSED, 400)
        assert bench.adapter.spawner.pid is None, "refused before anything was started"


@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [("a\0b", 400, "NUL"), ("x" * 200_000, 413, "too long for an argument"), ("é" * 70_000, 413, "140000 bytes")],
)
@on_uvloop
async def test_what_no_argument_can_hold_is_refused_before_a_start(text: str, status: int, expected: str) -> None:
    async with cli_bench([*tool("say"), "{prompt}"], input="argument") as bench:
        sink = await bench.ask(chat(text))
        assert sink.end is not None
        assert (sink.end.status, sink.end.refusal_status) == (RunEnd.REFUSED, status)
        assert expected in sink.end.detail
        assert sink.calls == ["end"]
        assert bench.adapter.spawner.pid is None


@on_uvloop
async def test_the_longest_argument_fits() -> None:
    async with cli_bench([*tool("say"), "{prompt}"], input="argument") as bench:
        sink = await bench.ask(chat("x" * (32 * os.sysconf("SC_PAGE_SIZE") - 1)))
        assert sink.end == OK
        assert len(sink.text) == 32 * os.sysconf("SC_PAGE_SIZE") - 1


# What a program gets.


@on_uvloop
async def test_the_environment_is_an_allow_list() -> None:
    keys: dict[str, Any] = {"pass_environment": ("TOOL_KEY",), "environment": {"MODE": "fast"}}
    async with cli_bench([*tool("say"), "--world"], environ=secretive(), **keys) as bench:
        environment = json.loads((await bench.ask()).text)["environment"]
        mark = environment.pop("IOP_RUN")
        environment.pop("TMPDIR")
        # Set by the C locale of Python's own start, not by us.
        environment.pop("LC_CTYPE", None)
        assert environment == {
            "PATH": os.environ["PATH"],
            "HOME": "/home/x",
            "LANG": "C.UTF-8",
            "TOOL_KEY": "key-of-the-tool",
            "MODE": "fast",
        }
        assert mark.startswith(f"{os.getpid()}-")
        traced = json.loads((await bench.ask(chat()._replace(traceparent="00-1-2-01"))).text)["environment"]
        assert traced["TRACEPARENT"] == "00-1-2-01"


@on_uvloop
async def test_a_directory_of_its_own_that_is_gone_afterwards() -> None:
    async with cli_bench([*tool("say"), "--world"]) as bench:
        first, second = [json.loads((await bench.ask()).text) for _ in range(2)]
        for world in (first, second):
            assert world["directory"] == world["environment"]["TMPDIR"]
            assert (world["listing"], world["mode"]) == ([], "0o700")
            assert not exists(world["directory"])
        assert first["directory"] != second["directory"]


@on_uvloop
async def test_what_a_program_leaves_in_its_directory_goes_with_it(tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("x")
    os.chmod(tmp_path, 0o755)
    async with cli_bench(tool("litter", str(tmp_path))) as bench:
        sink = await bench.ask()
        assert Path(sink.text).parent == Path(tempfile.gettempdir())
        await until(lambda: not exists(sink.text), "the directory is gone")
    assert (tmp_path / "kept").read_text() == "x"
    assert stat.S_IMODE(os.stat(tmp_path).st_mode) == 0o755


@on_uvloop
async def test_a_fixed_directory_stays(tmp_path: Path) -> None:
    async with cli_bench([*tool("say"), "--world"], working_directory=str(tmp_path)) as bench:
        world = json.loads((await bench.ask()).text)
        assert world["directory"] == str(tmp_path)
        assert world["environment"]["TMPDIR"] == tempfile.gettempdir()
    assert exists(tmp_path)


@on_uvloop
async def test_no_descriptors_and_a_session_of_its_own() -> None:
    async with cli_bench([*tool("say"), "--world"]) as bench:
        kept = os.open("/dev/null", os.O_RDONLY)
        try:
            world = json.loads((await bench.ask(chat("in"))).text)
        finally:
            os.close(kept)
        session, group, pid = world["session"]
        assert session == group == pid
        assert (world["fds"], world["stdin"]) == ([], "in")


@on_uvloop
async def test_resource_limits() -> None:
    keys: dict[str, Any] = {
        "cpu_seconds_max": 7,
        "memory_bytes_max": 1 << 30,
        "open_files_max": 99,
        "file_bytes_max": 4096,
        "processes_max": 5000,
    }
    async with cli_bench([*tool("say"), "--world"], **keys) as bench:
        limits = json.loads((await bench.ask()).text)["limits"]
        assert limits == {
            "RLIMIT_CORE": [0, 0],
            "RLIMIT_CPU": [7, 7],
            "RLIMIT_AS": [1 << 30, 1 << 30],
            "RLIMIT_NOFILE": [99, 99],
            "RLIMIT_FSIZE": [4096, 4096],
            "RLIMIT_NPROC": [5000, 5000],
        }


@on_uvloop
async def test_a_program_over_its_memory_fails_and_nothing_else_does() -> None:
    eat = [sys.executable, "-I", "-S", "-c", "x = 'x' * (1 << 30)"]
    async with cli_bench(eat, memory_bytes_max=256 << 20) as bench:
        end = (await bench.ask()).end
        assert end is not None
        assert (end.status, end.refusal_status) == (RunEnd.REFUSED, 502)
        assert "MemoryError" in end.detail


# What comes out.


@on_uvloop
async def test_one_line_of_10_mb_as_text() -> None:
    """B29: no line is too long for a stream of text."""
    async with cli_bench(tool("long_line", "10000000")) as bench:
        sink = await bench.ask()
        assert sink.end == OK
        assert sink.text == "x" * 10_000_000


@on_uvloop
async def test_one_line_of_10_mb_as_json_is_a_clear_error() -> None:
    """B29."""
    keys: dict[str, Any] = {"output": "json_lines", "fields": {"text": {"path": "text"}}}
    async with cli_bench(tool("long_line", "10000000"), **keys) as bench:
        end = (await bench.ask()).end
        assert end is not None
        assert end.status == RunEnd.UPSTREAM_ERROR
        assert "line_bytes_max" in end.detail


@on_uvloop
async def test_50_mb_on_both_pipes() -> None:
    """B29: both are read, always."""
    async with cli_bench(tool("flood", "50000000"), output_bytes_max=100_000_000) as bench:
        sink = await bench.ask()
        assert sink.end == OK
        assert sum(map(len, sink.texts)) == 50_000_000


@on_uvloop
async def test_a_paused_run_reads_no_output_and_goes_on_reading_errors() -> None:
    async with cli_bench(tool("flood", "3000000"), first_byte_ms=300) as bench:
        sink = bench.start()
        assert sink.handle is not None
        sink.handle.pause()
        sink.handle.pause()
        await until(lambda: "taken" in sink.calls, "the program started")
        # It fills its output pipe and waits: nothing more may come, and no limit of silence strikes.
        await asyncio.sleep(0.4)
        assert (sink.text, sink.end) == ("", None)
        sink.handle.resume()
        sink.handle.resume()
        assert await sink.ended() == OK
        assert sum(map(len, sink.texts)) == 3_000_000


@on_uvloop
async def test_a_pause_over_the_exit_loses_nothing() -> None:
    async with cli_bench(tool("say")) as bench:
        sink = bench.start(chat("x" * 1000))
        assert sink.handle is not None
        sink.handle.pause()
        await until(lambda: [state for _, state in bench.children()] == ["Z"], "it has exited")
        await asyncio.sleep(0.4)  # longer than a drain
        assert sink.calls == ["taken"]
        sink.handle.resume()
        assert await sink.ended() == OK
        assert sink.text == "x" * 1000


@on_uvloop
async def test_no_output_is_an_empty_answer() -> None:
    """B29."""
    async with cli_bench(["true"]) as bench:
        sink = await bench.ask()
        assert (sink.calls, sink.finish, sink.end) == (["taken", "finish", "end"], "stop", OK)


@on_uvloop
async def test_invalid_utf_8_becomes_replacement_characters() -> None:
    async with cli_bench(tool("raw", "c3", "a9ff", "e282", "ac", "f09f98")) as bench:
        assert (await bench.ask()).text == "é\ufffd€\ufffd"


@on_uvloop
async def test_json_lines() -> None:
    lines = [
        {"type": "start", "model": "x"},
        {"type": "delta", "text": "not this", "kind": "other"},
        {"type": "delta", "text": "Hel", "kind": "answer"},
        {"type": "think", "parts": [{"t": "hm"}]},
        {"type": "delta", "text": "lo", "kind": "answer"},
        {"type": "end", "why": "max_tokens", "usage": {"in": 3, "out": 4, "cached": 1}},
    ]
    fields = {
        "text": {"path": "text", "where": {"type": "delta", "kind": "answer"}},
        "reasoning": {"path": "parts.0.t"},
        "finish_reason": {"path": "why"},
        "prompt_tokens": {"path": "usage.in"},
        "completion_tokens": {"path": "usage.out"},
        "cached_tokens": {"path": "usage.cached"},
    }
    command = tool("lines", *(json.dumps(line) for line in lines), "")
    async with cli_bench(command, output="json_lines", fields=fields) as bench:
        sink = await bench.ask()
        assert (sink.text, sink.reasoning, sink.finish) == ("Hello", "hm", "length")
        assert sink.end == End(RunEnd.OK, "", Usage(3, 4, 1))


@pytest.mark.parametrize(("path", "warnings"), [("t", 0), ("$.t", 1)])
@on_uvloop
async def test_json_lines_without_a_text_are_told_to_their_owner(
    path: str, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    """A path that leads nowhere makes empty answers, which nobody else could explain."""
    async with cli_bench(tool("lines", '{"t": "a"}'), output="json_lines", fields={"text": {"path": path}}) as bench:
        assert (await bench.ask()).end == OK
    assert [record.message for record in caplog.records].count("cli_no_text") == warnings


@on_uvloop
async def test_json_lines_that_are_none() -> None:
    keys: dict[str, Any] = {"output": "json_lines", "fields": {"text": {"path": "t"}}}
    async with cli_bench(tool("lines", '{"t": "a"}', "oops"), **keys) as bench:
        sink = await bench.ask()
        assert sink.text == "a"
        assert sink.end is not None
        assert sink.end.status == RunEnd.UPSTREAM_ERROR
        assert sink.end.detail == "the program's output is not one JSON object a line: line 2 is none"


@on_uvloop
async def test_an_error_in_the_output_is_one_whatever_the_exit_code() -> None:
    fields = {"text": {"path": "t"}, "error": {"path": "error.message"}}
    command = tool("lines", '{"error": {"message": "no \\u001b[1mcredit"}}')
    async with cli_bench(command, output="json_lines", fields=fields) as bench:
        end = (await bench.ask()).end
        assert end == End(RunEnd.REFUSED, "the program said: no credit", None, 502)


@on_uvloop
async def test_output_up_to_the_limit_is_an_answer_that_was_cut() -> None:
    async with cli_bench(tool("flood", "50000000"), output_bytes_max=70_000) as bench:
        sink = await bench.ask()
        assert (sink.text, sink.finish, sink.end) == ("o" * 70_000, "length", OK)


# The program itself.


@pytest.mark.parametrize(
    ("command", "keys", "expected"),
    [
        (["/no/such/program"], {}, "command: no such executable file: /no/such/program"),
        (["no-such-program"], {}, "command: no such program on PATH: no-such-program"),
        ([str(Path(__file__))], {}, "command: no such executable file"),
        (["/tmp"], {}, "command: no such executable file: /tmp"),
        (["true"], {"working_directory": "/no/such"}, "working_directory: no such directory"),
        (["true"], {"pass_environment": ("UNSET_ONE",)}, "pass_environment: variable UNSET_ONE is not set"),
    ],
)
@on_uvloop
async def test_a_profile_that_cannot_be_used(command: list[str], keys: dict[str, Any], expected: str) -> None:
    with pytest.raises(BrokenAdapter, match=expected):
        async with cli_bench(command, **keys):
            pass


@on_uvloop
async def test_a_program_that_is_replaced_comes_back_by_itself(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_text("#!/bin/sh\necho one\n")
    program.chmod(0o755)
    async with cli_bench([str(program)]) as bench:
        assert (await bench.ask()).text == "one"
        program.unlink()
        sink = await bench.ask()
        assert sink.calls == ["end"]
        assert sink.end is not None
        assert sink.end.status == RunEnd.CONNECT_FAILED, "nothing has seen the task: it may go elsewhere"
        assert bench.adapter.health.state is State.UNREACHABLE
        assert bench.adapter.health.reason == "command: no such file or directory"
        program.write_text("#!/bin/sh\necho two\n")
        program.chmod(0o755)
        await until(lambda: bench.adapter.health.state is State.UP, "the program is found again")
        assert (await bench.ask()).text == "two"


@on_uvloop
async def test_a_file_that_is_no_program(tmp_path: Path) -> None:
    program = tmp_path / "tool"
    program.write_bytes(b"\x7fELF nonsense")
    program.chmod(0o755)
    async with cli_bench([str(program)]) as bench:
        end = (await bench.ask()).end
        assert end is not None
        assert end.status == RunEnd.CONNECT_FAILED
        assert "exec format error" in end.detail
