"""Native models find their adapter: one of this build, or one that an installed package offers by an entry point."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from iop_fast.config.schema.native import NativeModel
from iop_fast.config.schema.node import NodeLimits
from iop_fast.node.adapters import BrokenAdapter, NormalizedAdapter, Surroundings
from iop_fast.node.adapters.echo import EchoAdapter
from iop_fast.node.adapters.native import make_native
from iop_fast.node.health import State
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.adapters.run_sink import RecordingRunSink, chat
from tests.unit.node.worlds import provider, settings

DOCUMENT = Path(__file__).resolve().parents[4] / "docs" / "adapters.md"


@pytest.fixture
def loop() -> Iterator[VirtualLoop]:
    with VirtualLoop() as made:
        yield made


def make(loop: VirtualLoop, adapter: str, profile: str = "m", **options: Any) -> NormalizedAdapter:
    entry = NativeModel(id="m", adapter=adapter, options=options)
    return make_native(settings("", profile=profile), Surroundings(loop, {}, {"m": entry}, NodeLimits()))


class Package:
    """A distribution on sys.path, made for one test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def install(self, source: str, points: str, name: str = "their_package", module: str = "their_adapter") -> None:
        """Put a module and its metadata there, as an installer would."""
        (self.folder / f"{module}.py").write_text(source, encoding="utf-8")
        metadata = self.folder / f"{name}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (metadata / "entry_points.txt").write_text(f"[iop_fast.adapters]\n{points}\n", encoding="utf-8")


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    monkeypatch.syspath_prepend(str(tmp_path))
    before = set(sys.modules)
    yield Package(tmp_path)
    for name in set(sys.modules) - before:
        if name.startswith(("their_", "reverse_")):
            del sys.modules[name]


def broken(loop: VirtualLoop, adapter: str, **options: Any) -> str:
    with pytest.raises(BrokenAdapter) as caught:
        make(loop, adapter, **options)
    return str(caught.value)


def test_an_adapter_of_this_build_is_made_with_its_options(loop: VirtualLoop) -> None:
    made = make(loop, "echo", chunk_ms=7)
    assert isinstance(made, EchoAdapter)
    assert made.options.chunk_ms == 7
    assert made.health.state is State.UP


def test_a_profile_that_the_file_lacks_is_broken(loop: VirtualLoop) -> None:
    with pytest.raises(BrokenAdapter, match="has no entry 'other'"):
        make(loop, "echo", profile="other")


def test_options_of_the_edge_s_file_are_refused(loop: VirtualLoop) -> None:
    entry = NativeModel(id="m", adapter="echo")
    surroundings = Surroundings(loop, {}, {"m": entry}, NodeLimits())
    with pytest.raises(BrokenAdapter, match="options: expected none, got a"):
        make_native(settings("", profile="m", options=(("a", "1"),)), surroundings)


def test_wrong_options_are_broken_with_the_key(loop: VirtualLoop) -> None:
    assert broken(loop, "echo", chunk_ms=-1).startswith("options of m: chunk_ms: ")


def test_an_unknown_name_is_broken_with_those_that_exist(loop: VirtualLoop, package: Package) -> None:
    package.install("", "theirs = their_adapter:make")
    assert broken(loop, "thiers") == "no adapter is named 'thiers', expected one of echo, llama_cpp, theirs"


def test_the_example_of_the_documentation_works(loop: VirtualLoop, package: Package) -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    source = text.partition("```python\n")[2].partition("```")[0]
    points = text.partition('[project.entry-points."iop_fast.adapters"]\n')[2].partition("```")[0]
    package.install(source, points.replace('"', ""), module="reverse_adapter")
    made = make(loop, "reverse", separator="-")
    sink = RecordingRunSink()
    made.run_adapter(provider()).start(chat("hello world"), sink)
    loop.run_for(1)
    assert sink.text() == "dlrow-olleh"
    assert sink.finished == {0: "stop"}
    assert sink.end is not None
    assert sink.end.usage is not None
    cancelled = RecordingRunSink()
    made.run_adapter(provider()).start(chat("hello"), cancelled).cancel()
    loop.run_for(1)
    assert cancelled.end is not None
    loop.run_until_complete(loop.create_task(made.close()))


def test_a_package_that_cannot_be_imported_is_broken_with_the_reason(loop: VirtualLoop, package: Package) -> None:
    package.install("import no_such_library\n", "theirs = their_adapter:make")
    reason = broken(loop, "theirs")
    assert reason.startswith("adapter theirs (their_adapter:make) cannot be imported: ModuleNotFoundError")
    assert "no_such_library" in reason
    assert make(loop, "echo").health.state is State.UP


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("", "cannot be imported: AttributeError"),
        ("make = 3", "is a int, expected a function"),
        ("def make(options, surroundings): raise KeyError('device')", "failed: KeyError: 'device'"),
        ("def make(options, surroundings): return object()", "made a object, expected a NormalizedAdapter"),
        (
            "from iop_fast.node.adapters import BrokenAdapter\n"
            "def make(options, surroundings): raise BrokenAdapter(f'no device {options[\"device\"]}')",
            "no device 3",
        ),
    ],
)
def test_an_adapter_that_cannot_be_made_is_broken(
    loop: VirtualLoop, package: Package, source: str, expected: str
) -> None:
    package.install(source, "theirs = their_adapter:make")
    assert expected in broken(loop, "theirs", device=3)


def test_two_packages_with_one_name_are_broken(loop: VirtualLoop, package: Package) -> None:
    package.install("", "theirs = their_adapter:make")
    package.install("", "theirs = their_other:make", name="their_other_package", module="their_other")
    assert broken(loop, "theirs").endswith("by more than one package: their_other_package, their_package")


def test_a_package_does_not_replace_an_adapter_of_this_build(loop: VirtualLoop, package: Package) -> None:
    package.install("raise RuntimeError('imported')", "echo = their_adapter:make")
    assert isinstance(make(loop, "echo"), EchoAdapter)
