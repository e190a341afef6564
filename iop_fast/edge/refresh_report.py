"""What a refresh did or would do, as plain data: sorted, lists never null, the same for dry run and apply.

Values of secret keys never stand here; `config.diff` leaves them out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any, Literal

from iop_fast.config.diff import Diff
from iop_fast.errors import Finding

Mode = Literal["dry_run", "apply"]


class Status(Enum):
    """How a refresh came out; of a dry run, how the apply would."""

    APPLIED = "applied"
    NO_CHANGE = "no_change"
    RESTART_REQUIRED = "restart_required"  # nothing was applied, not even what is live
    INVALID = "invalid"
    STALE = "stale"  # what the caller expected to run, or to be applied, is not so


NOTHING = Diff(())


@dataclass(frozen=True, slots=True)
class Impact:
    """What the one step of admission does to those who run and wait at that moment.

    Leases above a lowered capacity are not cut: nothing is granted until enough of them have ended.
    """

    leases_above_capacity: int = 0
    long_leases_above_capacity: int = 0
    waiters_granted: int = 0
    waiters_evicted_timeout: int = 0
    waiters_evicted_unavailable: int = 0


@dataclass(frozen=True, slots=True)
class NodePush:
    """Where the changed payload of one Node stands: acked, pending or refused, and why it is not acked."""

    node_id: str
    payload_revision: int
    status: str
    reason: str


@dataclass(frozen=True, slots=True)
class Report:
    """One refresh. `revision` is the one in force afterwards, `file_sha256` that of what was judged ("" if unreadable).

    `errors` are the findings that refuse the candidate; `warnings` those that do not.
    """

    mode: Mode
    status: Status
    revision: int
    file_sha256: str
    diff: Diff = NOTHING
    findings: Sequence[Finding] = ()
    node_pushes: Sequence[NodePush] = ()
    impact: Impact = field(default_factory=Impact)

    def as_plain(self, changes_max: int | None = None) -> dict[str, Any]:
        """Render for JSON; with `changes_max`, name no more changed paths and findings than that."""
        diff = self.diff
        return {
            "mode": self.mode,
            "status": self.status.value,
            "revision": self.revision,
            "file_sha256": self.file_sha256,
            "changed_nodes": list(diff.changed_nodes),
            "changed_providers": list(diff.changed_providers),
            "changed_models": list(diff.changed_models),
            "changed_paths": [
                {"path": one.path, "kind": one.kind, "apply": one.apply, "before": one.before, "after": one.after}
                for one in diff.changes[:changes_max]
            ],
            "changed_paths_total": len(diff.changes),
            "restart_required_paths": list(diff.restart_required_paths[:changes_max]),
            "errors": [asdict(one) for one in self.findings if one.severity == "error"][:changes_max],
            "warnings": [asdict(one) for one in self.findings if one.severity != "error"][:changes_max],
            "node_pushes": [asdict(one) for one in self.node_pushes],
            "impact": asdict(self.impact),
        }
