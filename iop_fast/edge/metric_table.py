"""Every metric of the Edge: name, type, meaning and labels. docs/metrics.md is made from this table.

`model`, `node`, `provider`, `principal` and `token_ref` are ids of the configuration in force; a request for no model
of it counts under the model `other`, one that no provider got under the provider and node `none`. `outcome` is that of
the access line.
"""

from __future__ import annotations

from iop_fast.metrics import Family, Kind

COUNTER, GAUGE, HISTOGRAM, SUMMARY = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM, Kind.SUMMARY

PROVIDER = ("node", "provider")
DIRECTED = ("node", "direction")

# Requests

REQUESTS = Family(
    "iop_requests_total",
    COUNTER,
    "Requests that have ended, by what became of them and by the provider that had them last; one an access line.",
    ("model", "node", "provider", "outcome"),
)
REQUEST_QUEUE = Family(
    "iop_request_queue_seconds",
    HISTOGRAM,
    "Time that requests waited for a slot, those included that never got one.",
    ("model", "class"),
)
REQUEST_TTFB = Family(
    "iop_request_time_to_first_byte_seconds",
    HISTOGRAM,
    "Time from a request's head to the head of its provider's answer.",
    ("model",),
)
REQUEST_DURATION = Family(
    "iop_request_duration_seconds",
    HISTOGRAM,
    "Time from a request's head to its end, whatever its outcome.",
    ("model",),
)
REQUEST_OVERHEAD = Family(
    "iop_request_overhead_seconds",
    HISTOGRAM,
    "Time from a request's grant until it is on its way to its Node: what the Edge adds, neither waiting nor upstream.",
)
READMISSIONS = Family(
    "iop_readmissions_total",
    COUNTER,
    "Requests that were admitted again because their provider cannot have seen them.",
)

# Admission and the queue

ADMISSION = Family(
    "iop_admission_total",
    COUNTER,
    "How requests left admission. A model that leaves the configuration and returns begins at 0.",
    ("model", "outcome"),
)
QUEUE_WAITING = Family("iop_queue_waiting", GAUGE, "Requests that wait for a slot.")
QUEUE_LIMIT = Family("iop_queue_limit", GAUGE, "How many requests may wait (provider_pool.max_queue).")
QUEUE_TIMEOUT = Family("iop_queue_timeout_seconds", GAUGE, "How long a request may wait; 0 is without limit.")
QUEUE_OLDEST = Family(
    "iop_queue_oldest_age_seconds", GAUGE, "How long the oldest waiting request has waited; 0 for none."
)
MODEL_WAITING = Family(
    "iop_model_waiting", GAUGE, "Requests that wait for a slot, by model and context class.", ("model", "class")
)
MODEL_CANDIDATES = Family(
    "iop_model_live_candidates", GAUGE, "Providers that could serve a request for the model now.", ("model",)
)

# Providers

PROVIDER_UP = Family(
    "iop_provider_up", GAUGE, "1 while the provider takes requests: its Node ready, enabled, healthy.", PROVIDER
)
PROVIDER_ENABLED = Family("iop_provider_enabled", GAUGE, "1 where the configuration enables the provider.", PROVIDER)
PROVIDER_HEALTHY = Family(
    "iop_provider_healthy", GAUGE, "1 while the provider counts as healthy and its Node is connected.", PROVIDER
)
PROVIDER_IN_FLIGHT = Family("iop_provider_in_flight", GAUGE, "Requests that hold a slot of the provider.", PROVIDER)
PROVIDER_LONG_IN_FLIGHT = Family(
    "iop_provider_long_in_flight", GAUGE, "Requests that hold a long slot of the provider.", PROVIDER
)
PROVIDER_CAPACITY = Family(
    "iop_provider_capacity", GAUGE, "Slots of the provider, 0 while its Node is offline.", PROVIDER
)
PROVIDER_LONG_CAPACITY = Family(
    "iop_provider_long_capacity", GAUGE, "Long slots of the provider, 0 while its Node is offline.", PROVIDER
)
PROVIDER_CONFIGURED = Family(
    "iop_provider_configured_capacity", GAUGE, "Slots of the provider as configured.", PROVIDER
)
PROVIDER_LONG_CONFIGURED = Family(
    "iop_provider_configured_long_capacity", GAUGE, "Long slots of the provider as configured.", PROVIDER
)
PROVIDER_QUEUED = Family(
    "iop_provider_queued",
    GAUGE,
    "Pressure: waiting requests that the provider could serve, 0 while its Node is offline.",
    PROVIDER,
)
PROVIDER_QUEUE = Family(
    "iop_provider_queue_seconds", SUMMARY, "Time that requests granted to the provider had waited.", PROVIDER
)
PROVIDER_TTFB = Family(
    "iop_provider_time_to_first_byte_seconds",
    SUMMARY,
    "Time from the grant to the head of the provider's answer.",
    PROVIDER,
)
PROVIDER_LEASE = Family(
    "iop_provider_lease_seconds",
    SUMMARY,
    "Time that requests held a slot of the provider, however they ended.",
    PROVIDER,
)

# Nodes and their links

