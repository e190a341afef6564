"""Hand-made faults in the admission core, each built apart and run against the fast part of the suite.

    python -m tests.mutants.core [NAME ...]

A mutant is one replaced piece of one .pyx, and the piece must stand there exactly once, so that a mutant cannot rot
unseen. It is built in a scratch copy; it is killed when the tests fail, crash or hang. A table is printed; the exit
status is 1 when one survives.
"""

# ruff: noqa: E501 the pieces stand as they stand in the source

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
CORE = ("ledger", "wait_queue", "plans", "admission")
DIALOGUES = ("choice", "queue", "plans", "nodes", "leases", "delivery", "readouts")
TIMEOUT_S = 180

BUILD = """
import sys
from Cython.Build import cythonize
from setuptools import Extension, setup
name = sys.argv.pop()
directives = {"language_level": "3", "boundscheck": False, "wraparound": False, "initializedcheck": False,
              "cdivision": True}
extension = Extension("iop_fast._core." + name, ["src_pyx/" + name + ".pyx"], extra_compile_args=["-O0"])
sys.argv = ["setup.py", "-q", "build_ext", "--inplace"]
setup(name="mutant", packages=[], ext_modules=cythonize([extension], compiler_directives=directives, quiet=True))
"""


class Mutant(NamedTuple):
    """`old` in src_pyx/`module`.pyx becomes `new`."""

    name: str
    module: str
    old: str
    new: str


def mutants(module: str, *rows: tuple[str, str, str]) -> list[Mutant]:
    return [Mutant(name, module, old, new) for name, old, new in rows]


