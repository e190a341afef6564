"""The Node's side of a model in a worker: files that cannot be models, runs, and what a worker leaves behind."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from iop_fast.config.schema.node import NodeLimits
from iop_fast.node.adapters import BrokenAdapter, Surroundings, llama_link
from iop_fast.node.adapters.llama_channel import WINDOW_BYTES, Frame
from iop_fast.node.adapters.llama_cpp import LlamaCppAdapter, NotLoaded, WorkerRun, make_llama_cpp
from iop_fast.node.adapters.llama_link import LAST_LINE_CHARACTERS, SaidLines, ended_how, reduced
from iop_fast.node.health import State
from iop_fast.seams import End, RunText, Usage
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.adapters.run_sink import RecordingRunSink

LOST = End(pb.RunEnd.UPSTREAM_ERROR, "the worker died", None)


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with VirtualLoop() as made:
        yield made


@pytest.mark.parametrize(
    ("content", "expected"),
    [(None, "absent.gguf: no such file or directory"), (b"PK\x03\x04", "absent.gguf: expected a GGUF file")],
)
def test_a_file_that_cannot_be_a_model_is_broken_at_once(
    loop: VirtualLoop, tmp_path: Path, content: bytes | None, expected: str
) -> None:
    path = tmp_path / "absent.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(BrokenAdapter) as caught:
        make_llama_cpp({"path": str(path)}, Surroundings(loop, {}, {}, NodeLimits()))
    assert str(caught.value) == expected


def test_a_worker_that_cannot_be_started_is_tried_again_ever_more_seldom(
    loop: VirtualLoop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[float] = []

    def started(environ: Mapping[str, str]) -> Any:
        attempts.append(loop.time())
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(llama_link, "started", started)
    path = tmp_path / "small.gguf"
    path.write_bytes(b"GGUF")
    made = make_llama_cpp({"path": str(path)}, Surroundings(loop, {}, {}, NodeLimits()))
    assert isinstance(made, LlamaCppAdapter)
    expected = "loading small.gguf again in 1 s: it cannot be started: too many open files"
    assert (made.health.state, made.health.reason) == (State.LOADING, expected)
    loop.run_for(100)
    gaps = [round(after - before) for before, after in pairwise(attempts)]
    assert gaps == [1, 2, 4, 8, 16, 30, 30]
    loop.run_until_complete(loop.create_task(made.close()))
    loop.run_for(100)
    assert len(attempts) == 8


def test_a_model_that_is_not_there_has_not_seen_the_request(loop: VirtualLoop) -> None:
    sink = RecordingRunSink()
    run = NotLoaded(loop, sink, "")
    run.pause()
    run.resume()
    run.cancel()
    loop.run_for(1)
    assert sink.end == End(pb.RunEnd.CONNECT_FAILED, "the model is closed", None)


class Link:
    """A WorkerLink that writes down what it is told to send."""

    def __init__(self) -> None:
        self.sent: list[Mapping[str, Any]] = []

    def send(self, head: Mapping[str, Any], tail: bytes = b"") -> None:
        self.sent.append(head)


class Bench:
    def __init__(self, sink: RecordingRunSink | None = None) -> None:
        self.link = Link()
        self.sink = RecordingRunSink() if sink is None else sink
        self.over: list[int] = []
        self.run = WorkerRun(self.link, 7, self.sink, self.over.append)  # type: ignore[arg-type]

    def say(self, *events: list[Any], size: int = 100) -> None:
        self.run.take(Frame({"run": 7, "said": events}, b"", size))

    def end(self, status: int = pb.RunEnd.OK) -> None:
        self.run.take(Frame({"run": 7, "end": [status, "", [1, 2, 3], 0]}, b"", 100))


def test_events_are_passed_on_as_they_were_said() -> None:
    at = Bench()
    at.say(["taken"], ["reasoning", "hm", 1], ["text", "a", 0])
    at.say(["tool_call", 0, "c1", "look", "{}", 2])
    at.run.take(Frame({"run": 7, "embedding": 3}, array("f", [0.5, 2]).tobytes(), 100))
    at.say(["finish", "stop", 0])
    at.end()
    assert at.sink.is_taken
    assert at.sink.said[:2] == [("reasoning", "hm", 1), RunText("a", 0)]
    assert at.sink.calls(2) == [("look", "{}")]
    assert at.sink.embeddings == {3: [0.5, 2.0]}
    assert at.sink.finished == {0: "stop"}
    assert at.sink.end == End(pb.RunEnd.OK, "", Usage(1, 2, 3))
    assert at.over == [7]
    at.run.cancel()
    assert at.link.sent == [], "a run that is over is not cancelled"


def test_what_is_said_while_it_is_paused_is_kept_and_not_used() -> None:
    at = Bench()
    at.run.pause()
    at.say(["text", "a", 0], size=WINDOW_BYTES)
    at.end()
    assert (at.sink.said, at.sink.end, at.link.sent) == ([], None, [])
    at.run.resume()
    assert at.sink.text() == "a"
    assert at.sink.end is not None
    assert at.link.sent == [{"used": 7, "bytes": WINDOW_BYTES}]


def test_what_is_used_is_said_by_half_windows() -> None:
    at = Bench()
    for _ in range(5):
        at.say(["text", "a", 0], size=WINDOW_BYTES // 4)
    assert at.link.sent == [{"used": 7, "bytes": WINDOW_BYTES // 2}] * 2


class Pausing(RecordingRunSink):
    """Pauses its run at each text, as the relay does when a window is used up."""

    bench: Bench

    def on_text(self, text: str, index: int = 0) -> None:
        super().on_text(text, index)
        self.bench.run.pause()


def test_a_sink_may_pause_and_resume_while_it_is_told() -> None:
    sink = Pausing()
    sink.bench = at = Bench(sink)
    at.run.pause()
    for text in "abc":
        at.say(["text", text, 0])
    for expected in ("a", "ab", "abc"):
        at.run.resume()
        assert sink.text() == expected


def test_a_cancelled_run_says_nothing_more_and_is_confirmed_by_the_worker() -> None:
    at = Bench()
    at.run.pause()
    at.say(["text", "a", 0])
    at.run.cancel()
    at.run.cancel()
    at.say(["text", "b", 0])
    at.run.take(Frame({"run": 7, "embedding": 0}, b"", 100))
    assert (at.sink.said, at.sink.embeddings, at.sink.end) == ([], {}, None)
    assert at.link.sent == [{"cancel": 7}]
    at.end()
    assert at.sink.end == End(pb.RunEnd.CANCELLED, "cancelled", None)


def test_a_lost_worker_s_words_are_passed_on_before_the_end() -> None:
    at = Bench()
    at.run.pause()
    at.say(["text", "a", 0])
    at.run.lose(LOST)
    assert (at.sink.text(), at.sink.end, at.over) == ("a", LOST, [7])
    at = Bench()
    at.run.pause()
    at.end()
    at.run.lose(LOST)
    assert at.sink.end == End(pb.RunEnd.OK, "", Usage(1, 2, 3))
    at = Bench()
    at.run.cancel()
    at.run.lose(LOST)
    assert at.sink.end == End(pb.RunEnd.CANCELLED, "cancelled", None)


class Refusing(RecordingRunSink):
    def on_text(self, text: str, index: int = 0) -> None:
        raise ValueError("what no event holds")


def test_what_cannot_be_said_cancels_its_run() -> None:
    at = Bench(Refusing())
    at.say(["text", "a", 0], ["finish", "stop", 0])
    assert at.link.sent == [{"cancel": 7}]
    assert at.sink.finished == {}


def test_a_worker_gets_what_computing_needs_of_the_environment() -> None:
    given = {
        "PATH": "/bin",
        "PYTHONPATH": "/lib",
        "CUDA_VISIBLE_DEVICES": "1",
        "OPENAI_API_KEY": "secret",
        "IOP_NODE_TOKEN": "secret",
        "NOTIFY_SOCKET": "/run/notify",
    }
    kept = {"PATH": "/bin", "PYTHONPATH": "/lib", "CUDA_VISIBLE_DEVICES": "1"}
    assert reduced(given) == kept | {"GGML_NO_BACKTRACE": "1"}
    assert reduced({"GGML_NO_BACKTRACE": "0"}) == {"GGML_NO_BACKTRACE": "0"}


@pytest.mark.parametrize(
    ("code", "expected"),
    [(3, "exited with code 3"), (-6, "ended by SIGABRT"), (-50, "ended by signal 50")],
)
def test_how_a_worker_ended_is_said(code: int, expected: str) -> None:
    assert ended_how(code) == expected


def test_lines_of_a_worker_are_logged_within_bounds(loop: VirtualLoop, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "iop_fast")
    lines = SaidLines(loop, "small.gguf")
    assert lines.last() == ""
    lines.feed(b"one\n\ntw")
    lines.feed(b"o\nthree \xff")
    assert lines.last() == "three \ufffd"
    lines.feed(b"\n" + b"more\n" * 100 + b"x" * 10_000)
    assert lines.last() == "x" * LAST_LINE_CHARACTERS
    lines.feed(b"y\n")
    logged = [record.fields["line"] for record in caplog.records]  # type: ignore[attr-defined]
    assert logged == ["one", "two", "three \ufffd", *["more"] * 17]
    caplog.clear()
    loop.run_for(10)
    lines.feed(b"again\n")
    assert [record.getMessage() for record in caplog.records] == ["worker_lines_left_out", "worker_said"]
    assert caplog.records[0].fields["lines"] == 84  # type: ignore[attr-defined]
