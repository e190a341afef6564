"""The sessions of all Nodes: which one is current, the next generation, and what is said to all of them.

At most one session of a Node is current: the one accepted last, until it closes. Only a current session is found here,
and a lease finds its session by Node *and* generation. A session takes itself out when it closes, so a closed one is
never found, and one that was superseded takes out nothing but itself.
"""

from __future__ import annotations

from typing import NamedTuple, Self

from iop_fast import logs
from iop_fast.config.schema import Link
from iop_fast.edge.link import LinkState, NodeLink
from iop_fast.edge.link_runs import LinkCounters
from iop_fast.edge.pushes import Push
from iop_fast.wire.traffic import Traffic

NS_PER_MS = 1_000_000

log = logs.get(__name__)


class LinkLimits(NamedTuple):
    """The times and sizes of `edge.link` that a session keeps."""

    heartbeat_ns: int
    silence_ns: int
    health_hold_ns: int
    buffered_bytes_max: int

    @classmethod
    def of(cls, link: Link) -> Self:
        """Read them from the configuration."""
        return cls(
            heartbeat_ns=link.heartbeat_ms * NS_PER_MS,
            silence_ns=link.silence_ms * NS_PER_MS,
            health_hold_ns=link.health_hold_ms * NS_PER_MS,
            buffered_bytes_max=link.buffered_bytes_max,
        )


class Links:
    """Current sessions by Node, in the order of their acceptance."""

    __slots__ = ("_current", "_generation", "_traffic", "_was_ready", "counters", "limits")

    def __init__(self, limits: LinkLimits) -> None:
        self.limits = limits
        self.counters = LinkCounters()
        self._current: dict[str, NodeLink] = {}
        self._traffic: dict[str, Traffic] = {}
        self._generation = 0
        self._was_ready = False

    def __repr__(self) -> str:
        return f"<Links {list(self._current.values())}>"

    # Registration.

    def next_generation(self) -> int:
        """Number an accepted registration: from 1, rising, never given twice."""
        self._generation += 1
        return self._generation

    def holder(self, node_id: str, instance_id: str) -> NodeLink | None:
        """Return the session that keeps another instance from this Node's id, None when the way is free.

        The holder keeps its id, and so its streams, as long as it is alive. One that drains and runs nothing any more
        has nothing to keep.
        """
        link = self._current.get(node_id)
        if link is None or link.session.instance_id == instance_id or not link.silence.is_within_limit:
            return None
        return None if link.state is LinkState.DRAINING and not link.run_count else link

    def install(self, link: NodeLink) -> None:
        """Make an accepted session the current one of its Node; the one before is closed first."""
        before = self._current.get(link.node_id)
        if before is not None:
            self.counters.superseded += 1
            before.close("superseded")
        self.counters.accepted += 1
        self._current[link.node_id] = link

    def note_ready(self) -> None:
        """A session became ready: from now on this Edge has seen one."""
        self._was_ready = True

    def forget(self, link: NodeLink) -> None:
        """Take a closing session out; nothing happens when a newer one has its place."""
        if self._current.get(link.node_id) is link:
            del self._current[link.node_id]

    # Lookup.

    @property
    def was_ready(self) -> bool:
        """True once any Node has been ready."""
        return self._was_ready

    @property
    def run_count(self) -> int:
        """Runs of all sessions."""
        return sum(link.run_count for link in self._current.values())

    def for_lease(self, node_id: str, generation: int) -> NodeLink | None:
        """Return the session that a lease was granted for; None unless that very one is up."""
        link = self._current.get(node_id)
        return link if link is not None and link.generation == generation and link.is_up else None

    def current(self, node_id: str) -> NodeLink | None:
        """Return a Node's current session, whatever its state, for status."""
        return self._current.get(node_id)

    def traffic(self, node_id: str) -> Traffic:
        """Return what is counted of a configured Node's messages, over all of its sessions."""
        return self._traffic.setdefault(node_id, Traffic())

    def is_reported_up(self, key: tuple[str, str]) -> bool:
        """Say whether the Node's own (held) word on the provider (node_id, provider_id) is that it is up."""
        link = self._current.get(key[0])
        return link is not None and link.is_up and link.health.is_up(key[1])

    # To all.

    def push_changed(self) -> dict[str, Push]:
        """Push to every ready Node whose payload is not the one it was sent last; by Node id, sorted."""
        ready = sorted(node_id for node_id, link in self._current.items() if link.state is LinkState.READY)
        pushes = {node_id: self._current[node_id].push_if_changed() for node_id in ready}
        return {node_id: push for node_id, push in pushes.items() if push is not None}

    def say_draining(self, reconnect_after_ms: int, limit_ms: int) -> None:
        """Tell every Node that this Edge shuts down."""
        for link in list(self._current.values()):
            link.say_draining(reconnect_after_ms, limit_ms)

    def close_all(self, reason: str) -> None:
        """Close every session."""
        for link in list(self._current.values()):
            link.close(reason)