MUTANTS = [
    *mutants(
        "ledger",
        ("long slot not counted", "row.long_in_flight += takes_long", "row.long_in_flight += 0"),
        ("turn not kept", "row.last_grant = self.grants", "row.last_grant = row.last_grant"),
        ("slot not freed", "        row.in_flight -= 1\n", "        row.in_flight -= 0\n"),
        ("long slot not freed", "row.long_in_flight -= entry.took_long", "row.long_in_flight -= 0"),
        ("disabled is live", "            and row.is_enabled\n", ""),
        ("unhealthy is live", "            and row.is_healthy\n", ""),
        ("no capacity is live", "            and row.capacity > 0\n", ""),
        ("draining is live", "link == LINK_READY", "link != LINK_OFFLINE"),
        ("dropped lease forgotten", "                drop_entry(self.table, self.slot)", "                pass"),
        ("dropped and lost twice", "            if self.table.entries[slot].is_dropped:", "            if False:"),
        ("bucket bound exclusive", "while duration_ns > BOUNDS_NS", "while duration_ns >= BOUNDS_NS"),
        ("window forgets the last", "meter.ends_before = meter.ends if", "meter.ends_before = 0 if"),
        ("generation of a lease", "entry.generation = node.generation", "entry.generation = 0"),
    ),
    *mutants(
        "wait_queue",
        ("excluded not in the key", " and line.excluded == excluded:", ":"),
        ("model not in the key", "if line.model == model and line.needs", "if line.needs"),
        ("needs not in the key", " and line.needs == needs", ""),
        (
            "re-admitted at the end of its line",
            "        cdef int32_t before = line.tail\n        while before != NONE and",
            "        cdef int32_t before = line.tail\n        while False and",
        ),
        (
            "re-admitted at the end of the order",
            "        cdef int32_t before = order.tail\n        while before != NONE and",
            "        cdef int32_t before = order.tail\n        while False and",
        ),
        (
            "stale head",
            "                line.head_sequence = self.entries[line.head].sequence",
            "                pass",
        ),
        (
            "oldest of two lists",
            "if self.entries[self.readmitted.head].sequence <",
            "if self.entries[self.readmitted.head].sequence >",
        ),
        (
            "heap upside down",
            "head_sequence <= sequence:\n                break",
            "head_sequence >= sequence:\n                break",
        ),
        (
            "heap takes the greater child",
            "head_sequence < self.lines[self.heap[child]].head_sequence",
            "head_sequence > self.lines[self.heap[child]].head_sequence",
        ),
        ("excluded is served", "return provider != excluded and can", "return can"),
        (
            "index not mended",
            "self.lines[last.line].members[last.member].position = position",
            "pass",
        ),
        ("waiter waits on", "(<Waiter>waiter).is_waiting = False", "pass"),
        ("all re-admitted in one list", "&self.readmitted if is_readmitted else &self.fresh", "&self.fresh"),
    ),
    *mutants(
        "plans",
        ("report outlives the plan", " or row.is_healthy != row.planned_health", ""),
        ("gone but live", "                    row.is_live = False\n", ""),
        ("gone but planned", "                    row.is_planned = False\n", ""),
        ("mapping not checked", "        if staging.kept == self.order_count:", "        if True:"),
        (
            "row used twice in a plan",
            "if self.mappings[staging.free_row - 1]",
            "if staging.mappings[staging.free_row - 1]",
        ),
        ("abilities change unseen", "staging.changes_can |= staged.can != row.can", "pass"),
        ("long slots change unseen", "staging.changes_long |= staged.long_capacity != row.long_capacity", "pass"),
        ("outcomes of the row before", "                staging.new_rows.append(row)\n", ""),
        ("mapping change unseen", "if model.count == count and memcmp", "if model.count == count or memcmp"),
        ("double provider taken", "            if row.plan_mark == self.plan_mark:", "            if False:"),
        ("nested reading allowed", "        if self.is_reading:", "        if False:"),
    ),
    *mutants(
        "admission",
        ("most loaded first", "return one.in_flight < other.in_flight", "return one.in_flight > other.in_flight"),
        ("least preferred first", "return one.priority < other.priority", "return one.priority > other.priority"),
        ("newest grant first", "return one.last_grant < other.last_grant", "return one.last_grant > other.last_grant"),
        (
            "last in the file first",
            "return one.last_grant < other.last_grant",
            "return one.last_grant <= other.last_grant",
        ),
        ("long without long slots", " and (not is_constrained or provider.long_capacity > 0)", ""),
        ("long over its slots", "not is_constrained or provider.long_in_flight <", "True or provider.long_in_flight <"),
        ("back to the excluded", " or index == excluded:", ":"),
        ("queue one too long", ".fresh.count >= self.catalog.queue_limit:", ".fresh.count > self.catalog.queue_limit:"),
        ("re-admitted bounded", "if not arrival.is_readmitted and self.queue.fresh", "if self.queue.fresh"),
        ("deadline one late", ">= self.catalog.queue_timeout_ns", "> self.catalog.queue_timeout_ns"),
        (
            "release does not expire",
            "            self.expire()\n            self.grant_freed(provider)",
            "            self.grant_freed(provider)",
        ),
        (
            "nobody is stranded",
            "            self.strand_marked()\n            self.grant_marked()",
            "            self.queue.heap_count = 0\n            self.grant_marked()",
        ),
        (
            "grant before expiry",
            "            self.expire()\n            self.grant_freed(provider)",
            "            self.grant_freed(provider)\n            self.expire()",
        ),
        ("youngest line first", "line.head_sequence > sequence:", "line.head_sequence < sequence:"),
        (
            "freed slot to a long one",
            "if line.is_long and not has_long_slot and",
            "if line.is_long and False and",
        ),
        ("lost counted as double", "+= lease.ended == END_RELEASED", "+= 1"),
        ("double release uncounted", "self.double_releases += lease.ended == END_RELEASED", "pass"),
        ("delivery recurses", " and not self.is_delivering:", ":"),
        (
            "failed owner keeps its lease",
            "                self.release(self.now_ns, lease)\n",
            "                pass\n",
        ),
        ("stale generation is ready", "if generation <= node.generation", "if generation < node.generation"),
        (
            "superseded session keeps leases",
            "        if node.link != LINK_OFFLINE:\n            self.ledger.lose_leases(row, now_ns)",
            "        if False:\n            self.ledger.lose_leases(row, now_ns)",
        ),
        ("any generation", " or self.ledger.nodes[row].generation != generation:", ":"),
        (
            "dead node keeps leases",
            "        self.ledger.lose_leases(row, now_ns)\n        self.queue.unmark_all()",
            "        self.queue.unmark_all()",
        ),
        (
            "plan does not settle",
            "            self.queue.mark_all()\n            self.settle()",
            "            self.queue.mark_all()",
        ),
        (
            "reclaimed slot idle",
            "                self.queue.mark_provider(provider)\n                ended",
            "                ended",
        ),
        (
            "new place for the re-admitted",
            "arrival.sequence = ended.sequence",
            "arrival.sequence = self.last_sequence + 1",
        ),
        ("re-admitted for ever", "        ended.was_readmitted = True\n", ""),
        ("pressure without capacity", "        if state.capacity == 0:\n            return False\n", ""),
        ("offline shows its capacity", "row.capacity if is_online else 0", "row.capacity"),
        (
            "link moves nobody",
            "            self.queue.mark_provider(provider)\n            provider = self.ledger.providers[provider].next",
            "            provider = self.ledger.providers[provider].next",
        ),
        (
            "health moves nobody",
            "                self.ledger.update_live(provider)\n                self.queue.mark_provider(provider)",
            "                self.ledger.update_live(provider)",
        ),
        ("time may fall", "        if now_ns < self.now_ns:", "        if False:"),
        ("wrong position", "position = 1 + self.competing", "position = self.competing"),
        (
            "draining ends one",
            "        slot = self.queue.oldest()\n        while slot != NONE:\n            self.evict(slot, EVICTED_DRAINING)",
            "        slot = self.queue.oldest()\n        if slot != NONE:\n            self.evict(slot, EVICTED_DRAINING)",
        ),
    ),
]


