"""The slow half of a refresh: read, validate, compare, classify and build the next Runtime aside.

Pure but for reading the file, and safe in a thread: it reads one immutable Runtime and makes another. It decides what a
refresh comes to, so a dry run and an apply cannot differ; what is left for the loop is the commit.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from iop_fast.config.catalog import build_catalog
from iop_fast.config.diff import Diff, compare
from iop_fast.config.keep import keep
from iop_fast.config.loader import load_edge_text, read_file
from iop_fast.config.payload import compile_payloads
from iop_fast.edge.refresh_report import NOTHING, Status
from iop_fast.edge.runtime import Runtime
from iop_fast.errors import ConfigError, Finding
from iop_fast.wire.payload import PayloadTooLarge

# What findings in a candidate that came with the request call their file.
CANDIDATE = "candidate"
ANY_TAG = "*"


class StepTimes:
    """How long each step took, in milliseconds, in the order of the steps."""

    def __init__(self) -> None:
        self.ms: dict[str, float] = {}

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Time a step."""
        begun = time.perf_counter_ns()
        try:
            yield
        finally:
            self.ms[f"{name}_ms"] = round((time.perf_counter_ns() - begun) / 1e6, 3)


@dataclass(frozen=True, slots=True)
class Planned:
    """What a refresh comes to. `runtime` is what an apply commits, None where there is nothing to commit."""

    status: Status
    file_sha256: str
    diff: Diff = NOTHING
    findings: Sequence[Finding] = ()
    runtime: Runtime | None = None

    @property
    def pushed_nodes(self) -> list[str]:
        """Ids of the Nodes whose payload changes with `runtime`, sorted."""
        if self.runtime is None or self.status is not Status.APPLIED:
            return []
        revision = self.runtime.revision
        return sorted(node_id for node_id, at in self.runtime.payload_revisions.items() if at == revision)


def plan_refresh(
    running: Runtime, path: str, text: str | None, tags: Collection[str] | None, times: StepTimes
) -> Planned:
    """Judge the file at `path`, or the candidate `text`, against the running configuration.

    `tags` are the If-Match of the caller, None without one: see `is_met`.
    """
    sha256, name = "", path if text is None else CANDIDATE
    try:
        with times.step("read"):
            raw = read_file(path) if text is None else text.encode("utf-8", "surrogatepass")
            sha256 = hashlib.sha256(raw).hexdigest()
        if not is_met(tags, running, sha256):
            return Planned(Status.STALE, sha256)
        with times.step("validate"):
            loaded = load_edge_text(raw, name)
    except ConfigError as error:
        is_stale = not is_met(tags, running, sha256)
        return Planned(Status.STALE, sha256) if is_stale else Planned(Status.INVALID, sha256, findings=error.findings)
    with times.step("compare"):
        config = keep(running.config, loaded.config)
        diff = compare(running.config, config)
    if diff.restart_required_paths:
        return Planned(Status.RESTART_REQUIRED, sha256, diff, loaded.warnings)
    try:
        with times.step("build"):
            runtime = Runtime.build(
                config,
                build_catalog(config),
                compile_payloads(config),
                revision=running.revision + (not diff.is_empty),
                file_sha256=sha256,
                previous=running,
            )
    except PayloadTooLarge as error:
        finding = Finding(name, 1, 1, "error", "nodes", str(error))
        return Planned(Status.INVALID, sha256, findings=sorted([finding, *loaded.warnings]))
    return Planned(Status.NO_CHANGE if diff.is_empty else Status.APPLIED, sha256, diff, loaded.warnings, runtime)


def is_met(tags: Collection[str] | None, running: Runtime, file_sha256: str) -> bool:
    """Say whether an If-Match is met.

    A tag names the revision that runs or the hash of the file that runs (nobody applied anything in between), or the
    hash of what is to be applied (it is what the caller has seen).
    """
    if tags is None or ANY_TAG in tags:
        return True
    known = {str(running.revision), running.file_sha256, file_sha256} - {""}
    return not known.isdisjoint(tags)
