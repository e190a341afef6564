"""The Node's own file: who it is, where its Edge is, and what may be run on this machine.

Everything about providers comes from the Edge. Commands stand here and nowhere else, so that nobody who can change the
Edge's file can run a command on this machine that its owner has not written down.
"""

from __future__ import annotations

from iop_fast.config.schema.cli_profile import CliProfile
from iop_fast.config.schema.common import ClientTls, LinkTransport, Log, Observe, Tracing, link_transport
from iop_fast.config.schema.fields import DAY_MS, MIB, Address, Entries, EnvName, Id, Section, Text, setting
from iop_fast.config.schema.native import NativeModel, echo_models


class NodeEdge(Section):
    """The Edge that the Node dials."""

    address: Address = setting("Address of the Edge's listener for Nodes.", apply="restart")
    tls: ClientTls | None = setting("Transport security of the connection.", apply="restart", default=None)
    insecure: bool = setting(
        "Dial without tls an Edge on another machine; the Node's token and all requests cross the network readable.",
        apply="restart",
        default=False,
    )


class NodeLink(Section):
    """The session with the Edge."""

    transport: LinkTransport = link_transport()


class NodeLimits(Section):
    """Limits of the Node."""

    drain_ms: int = setting(
        "Time that running requests get to end when the Node shuts down.",
        apply="restart",
        unit="ms",
        default=30_000,
        ge=0,
        le=DAY_MS,
        at_limit="the requests left over are cut",
    )
    old_runs_ms: int = setting(
        "Time to end what an earlier session left running, before the Node reports ready.",
        apply="restart",
        unit="ms",
        default=5_000,
        ge=0,
        le=600_000,
    )
    heartbeat_ms: int = setting(
        "Time between heartbeats. The other side waits for three of them at least before it calls this one silent.",
        apply="restart",
        unit="ms",
        default=5_000,
        ge=10,
        le=600_000,
    )
    silence_ms: int = setting(
        "An Edge that was not heard from for this long is lost.",
        apply="restart",
        unit="ms",
        default=15_000,
        ge=30,
        le=DAY_MS,
        at_limit="the session is closed and the Edge dialled again",
    )
    reconnect_ms_min: int = setting(
        "Shortest time between two attempts to dial the Edge.",
        apply="restart",
        unit="ms",
        default=100,
        ge=1,
        le=600_000,
    )
    reconnect_ms_max: int = setting(
        "Longest time between two attempts; the time doubles up to it.",
        apply="restart",
        unit="ms",
        default=10_000,
        ge=1,
        le=600_000,
    )
    probe_ms_min: int = setting(
        "First time between connect attempts to an unreachable provider.",
        apply="restart",
        unit="ms",
        default=1_000,
        ge=10,
        le=600_000,
    )
    probe_ms_max: int = setting(
        "Longest time between them; the time doubles up to it.",
        apply="restart",
        unit="ms",
        default=10_000,
        ge=10,
        le=600_000,
    )
    upstream_idle_ms: int = setting(
        "Time an unused connection to a provider is kept. Below the 5 s after which uvicorn closes its side.",
        apply="restart",
        unit="ms",
        default=4_000,
        ge=0,
        le=600_000,
    )
    pace_ms: int = setting(
        "Shortest time between two messages that hold nothing but middle pieces of answers.",
        apply="restart",
        unit="ms",
        default=2,
        ge=0,
        le=1_000,
    )
    run_input_bytes_max: int = setting(
        "Size of one request to a provider of the types ollama, cli and native, which the Node holds whole.",
        apply="restart",
        unit="bytes",
        default=32 * MIB,
        ge=1_024,
        le=1_024 * MIB,
        at_limit="the request is refused, status 413",
    )
    window_bytes: int = setting(
        "Bytes on their way to the Edge at one time.",
        apply="restart",
        unit="bytes",
        default=262_144,
        ge=65_536,
        le=64 * MIB,
    )


class NodeConfig(Section):
    """Configuration of a Node."""

    id: Id = setting("Name of this Node in the Edge's file.", apply="restart")
    edge: NodeEdge = setting("The Edge that the Node dials.", apply="restart")
    link: NodeLink = setting("The session with the Edge.", apply="restart", factory=NodeLink)
    token_env: EnvName | None = setting(
        "Variable of the environment that holds the Node's token. Either this or token_file.",
        apply="restart",
        default=None,
        quiet=True,
    )
    token_file: Text | None = setting(
        "File that holds the Node's token, readable by its owner alone. Either this or token_env.",
        apply="restart",
        default=None,
        quiet=True,
    )
    cli_profiles: Entries[CliProfile] = setting(
        "Commands that providers of the type cli may run.", apply="restart", default=()
    )
    native_models: Entries[NativeModel] = setting(
        "Models that run in the Node itself; left out, one named echo.", apply="restart", factory=echo_models
    )
    observe: Observe | None = setting(
        "A listener for probes and metrics; left out, there is none.", apply="restart", default=None
    )
    tracing: Tracing = setting("Spans of requests.", apply="restart", factory=Tracing)
    log: Log = setting("Logging.", apply="restart", factory=Log)
    limits: NodeLimits = setting("Limits of the Node.", apply="restart", factory=NodeLimits)
