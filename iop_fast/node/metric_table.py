"""Every metric of a Node: name, type, meaning and labels. docs/metrics.md is made from this table.

`provider` is an id of the configuration that the Edge sent last.
"""

from __future__ import annotations

from iop_fast.metrics import Family, Kind

COUNTER, GAUGE, HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

READY = Family("iop_node_ready", GAUGE, "1 while a session with the Edge takes requests.")
SESSIONS = Family("iop_node_sessions_total", COUNTER, "Sessions with the Edge that were begun.")
SESSION_GENERATION = Family(
    "iop_node_session_generation", GAUGE, "Number of the current session as the Edge gave it, 0 without one."
)
PAYLOAD_REVISION = Family(
    "iop_node_session_payload_revision", GAUGE, "Revision of the configuration that this Node runs, 0 before any."
)
RUNS = Family("iop_node_runs", GAUGE, "Requests that run on this Node.")
RUNS_ENDED = Family(
    "iop_node_runs_total",
    COUNTER,
    "Requests that have ended on this Node, by provider and by status: ok, cancelled, connect_failed, upstream_error,"
    " upstream_timeout, internal, refused.",
    ("provider", "status"),
)
PROVIDER_RUNS = Family("iop_node_provider_runs", GAUGE, "Requests that run on the provider.", ("provider",))
PROVIDER_STATE = Family(
    "iop_node_provider_state",
    GAUGE,
    "The state of each provider: 1 for the one it is in (up, loading, unreachable, broken).",
    ("provider", "state"),
)
RETIRED = Family("iop_node_retired_registries", GAUGE, "Replaced sets of adapters whose requests go on.")
LINK_BYTES = Family("iop_node_link_bytes_total", COUNTER, "Bytes of messages to and from the Edge.", ("direction",))
LINK_MESSAGES = Family("iop_node_link_messages_total", COUNTER, "Messages to and from the Edge.", ("direction",))
LINK_FRAMES = Family(
    "iop_node_link_frames_total",
    COUNTER,
    "Frames to and from the Edge; over iop_node_link_messages_total they say how well frames share messages.",
    ("direction",),
)
SPANS = Family(
    "iop_node_trace_spans_total",
    COUNTER,
    "Spans of runs while tracing is on: exported (the collector took them), failed (it did not), dropped (too many"
    " were under way).",
    ("result",),
)
TASKS = Family("iop_node_tasks", GAUGE, "Tasks of the event loop; flat when the load is.")

FAMILIES = tuple(value for value in list(globals().values()) if isinstance(value, Family))
