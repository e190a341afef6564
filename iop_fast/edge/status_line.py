"""One line about an Edge, for the service manager: who is ready, what runs and waits, what came of a refresh."""

from __future__ import annotations

from iop_fast.edge.link import LinkState
from iop_fast.edge.links import Links
from iop_fast.edge.refresh import Refresher
from iop_fast.edge.refresh_report import Status
from iop_fast.edge.state import EdgeState

TAKEN = (Status.APPLIED.value, Status.NO_CHANGE.value)


def status_line(edge: EdgeState, links: Links, refresher: Refresher) -> str:
    """Return the line as it is at this moment."""
    nodes = edge.runtime.config.nodes
    found = (links.current(node.id) for node in nodes)
    ready = sum(link is not None and link.state is LinkState.READY for link in found)
    first = "draining" if edge.is_draining else f"{ready} of {len(nodes)} nodes ready"
    line = f"{first}, {links.run_count} running, {edge.gate.waiting} waiting"
    last = next((entry for entry in refresher.history if entry.report["mode"] == "apply"), None)
    if last is None or last.report["status"] in TAKEN:
        return line
    at = last.at.isoformat(timespec="seconds")
    return f"{line}; the refresh of {at} was not applied: {last.report['status']}"