NODE_UP = Family("iop_node_up", GAUGE, "1 while a session of the Node is ready for requests.", ("node",))
NODE_GENERATION = Family(
    "iop_node_generation", GAUGE, "Number of the Node's current session, 0 without one.", ("node",)
)
NODE_PAYLOAD_REVISION = Family(
    "iop_node_payload_revision", GAUGE, "Revision at which the Node's configuration last changed.", ("node",)
)
NODE_OBSERVED_REVISION = Family(
    "iop_node_observed_payload_revision",
    GAUGE,
    "Revision of the configuration that the Node says it runs, 0 without a ready session.",
    ("node",),
)
NODE_SILENCE = Family(
    "iop_node_silence_seconds", GAUGE, "How long nothing was heard of the Node, 0 without a session.", ("node",)
)
LINK_RUNS = Family("iop_link_runs", GAUGE, "Requests that run on the Node.", ("node",))
LINK_BUFFERED = Family(
    "iop_link_buffered_bytes", GAUGE, "Bytes that wait in this process for the Node or for clients of it.", ("node",)
)
LINK_BYTES = Family("iop_link_bytes_total", COUNTER, "Bytes of messages on links, sent and received.", DIRECTED)
LINK_MESSAGES = Family("iop_link_messages_total", COUNTER, "Messages on links, sent and received.", DIRECTED)
LINK_FRAMES = Family(
    "iop_link_frames_total",
    COUNTER,
    "Frames on links, sent and received; over iop_link_messages_total they say how well frames share messages.",
    DIRECTED,
)
LINK_EVENTS = Family(
    "iop_link_events_total",
    COUNTER,
    "What happened to sessions: accepted, refused, superseded, silent, malformed, ready_acks_ignored, runs_lost,"
    " runs_reclaimed, runs_failed.",
    ("event",),
)

# Usage

TOKENS = Family(
    "iop_tokens_total",
    COUNTER,
    "Tokens as providers reported them: prompt, completion, and cached, which are part of the prompt.",
    ("principal", "token_ref", "kind"),
)
USAGE_REQUESTS = Family(
    "iop_usage_requests_total",
    COUNTER,
    "Requests booked for usage: complete, partial (the answer was cut), unknown (nothing was reported).",
    ("principal", "token_ref", "state"),
)
MODEL_TOKENS = Family(
    "iop_model_tokens_total", COUNTER, "Tokens as providers reported them, by model.", ("model", "kind")
)
ESTIMATED_TOKENS = Family(
    "iop_estimated_prompt_tokens_total",
    COUNTER,
    "What the Edge had estimated for the requests whose prompt was reported; compare iop_reported_prompt_tokens_total.",
    ("model",),
)
REPORTED_TOKENS = Family(
    "iop_reported_prompt_tokens_total", COUNTER, "Prompt tokens as reported, for the same requests.", ("model",)
)

# Configuration

CONFIG_REVISION = Family("iop_config_revision", GAUGE, "Revision of the configuration in force.")
REFRESHES = Family("iop_refresh_total", COUNTER, "Refreshes by mode and by how they came out.", ("mode", "status"))
REFRESH_TIME = Family(
    "iop_refresh_last_timestamp_seconds", GAUGE, "When the last refresh of a mode ended, as unix time.", ("mode",)
)
REFRESH_SUCCESS = Family(
    "iop_refresh_last_apply_successful",
    GAUGE,
    "1 when the last refresh that was to be applied was applied or had nothing to change; 1 before any.",
)

# HTTP listener

HTTP_CONNECTIONS = Family("iop_http_connections", GAUGE, "Open client connections.")
HTTP_ACCEPTED = Family("iop_http_connections_accepted_total", COUNTER, "Client connections that were accepted.")
HTTP_REFUSALS = Family(
    "iop_http_refusals_total", COUNTER, "Requests and connections that the HTTP layer refused by itself.", ("reason",)
)
HTTP_DROPPED = Family(
    "iop_http_requests_dropped_total", COUNTER, "Requests whose client left, or was refused, before the answer's end."
)
HTTP_CUT = Family(
    "iop_http_answers_cut_total", COUNTER, "Answers that were broken off because they could not be whole."
)
HTTP_STALLS = Family(
    "iop_http_stalled_connections_total", COUNTER, "Connections that were cut because their client read nothing."
)
HTTP_BUFFERED = Family("iop_http_buffered_bytes", GAUGE, "Request bodies in memory.")
HTTP_BUFFERED_LIMIT = Family(
    "iop_http_buffered_bytes_limit", GAUGE, "How many bytes of request bodies may be in memory."
)

# The process

READY = Family("iop_ready", GAUGE, "1 while /readyz says ready.")
DRAINING = Family("iop_draining", GAUGE, "1 while the Edge shuts down.")
LINES_DROPPED = Family(
    "iop_log_lines_dropped_total", COUNTER, "Lines that were dropped because writing was too slow.", ("log",)
)
LINES_FAILED = Family("iop_log_lines_failed_total", COUNTER, "Lines that could not be written.", ("log",))
SPANS = Family(
    "iop_trace_spans_total",
    COUNTER,
    "Spans of requests while tracing is on: exported (the collector took them), failed (it did not), dropped (too"
    " many were under way).",
    ("result",),
)
FAULTS = Family(
    "iop_faults_total",
    COUNTER,
    "Faults of the gateway itself, each of which the log explains. Expected to stay 0.",
    ("kind",),
)

FAMILIES = tuple(value for value in list(globals().values()) if isinstance(value, Family))