def apply(mutant: Mutant, tree: Path) -> None:
    path = tree / "src_pyx" / f"{mutant.module}.pyx"
    source = (ROOT / "src_pyx" / f"{mutant.module}.pyx").read_text()
    if source.count(mutant.old) != 1:
        raise SystemExit(f"mutant {mutant.name!r}: its piece stands {source.count(mutant.old)} times in {path.name}")
    path.write_text(source.replace(mutant.old, mutant.new))


def make_tree(tree: Path) -> None:
    shutil.copytree(ROOT / "iop_fast", tree / "iop_fast", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "src_pyx").mkdir()
    for name in CORE:
        shutil.copy(ROOT / "src_pyx" / f"{name}.pyx", tree / "src_pyx")
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "build_mutant.py").write_text(BUILD)


def run(tree: Path, *command: str) -> int:
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        return subprocess.run(
            [sys.executable, *command],
            cwd=tree,
            env=environment,
            timeout=TIMEOUT_S,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=False,
        ).returncode
    except subprocess.TimeoutExpired:
        return -1


def fate(tree: Path) -> str:
    """What kills the mutant, or "SURVIVED"."""
    files = [f"tests/unit/core/test_{name}.py" for name in DIALOGUES]
    if run(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files):
        return "killed by a dialogue"
    if run(tree, "-m", "tests.soak.core", "4000", "1"):
        return "killed by the model"
    return "SURVIVED"


def main(names: list[str]) -> int:
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        tree = Path(scratch)
        make_tree(tree)
        for name in CORE:
            if run(tree, "build_mutant.py", name):
                raise SystemExit(f"the sound {name} does not build")
        if fate(tree) != "SURVIVED":
            raise SystemExit("the sound core does not pass: no mutant can be judged")
        sound = {path.name: path.read_bytes() for path in (tree / "iop_fast" / "_core").glob("*.so")}
        for mutant in chosen:
            for name, content in sound.items():
                target = tree / "iop_fast" / "_core" / name
                target.unlink()
                target.write_bytes(content)
            apply(mutant, tree)
            end = "does not build" if run(tree, "build_mutant.py", mutant.module) else fate(tree)
            shutil.copy(ROOT / "src_pyx" / f"{mutant.module}.pyx", tree / "src_pyx")
            survivors += end in ("SURVIVED", "does not build")
            print(f"{mutant.module:11} {mutant.name:36} {end}", flush=True)
    print(f"{len(chosen)} mutants, {survivors} survived")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
