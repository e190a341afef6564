"""Accounting: what each provider may run and what it runs. Every slot and every lease is here and nowhere else."""

from typing import final

DURATION_BOUNDS_NS: tuple[int, ...]
"""Upper bounds, inclusive, of the buckets in which waits and leases are counted."""

@final
class Lease:
    """The right to run one request on one provider, ended exactly once. Only the core makes one.

    C fields only, so that its finalizer runs each time: a lease dropped while held puts its id on the ledger's list,
    and `Admission.reclaim` gives it back.
    """

    @property
    def is_held(self) -> bool:
        """False once it was released, lost with its Node or reclaimed."""
    @property
    def lease_id(self) -> int:
        """Unique over the life of the ledger, from 1; also the run id on the wire."""
    @property
    def generation(self) -> int:
        """The session generation of its Node at the grant."""
    @property
    def took_long(self) -> bool:
        """It holds a long slot beside the normal one."""
    @property
    def is_long(self) -> bool:
        """The request's label, constrained or not."""
    @property
    def sequence(self) -> int:
        """The request's place in the global enqueue order."""
    @property
    def enqueued_at_ns(self) -> int: ...
    @property
    def granted_at_ns(self) -> int: ...

@final
class Ledger:
    """All slots and leases behind an Admission. It has no Python interface."""
