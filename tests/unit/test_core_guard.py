"""The guard of the core's instruction counts: what it compares with, and what it lets pass."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from benchmarks import core_guard
from benchmarks.core_guard import find_base, report, total_of

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


def test_growth_over_the_limit_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert report({"a": 100.0, "b": 100.0}, {"a": 102.9, "b": 50.0})
    assert not report({"a": 100.0, "b": 100.0}, {"a": 103.1, "b": 50.0})
    assert "+3.10%  more than 3%" in capsys.readouterr().out


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
    assert core_guard.main([]) == 0
    assert "valgrind is not installed" in capsys.readouterr().out


def test_a_base_that_the_operations_do_not_run_with_is_not_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    guard = core_guard.EDGE._replace(folder=tmp_path)
    (tmp_path / "stale").mkdir()
    counts: dict[str, dict[str, float] | None] = {"base": None, "change": {"edge_request": 100.0}}
    monkeypatch.setattr(core_guard, "unpack", lambda commit, tree: tree.mkdir())
    monkeypatch.setattr(core_guard, "build", lambda tree, command: True)
    monkeypatch.setattr(core_guard, "copy_tree", lambda tree: None)
    monkeypatch.setattr(core_guard, "count", lambda tree, guard: counts[tree.name])
    assert core_guard.compare("base", guard)
    assert "does not run with the base base" in capsys.readouterr().out
    assert not (tmp_path / "stale").exists()
    counts["base"] = {"edge_request": 90.0}
    assert not core_guard.compare("base", guard)
    counts["change"] = None
    assert not core_guard.compare("base", guard)
