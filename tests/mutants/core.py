"""Hand-made faults in the admission core, each built apart and run against the fast part of the suite.

    python -m tests.mutants.core [NAME ...]

A mutant is one replaced piece of one .pyx, and the piece must stand there exactly once, so that a mutant cannot rot
unseen. It is built in a scratch copy; it is killed when the tests fail, crash or hang. A table is printed; the exit
status is 1 when one survives.
"""

# ruff: noqa: E501 the pieces stand as they stand in the source

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from tests.mutants.faults import ROOT, chosen, close, mutants, mutated, run

CORE = (
    "memory",
    "ledger",
    "choice",
    "line_index",
    "wait_queue",
    "plans",
    "tally",
    "readouts",
    "verification",
    "settlement",
    "admission",
)
DIALOGUES = ("choice", "queue", "line_order", "plans", "nodes", "leases", "delivery", "readouts")
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


MUTANTS = [
    *mutants(
        "ledger",
        ("long slot not counted", "row.long_in_flight += takes_long", "row.long_in_flight += 0"),
        ("turn not kept", "row.last_grant = ledger.grants", "row.last_grant = row.last_grant"),
        ("slot not freed", "    row.in_flight -= 1\n", "    row.in_flight -= 0\n"),
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
        ("any generation", " or self.nodes[row].generation != generation:", ":"),
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
            "                self.index.raise_head(entry.line, self.entries[line.head].sequence)",
            "                pass",
        ),
        (
            "oldest of two lists",
            "if self.entries[self.readmitted.head].sequence <",
            "if self.entries[self.readmitted.head].sequence >",
        ),
        (
            "heap upside down",
            "self.head_sequence(self.heap[parent]) <= sequence:",
            "self.head_sequence(self.heap[parent]) >= sequence:",
        ),
        (
            "heap takes the greater child",
            "self.head_sequence(self.heap[child + 1]) < self",
            "self.head_sequence(self.heap[child + 1]) > self",
        ),
        ("waiter waits on", "(<Waiter>waiter).is_waiting = False", "pass"),
        ("all re-admitted in one list", "&self.readmitted if is_readmitted else &self.fresh", "&self.fresh"),
    ),
    *mutants(
        "line_index",
        ("excluded is served", "return provider != excluded and row", "return row"),
        ("constrained served without long slots", " and (not is_constrained or row.long_capacity > 0)", ""),
        ("index not mended", "        self.lines[ref.line].members[ref.member].place = place", "        pass"),
        (
            "constrained among the others",
            "return &self.heaps[2 * <int64_t>provider + is_constrained]",
            "return &self.heaps[2 * <int64_t>provider]",
        ),
        ("stale top", "        while ref.sequence < self.lines[ref.line].head_sequence:", "        while False:"),
        (
            "top corrected in place",
            "            self.sink(heap, 0, ref)\n            ref = heap.refs[0]",
            "            heap.refs[0] = ref",
        ),
        ("oldest constrained unseen", "        if has_long_slot:", "        if False:"),
        ("constrained without a long slot", "        if has_long_slot:", "        if True:"),
        ("constrained always first", "self.lines[other].head_sequence < self.lines[line].head_sequence", "True"),
        (
            "new head not floated",
            "            if heap.refs[row.members[member].place].sequence > sequence:",
            "            if False:",
        ),
        (
            "new head unseen",
            "        row.head_sequence = ref.sequence = sequence\n        ref.line = line\n        for member",
            "        ref.sequence = sequence\n        ref.line = line\n        for member",
        ),
        ("hole always sinks", "            if last.sequence < heap.refs[place].sequence:", "            if False:"),
        ("hole always floats", "            if last.sequence < heap.refs[place].sequence:", "            if True:"),
        (
            "floats past its elders",
            "            if heap.refs[parent].sequence <= ref.sequence:",
            "            if False:",
        ),
        (
            "sinks below the younger",
            "            if heap.refs[child].sequence >= ref.sequence:",
            "            if False:",
        ),
        (
            "sinks on the wrong side",
            "heap.refs[child + 1].sequence < heap.refs[child].sequence",
            "heap.refs[child + 1].sequence > heap.refs[child].sequence",
        ),
    ),
    *mutants(
        "plans",
        ("report outlives the plan", " or row.is_healthy != row.planned_health", ""),
        ("gone but live", "                    self.ledger.update_live(self.order[place])\n", ""),
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
        ("deadline one late", ">= self.queue_timeout_ns", "> self.queue_timeout_ns"),
        ("class change leaves the index", " or staging.changes_long):", "):"),
        (
            "staged long slots unseen",
            "            staging.providers[staged.provider].long_capacity = staged.long_capacity\n",
            "",
        ),
        (
            "staged class unseen",
            "            staging.models[row].has_long = has_long_slots(&staging.models[row], staging.providers)\n",
            "            pass\n",
        ),
        ("mapping change unseen", "if model.count == count and memcmp", "if model.count == count or memcmp"),
        ("double provider taken", "            if row.plan_mark == self.plan_mark:", "            if False:"),
        ("nested reading allowed", "        if self.is_reading:", "        if False:"),
    ),
    *mutants(
        "choice",
        ("most loaded first", " or provider.in_flight > in_flight:", " or provider.in_flight < in_flight:"),
        ("load does not matter", " or provider.in_flight > in_flight:", ":"),
        ("least preferred first", "provider.priority > priority or", "provider.priority < priority or"),
        ("newest grant first", "provider.last_grant >= last_grant", "provider.last_grant <= last_grant"),
        ("last in the file first", "provider.last_grant >= last_grant", "provider.last_grant > last_grant"),
        ("full is free", "provider.in_flight >= provider.open_slots or ", ""),
        ("one above capacity", "provider.in_flight >= provider.open_slots", "provider.in_flight > provider.open_slots"),
        ("anybody can", "if provider.can & needs != needs or index", "if index"),
        ("long without long slots", " and (not is_constrained or provider.long_capacity > 0)", ""),
        (
            "long over its slots",
            "if is_constrained and provider.long_in_flight >= provider.long_capacity:",
            "if False:",
        ),
        ("back to the excluded", " or index == excluded:", ":"),
        ("excluded is live", "if index != excluded and is_live_for", "if is_live_for"),
    ),
    *mutants(
        "settlement",
        (
            "nobody is stranded",
            "            self.strand_marked()\n            self.grant_marked(now_ns)",
            "            self.queue.heap_count = 0\n            self.grant_marked(now_ns)",
        ),
        (
            "grant before strand",
            "            self.strand_marked()\n            self.grant_marked(now_ns)",
            "            self.grant_marked(now_ns)\n            self.strand_marked()",
        ),
        (
            "one expires a step",
            "            self.evict(slot, EVICTED_TIMEOUT)\n            slot = self.queue.oldest()",
            "            self.evict(slot, EVICTED_TIMEOUT)\n            slot = NONE",
        ),
        (
            "settles without expiry",
            "        self.expire(now_ns)\n        if self.queue.marked_count",
            "        if self.queue.marked_count",
        ),
        (
            "one grant a line",
            "                self.restore_heap(row)\n        return 0",
            "                self.queue.heap_drop()\n        return 0",
        ),
        (
            "one stranded a line",
            "EVICTED_UNAVAILABLE)\n            self.restore_heap(row)",
            "EVICTED_UNAVAILABLE)\n            self.queue.heap_drop()",
        ),
        ("freed slot to a long one", "row.long_in_flight < row.long_capacity)", "True)"),
        (
            "dead provider's slot granted",
            "        while row.in_flight < row.open_slots:",
            "        while row.in_flight < row.capacity:",
        ),
        ("above capacity granted", "        while row.in_flight < row.open_slots:", "        while True:"),
        (
            "queued long takes no long slot",
            "takes_long = line.is_long and self.catalog.models[line.model].has_long",
            "takes_long = False",
        ),
        (
            "grants count as evictions",
            "count_end(self.tally, line.model, GRANTED)",
            "count_end(self.tally, line.model, EVICTED_TIMEOUT)",
        ),
    ),
    *mutants(
        "tally",
        ("new model counts on", "        memset(&self.outcomes_of[model], 0, sizeof(ModelOutcomes))", "        pass"),
        ("copy forgets", "        twin.outcomes = self.outcomes\n", ""),
    ),
    *mutants(
        "readouts",
        (
            "pressure without capacity",
            "        if self.ledger.providers[provider].capacity == 0:\n            return 0\n",
            "",
        ),
        (
            "pressure of one class",
            "            self.queue.index.heap_of(provider, True)\n        )",
            "            self.queue.index.heap_of(provider, False)\n        )",
        ),
        ("offline shows its capacity", "row.capacity if is_online else 0", "row.capacity"),
        ("wrong position", "position = 1 + self.competing", "position = self.competing"),
        ("draining looks offline", 'return "draining"', 'return "node_offline"'),
        (
            "dead providers drain the queue",
            "            if self.ledger.providers[model.candidates[place]].is_live:",
            "            if True:",
        ),
    ),
    *mutants(
        "admission",
        ("queue one too long", ".fresh.count >= self.catalog.queue_limit:", ".fresh.count > self.catalog.queue_limit:"),
        ("re-admitted bounded", "if not arrival.is_readmitted and self.queue.fresh", "if self.queue.fresh"),
        (
            "release does not expire",
            "            self.settlement.expire(now_ns)\n            self.settlement.grant_freed(provider, now_ns)",
            "            self.settlement.grant_freed(provider, now_ns)",
        ),
        (
            "grant before expiry",
            "            self.settlement.expire(now_ns)\n            self.settlement.grant_freed(provider, now_ns)",
            "            self.settlement.grant_freed(provider, now_ns)\n            self.settlement.expire(now_ns)",
        ),
        ("lost counted as double", "+= lease.ended == END_RELEASED", "+= 1"),
        ("double release uncounted", "self.tally.double_releases += lease.ended == END_RELEASED", "pass"),
        ("delivery recurses", " and not self.is_delivering:", ":"),
        (
            "failed owner keeps its lease",
            "                self.end_lease(self.now_ns, lease)\n",
            "                pass\n",
        ),
        ("stale generation is ready", "if generation <= node.generation", "if generation < node.generation"),
        (
            "superseded session keeps leases",
            "        if node.link != LINK_OFFLINE:\n            self.ledger.lose_leases(row, now_ns)",
            "        if False:\n            self.ledger.lose_leases(row, now_ns)",
        ),
        (
            "dead node keeps leases",
            "        self.ledger.lose_leases(row, now_ns)\n        self.queue.unmark_all()",
            "        self.queue.unmark_all()",
        ),
        (
            "plan does not settle",
            "            self.queue.mark_all()\n            self.settlement.settle(now_ns)",
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
        (
            "draining ends one",
            "        slot = self.queue.oldest()\n        while slot != NONE:\n            self.settlement.evict(slot, EVICTED_DRAINING)",
            "        slot = self.queue.oldest()\n        if slot != NONE:\n            self.settlement.evict(slot, EVICTED_DRAINING)",
        ),
    ),
]


