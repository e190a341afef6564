"""The guard of instruction counts: what it compares with, what it builds anew, and what it lets pass."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import guard
from benchmarks.guard import compared, files_of, find_base, lay_out, made_by, report, total_of

IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")


def git(root: Path, *arguments: str) -> str:
    run = subprocess.run(["git", *IDENTITY, *arguments], cwd=root, check=True, capture_output=True, text=True)
    return run.stdout.strip()


def commit(root: Path, text: str) -> str:
    (root / "file").write_text(text)
    git(root, "add", "file")
    git(root, "commit", "--quiet", "--no-gpg-sign", "-m", text)
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    root.mkdir()
    git(root, "init", "--quiet")
    return root


def test_without_a_commit_there_is_no_base(repo: Path) -> None:
    assert find_base(None, repo) is None


def test_a_first_commit_has_no_base(repo: Path) -> None:
    commit(repo, "one")
    assert find_base(None, repo) is None


def test_on_the_main_branch_a_change_is_compared_with_head_and_else_head_with_its_parent(repo: Path) -> None:
    one = commit(repo, "one")
    two = commit(repo, "two")
    assert find_base(None, repo) == one
    (repo / "file").write_text("three")
    assert find_base(None, repo) == two


def test_a_branch_is_compared_with_where_it_left_the_main_one(repo: Path) -> None:
    one = commit(repo, "one")
    git(repo, "checkout", "--quiet", "-b", "change")
    commit(repo, "two")
    commit(repo, "three")
    assert find_base(None, repo) == one


def test_a_shallow_clone_has_no_base(repo: Path, tmp_path: Path) -> None:
    commit(repo, "one")
    commit(repo, "two")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "--quiet", "--depth", "1", repo.as_uri(), str(clone))
    assert find_base(None, clone) is None


def test_a_named_base_is_taken_or_not_found(repo: Path) -> None:
    one = commit(repo, "one")
    assert find_base("HEAD", repo) == one
    assert find_base("nothing", repo) is None


def test_growth_over_the_limit_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert report({"a": 100.0, "b": 100.0}, {"a": 102.9, "b": 50.0}) == []
    assert report({"a": 100.0, "b": 100.0}, {"a": 103.1, "b": 50.0}) == ["a"]
    assert "+3.10%  FAILED: more than +3%" in capsys.readouterr().out


def test_the_total_of_a_dump(tmp_path: Path) -> None:
    dump = tmp_path / "out.2"
    dump.write_text("version: 1\nevents: Ir\n16 5\nsummary: 1234\n")
    assert total_of(dump) == 1234
    dump.write_text("version: 1\n")
    with pytest.raises(SystemExit, match="no summary"):
        total_of(dump)


def test_without_valgrind_it_says_so_and_passes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "")
    assert guard.main([]) == 0
    assert "valgrind is not installed" in capsys.readouterr().out


# Stands in for callgrind: the package in the tree says what its operations take, None for one that does not run.
VALGRIND = """\
#!{python}
import json, os, sys
from pathlib import Path
out = next(word.partition("=")[2] for word in sys.argv if word.startswith("--callgrind-out-file="))
tree = Path(os.environ["PYTHONPATH"])
seeded = tree / f"costs-{{os.environ['PYTHONHASHSEED']}}.json"
costs = json.loads((seeded if seeded.exists() else tree / "costs.json").read_text())
if costs is None:
    sys.exit("no such module")
for place, (name, cost) in enumerate(costs.items()):
    Path(f"{{out}}.{{2 * place + 1}}").write_text("summary: 99999999\\n")  # what led to the operation
    Path(f"{{out}}.{{2 * place + 2}}").write_text(f"summary: {{cost * 50}}\\n")
    print(name)
"""
OPERATIONS = "COUNT = 5 * 10\nassert __name__ != '__main__', 'callgrind alone runs them'\n"


class Sides:
    """A tree before and one after a change, and a file of operations, under a callgrind that knows their costs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        program = root / "bin" / "valgrind"
        program.parent.mkdir()
        program.write_text(VALGRIND.format(python=sys.executable))
        program.chmod(0o755)
        self.operations = root / "some_operations.py"
        self.operations.write_text(OPERATIONS)

    def compare(self, before: Mapping[str, int] | None, after: Mapping[str, int] | None) -> int:
        """The guard's exit code for what the operations cost on both sides."""
        for name, costs in (("before", before), ("after", after)):
            (self.root / name).mkdir(exist_ok=True)
            (self.root / name / "costs.json").write_text(json.dumps(costs))
        return compared(self.root / "before", self.root / "after", [self.operations])


