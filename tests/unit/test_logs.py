"""Log lines: text for terminals, JSON for collectors, nothing that a field could forge."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from iop_fast import logs


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    root, ours = logging.getLogger(), logging.getLogger(logs.ROOT)
    before = (list(root.handlers), root.level, ours.level)
    yield
    root.handlers[:], root.level, ours.level = before
    ours.setLevel(before[2])


def test_a_terminal_gets_key_value_lines() -> None:
    out = Terminal()
    logs.setup("info", out)
    logs.get("iop_fast.edge.link").info("node_ready", node="n1", generation=3)
    time, rest = out.getvalue().split(" ", 1)
    assert len(time) == len("10:31:07.250")
    assert rest == "info    edge.link node_ready node=n1 generation=3\n"


def test_anything_else_gets_json() -> None:
    out = io.StringIO()
    logs.setup("info", out)
    logs.get("iop_fast.edge.link").warning("node_lost", node="n1", runs=2, level="field")
    entry = json.loads(out.getvalue())
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "warning",
        "logger": "iop_fast.edge.link",
        "event": "node_lost",
        "node": "n1",
        "runs": 2,
        "field_level": "field",
    }


@pytest.mark.parametrize("value", ["a b", "a\nforged event=1", 'quote"', "", "a=b", "\udce9t\udce9"])
def test_a_field_cannot_break_its_line(value: str) -> None:
    out = Terminal()
    logs.setup("info", out)
    logs.get("iop_fast.x").info("event", field=value)
    line = out.getvalue()
    assert line.count("\n") == 1
    assert json.loads(line.split("field=", 1)[1]) == value
    lines = io.StringIO()
    logs.setup("info", lines)
    logs.get("iop_fast.x").info("event", field=value)
    assert json.loads(lines.getvalue())["field"] == value


def test_levels_and_foreign_loggers() -> None:
    out = io.StringIO()
    logs.setup("warning", out)
    log = logs.get("iop_fast.x")
    log.info("hidden")
    log.debug("hidden")
    logging.getLogger("aiohttp.server").info("hidden")
    logging.getLogger("aiohttp.server").warning("plain %s", "message")
    assert [json.loads(line)["event"] for line in out.getvalue().splitlines()] == ["plain message"]
    assert not log.is_debug


def test_a_failure_carries_its_traceback() -> None:
    text, lines = Terminal(), io.StringIO()
    for out in (text, lines):
        logs.setup("error", out)
        try:
            raise ValueError("broken")
        except ValueError as error:
            logs.get("iop_fast.x").failure("bug", error, run=1)
    assert "ValueError: broken" in text.getvalue()
    assert "ValueError: broken" in json.loads(lines.getvalue())["traceback"]


def test_setup_again_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    logs.setup("info", first)
    logs.setup("debug", second)
    log = logs.get("iop_fast.x")
    assert log.is_debug
    log.error("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1