def make_tree(tree: Path) -> None:
    shutil.copytree(ROOT / "iop_fast", tree / "iop_fast", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "tests", tree / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "src_pyx").mkdir()
    for name in CORE:
        shutil.copy(ROOT / "src_pyx" / f"{name}.pyx", tree / "src_pyx")
    shutil.copy(ROOT / "pyproject.toml", tree)
    (tree / "build_mutant.py").write_text(BUILD)


def fails(tree: Path, *words: str) -> bool:
    """True when a command in the tree fails, crashes or hangs."""
    done = run(tree, *words, limit_s=TIMEOUT_S)
    return done is None or done.returncode != 0


def fate(tree: Path) -> str:
    """What kills the mutant, or "SURVIVED"."""
    files = [f"tests/unit/core/test_{name}.py" for name in DIALOGUES]
    if fails(tree, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *files):
        return "killed by a dialogue"
    if fails(tree, "-m", "tests.soak.core", "4000", "1"):
        return "killed by the model"
    return "SURVIVED"


def main(names: list[str]) -> int:
    table = chosen(MUTANTS, names)
    survivors = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        tree = Path(scratch)
        make_tree(tree)
        for name in CORE:
            if fails(tree, "build_mutant.py", name):
                raise SystemExit(f"the sound {name} does not build")
        if fate(tree) != "SURVIVED":
            raise SystemExit("the sound core does not pass: no mutant can be judged")
        sound = {path.name: path.read_bytes() for path in (tree / "iop_fast" / "_core").glob("*.so")}
        for mutant in table:
            for name, content in sound.items():
                target = tree / "iop_fast" / "_core" / name
                target.unlink()
                target.write_bytes(content)
            source = f"{mutant.module}.pyx"
            (tree / "src_pyx" / source).write_text(mutated(mutant, ROOT / "src_pyx" / source))
            end = "does not build" if fails(tree, "build_mutant.py", mutant.module) else fate(tree)
            shutil.copy(ROOT / "src_pyx" / source, tree / "src_pyx")
            survivors += end in ("SURVIVED", "does not build")
            print(f"{mutant.module:11} {mutant.name:36} {end}", flush=True)
    return close(len(table), survivors)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