@pytest.fixture
def sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sides:
    made = Sides(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return made


def test_an_unchanged_tree_passes(sides: Sides, capsys: pytest.CaptureFixture[str]) -> None:
    assert sides.compare({"request": 160_000, "chunk": 6_300}, {"request": 160_000, "chunk": 6_300}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["guard", "request", "160000.0", "->", "160000.0", "instructions", "+0.00%"]
    assert lines[-1] == "guard: nothing takes more than it may"


def test_one_operation_that_takes_five_percent_more_fails(sides: Sides, capsys: pytest.CaptureFixture[str]) -> None:
    assert sides.compare({"request": 160_000, "chunk": 6_300}, {"request": 150_000, "chunk": 6_615}) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].endswith("+5.00%  FAILED: more than +3%")
    assert lines[-1] == "guard: chunk FAILED"


def test_an_operation_that_seems_to_have_grown_is_counted_again(
    sides: Sides, capsys: pytest.CaptureFixture[str]
) -> None:
    (sides.root / "after").mkdir()
    for seed, cost in (("0", 9_000), ("1", 6_310)):
        (sides.root / "after" / f"costs-{seed}.json").write_text(json.dumps({"chunk": cost}))
    assert sides.compare({"chunk": 6_300}, {"chunk": 99_999}) == 0
    assert "6310.0" in capsys.readouterr().out


def test_operations_that_copy_bodies_may_grow_by_less_than_a_copy(sides: Sides) -> None:
    assert sides.compare({"edge_upload_piece": 468_000}, {"edge_upload_piece": 502_000}) == 0
    assert sides.compare({"edge_upload_piece": 468_000}, {"edge_upload_piece": 534_000}) == 1
    assert sides.compare({"node_64k_answer": 326_000}, {"node_64k_answer": 391_000}) == 1


def test_operations_that_the_base_does_not_run_are_not_compared(
    sides: Sides, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sides.compare(None, {"request": 1}) == 0
    assert "some_operations.py does not run with the base: not compared" in capsys.readouterr().out


def test_operations_that_the_change_does_not_run_fail(sides: Sides, capsys: pytest.CaptureFixture[str]) -> None:
    assert sides.compare({"request": 1}, None) == 1
    assert "some_operations.py FAILED" in capsys.readouterr().out


def test_the_files_of_a_commit_are_those_that_were_committed(repo: Path) -> None:
    one = commit(repo, "one")
    commit(repo, "two")
    (repo / "other").write_text("not committed")
    assert files_of(one, repo) == {"file": b"one"}
    assert files_of("HEAD", repo) == {"file": b"two"}


def built(tree: Path, files: Mapping[str, bytes]) -> None:
    """Lay a tree out and have it built to its end."""
    lay_out(tree, files)
    (tree / "module.so").write_text("compiled")
    (tree / guard.MARK).write_bytes(made_by(files))


FILES = {"setup.py": b"setup", "a/one.pyx": b"1", "a/two.pyx": b"2"}


def test_only_files_that_differ_are_written_anew(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    built(tree, FILES)
    old = 1_000_000_000
    for name in FILES:
        os.utime(tree / name, ns=(old, old))
    lay_out(tree, {"setup.py": b"setup", "a/one.pyx": b"1", "a/three.pyx": b"3"})
    assert (tree / "a/one.pyx").stat().st_mtime_ns == old
    assert (tree / "a/three.pyx").read_bytes() == b"3"
    assert not (tree / "a/two.pyx").exists()
    assert (tree / "module.so").exists()


def test_a_tree_whose_build_did_not_end_or_that_another_setup_made_is_thrown_away(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    built(tree, FILES)
    lay_out(tree, FILES)
    assert (tree / "module.so").exists()
    lay_out(tree, FILES)  # nobody has built it since
    assert not (tree / "module.so").exists()
    built(tree, FILES)
    lay_out(tree, {**FILES, "setup.py": b"other flags"})
    assert not (tree / "module.so").exists()


def test_a_first_base_begins_as_a_copy_of_what_the_same_setup_has_built(tmp_path: Path) -> None:
    built(tmp_path / "change", FILES)
    lay_out(tmp_path / "base", FILES | {"a/one.pyx": b"0"}, like=tmp_path / "change")
    assert (tmp_path / "base" / "module.so").exists()
    assert (tmp_path / "base" / "a/one.pyx").read_bytes() == b"0"
    lay_out(tmp_path / "other", {**FILES, "setup.py": b"other flags"}, like=tmp_path / "change")
    assert not (tmp_path / "other" / "module.so").exists()
