"""The Edge's file."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator

from iop_fast.config.schema.common import LinkTransport, Log, Observe, ServerTls, Tracing, link_transport
from iop_fast.config.schema.fields import DAY_MS, MIB, Address, Entries, Id, LocalAddress, Section, Text, setting
from iop_fast.config.schema.fleet import Model, Node
from iop_fast.config.schema.front import OpenAi

MAX_QUEUE_DEFAULT = 16


def queue_bound(value: int) -> int:
    """Read 0 as "the default"."""
    return value or MAX_QUEUE_DEFAULT


class Link(Section):
    """The sessions with the Nodes."""

    transport: LinkTransport = link_transport()
    heartbeat_ms: int = setting(
        "Time between heartbeats. The other side waits for three of them at least before it calls this one silent.",
        apply="restart",
        unit="ms",
        default=5_000,
        ge=10,
        le=600_000,
    )
    silence_ms: int = setting(
        "A Node that was not heard from for this long is lost.",
        apply="restart",
        unit="ms",
        default=15_000,
        ge=30,
        le=DAY_MS,
        at_limit="its running requests end with 502 upstream_error or a cut answer",
    )
    pace_ms: int = setting(
        "Shortest time between two messages that hold nothing but middle pieces of answers.",
        apply="restart",
        unit="ms",
        default=2,
        ge=0,
        le=1_000,
    )
    window_bytes: int = setting(
        "Bytes on their way at one time, per session and direction.",
        apply="restart",
        unit="bytes",
        default=262_144,
        ge=65_536,
        le=64 * MIB,
    )
    run_window_bytes: int = setting(
        "Bytes of one request on their way at one time, per direction; the Nodes are told. An answer whose "
        "client does not read keeps at most this and 64 KiB in memory.",
        apply="restart",
        unit="bytes",
        default=262_144,
        ge=16_384,
        le=64 * MIB,
        at_limit="the provider is not read any further until the client has read; nobody else's answer waits",
    )
    buffered_bytes_max: int = setting(
        "Bytes that may wait in memory for one session: what is queued to its Node (bodies of requests fill half of it "
        "at most), and what clients have not read of its answers. Beyond it come at most an opening (96 KiB) and two "
        "windows for each request that runs already.",
        apply="restart",
        unit="bytes",
        default=16 * MIB,
        ge=65_536,
        le=1_024 * MIB,
        at_limit="a request for this Node goes to another provider once, or ends with 503 overloaded; from half of it "
        "on bodies wait under openai.limits.buffered_bytes",
    )
    cancel_confirm_ms: int = setting(
        "Time a Node has to confirm that it stopped a request whose client left; the slot is held until then.",
        apply="restart",
        unit="ms",
        default=5_000,
        ge=1,
        le=600_000,
    )
    health_hold_ms: int = setting(
        "Time a provider must report up again before it gets requests.",
        apply="restart",
        unit="ms",
        default=2_000,
        ge=0,
        le=600_000,
    )
    push_answer_ms: int = setting(
        "Time that the answer of a refresh waits for the Nodes' acknowledgements.",
        apply="restart",
        unit="ms",
        default=5_000,
        ge=0,
        le=600_000,
    )
    reconnect_after_ms: int = setting(
        "Time after which Nodes are asked to dial again when the Edge shuts down.",
        apply="restart",
        unit="ms",
        default=1_000,
        ge=0,
        le=600_000,
    )


class EdgeLog(Log):
    """What is written to standard error, one JSON object a line (docs/logs.md)."""

    access: bool = setting("Write one access line a request.", apply="restart", default=True)


class Edge(Section):
    """The Edge itself and its listener for Nodes."""

    id: Id = setting("Name of this Edge in logs and metrics.", apply="restart", default="edge")
    name: Text | None = setting("Name shown to people.", apply="restart", default=None)
    listen: Address = setting("Address of the listener that Nodes dial.", apply="restart", default="127.0.0.1:8081")
    tls: ServerTls | None = setting("Transport security of the listener.", apply="restart", default=None)
    insecure: bool = setting(
        "Listen without tls on an address that other machines reach; Nodes' tokens and all requests cross the network "
        "readable.",
        apply="restart",
        default=False,
    )
    link: Link = setting("The sessions with the Nodes.", apply="restart", factory=Link)
    log: EdgeLog = setting("Logging.", apply="restart", factory=EdgeLog)


class A2a(Section):
    """The agent-to-agent listener."""

    enabled: bool = setting("Serve it. This build does not.", apply="restart", default=False)
    listen: Address = setting("Address of the listener.", apply="restart", default="127.0.0.1:8083")


class ControlPlane(Section):
    """The connection to a control plane."""

    enabled: bool = setting("Connect to it. This build does not.", apply="restart", default=False)
    address: Address | None = setting("Address of the control plane.", apply="restart", default=None)


class Bootstrap(Section):
    """The package that new Nodes fetch."""

    enabled: bool = setting("Serve it. This build does not.", apply="restart", default=False)
    artifact_path: Text | None = setting("File that holds the package.", apply="restart", default=None)


class Admin(Section):
    """The operator's listener: status, refresh, dashboard."""

    listen: LocalAddress = setting(
        "Address of the listener: loopback, or unix:/path. It has no login and must not be reachable from outside.",
        apply="restart",
        default="127.0.0.1:8082",
    )


class ProviderPool(Section):
    """The one queue in front of all providers."""

    max_queue: Annotated[int, AfterValidator(queue_bound)] = setting(
        "Requests of all models that may wait at one time; 0 for the default.",
        apply="live",
        default=MAX_QUEUE_DEFAULT,
        ge=0,
        le=1_000_000,
        at_limit="429 queue_full with Retry-After",
    )
    queue_timeout_ms: int = setting(
        "Time that a request may wait; 0 for no limit. A change moves the deadline of those that wait.",
        apply="live",
        unit="ms",
        default=30_000,
        ge=0,
        le=DAY_MS,
        at_limit="504 queue_timeout",
    )


class EdgeConfig(Section):
    """Configuration of an Edge and of the fleet behind it."""

    edge: Edge = setting("The Edge itself and its listener for Nodes.", apply="restart", factory=Edge)
    openai: OpenAi = setting("The OpenAI-compatible listener.", apply="restart", factory=OpenAi)
    a2a: A2a = setting("The agent-to-agent listener.", apply="restart", factory=A2a)
    control_plane: ControlPlane = setting("The connection to a control plane.", apply="restart", factory=ControlPlane)
    bootstrap: Bootstrap = setting("The package that new Nodes fetch.", apply="restart", factory=Bootstrap)
    admin: Admin = setting("The operator's listener.", apply="restart", factory=Admin)
    observe: Observe | None = setting(
        "A listener for probes and metrics; left out, there is none.", apply="restart", default=None
    )
    tracing: Tracing = setting("Spans of requests.", apply="restart", factory=Tracing)
    provider_pool: ProviderPool = setting("The one queue.", apply="live", factory=ProviderPool)
    models: Entries[Model] = setting("What clients may ask for.", apply="live", default=(), ordered=True)
    nodes: Entries[Node] = setting("The machines and their backends.", apply="restart", default=(), ordered=True)
