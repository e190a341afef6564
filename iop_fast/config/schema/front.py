"""The `openai` section: the HTTP front door."""

from __future__ import annotations

from iop_fast.config.schema.common import ServerTls
from iop_fast.config.schema.fields import (
    DAY_MS,
    MIB,
    Address,
    Entries,
    HeaderName,
    Id,
    Origin,
    Section,
    Sha256,
    Text,
    setting,
)


class PrincipalToken(Section):
    """A caller's token, known by its hash alone. Several tokens may share a principal."""

    token_ref: Id = setting("Name of this token in metrics and logs, unique.", apply="restart")
    token_hash_sha256: Sha256 = setting(
        "sha256 of the token, 64 hex characters (`iop token` makes both); the token itself never stands here.",
        apply="restart",
        secret=True,
    )
    principal_ref: Id = setting("Whom usage with this token is booked to.", apply="restart")
    alias: Text | None = setting(
        "Name shown instead of principal_ref in metrics and logs.", apply="restart", default=None
    )


class ProviderAuth(Section):
    """Forwarding of a token that the caller sends for the provider. Holds the rule, never a token."""

    enabled: bool = setting("Forward the caller's provider token.", apply="restart", default=False)
    from_header: HeaderName = setting(
        "Header of the caller's request that carries the provider token.",
        apply="restart",
        default="X-IOP-Provider-Authorization",
    )
    target_header: HeaderName = setting(
        "Header of the provider's request that the token is put into.", apply="restart", default="Authorization"
    )
    scheme: str = setting(
        'Word before the token, added unless the caller sent it; "" for none.',
        apply="restart",
        default="Bearer",
        pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{0,64}$",
    )
    required: bool = setting(
        "Refuse a request without a provider token; false: the provider's own key is used then.",
        apply="restart",
        default=True,
        at_limit="401 missing_provider_authorization",
    )


class HttpLimits(Section):
    """Limits of the HTTP front. Each is there so that one client cannot take what belongs to all."""

    connections: int = setting(
        "Connections open at one time.",
        apply="restart",
        default=16_384,
        ge=1,
        le=1_000_000,
        at_limit="503 overloaded, connection closed",
    )
    connections_per_address: int = setting(
        "Connections open at one time from one client address; 0 for no limit of its own. Behind a proxy all clients "
        "have the proxy's address.",
        apply="restart",
        default=0,
        ge=0,
        le=1_000_000,
        at_limit="503 overloaded, connection closed",
    )
    header_ms: int = setting(
        "Time for a request's head, from its first byte (from the accept for the first request) to its empty line.",
        apply="restart",
        unit="ms",
        default=10_000,
        ge=1,
        le=DAY_MS,
        at_limit="408 request_timeout; a connection that sent nothing is closed without an answer",
    )
    head_bytes: int = setting(
        "Size of a request's head.",
        apply="restart",
        unit="bytes",
        default=32_768,
        ge=1_024,
        le=MIB,
        at_limit="431 head_too_large",
    )
    head_fields: int = setting(
        "Header fields of a request.", apply="restart", default=100, ge=8, le=10_000, at_limit="431 head_too_large"
    )
    target_bytes: int = setting(
        "Size of a request's target (path and query).",
        apply="restart",
        unit="bytes",
        default=8_192,
        ge=64,
        le=MIB,
        at_limit="414 uri_too_long",
    )
    body_bytes: int = setting(
        "Size of a request's body.",
        apply="restart",
        unit="bytes",
        default=32 * MIB,
        ge=1_024,
        le=1_024 * MIB,
        at_limit="413 request_too_large",
    )
    body_grace_ms: int = setting(
        "Length of the intervals over which the rate of a body that is being sent is taken.",
        apply="restart",
        unit="ms",
        default=10_000,
        ge=1,
        le=DAY_MS,
    )
    body_bytes_per_second: int = setting(
        "Lowest rate of a body that is being sent, over each interval of body_grace_ms; 0 = none.",
        apply="restart",
        unit="bytes/s",
        default=1_024,
        ge=0,
        le=1_024 * MIB,
        at_limit="408 request_timeout",
    )
    buffered_bytes: int = setting(
        "Memory of all request bodies together, waiting requests included.",
        apply="restart",
        unit="bytes",
        default=512 * MIB,
        ge=MIB,
        le=1_048_576 * MIB,
        at_limit="503 overloaded, connection closed",
    )
    pipelined_requests: int = setting(
        "Requests that a connection may send ahead of their answers.",
        apply="restart",
        default=8,
        ge=1,
        le=1_024,
        at_limit="closed after the answer that is under way",
    )
    pipelined_bytes: int = setting(
        "Bytes kept of requests sent ahead of their answers.",
        apply="restart",
        unit="bytes",
        default=65_536,
        ge=1_024,
        le=64 * MIB,
        at_limit="closed after the answer that is under way",
    )
    keep_alive_ms: int = setting(
        "Time a connection may stay open between requests.",
        apply="restart",
        unit="ms",
        default=75_000,
        ge=0,
        le=DAY_MS,
        at_limit="closed",
    )
    write_stall_ms: int = setting(
        "Time a client may take none of an answer that is ready for it.",
        apply="restart",
        unit="ms",
        default=60_000,
        ge=1,
        le=DAY_MS,
        at_limit="connection cut; the provider's run is cancelled",
    )
    drain_delay_ms: int = setting(
        "Time from the signal to stop until the Edge refuses requests. `/readyz` says no all along, so that load"
        " balancers which ask it have turned away by then.",
        apply="restart",
        unit="ms",
        default=0,
        ge=0,
        le=DAY_MS,
    )
    drain_ms: int = setting(
        "Time that running answers get to end when the Edge shuts down.",
        apply="restart",
        unit="ms",
        default=30_000,
        ge=0,
        le=DAY_MS,
        at_limit="connection cut",
    )


class UsageLog(Section):
    """A file with one JSON object for each request that a provider saw. Giving the section turns it on."""

    path: Text = setting("The file; its folder exists. It is only ever appended to.", apply="restart")
    file_bytes: int = setting(
        "Size at which the file is renamed to PATH.1, that one to PATH.2 and so on, and a new one begun.",
        apply="restart",
        unit="bytes",
        default=64 * MIB,
        ge=65_536,
        le=1_048_576 * MIB,
    )
    files: int = setting(
        "Files that are kept, the one being written included.",
        apply="restart",
        default=8,
        ge=1,
        le=1_000,
        at_limit="the oldest is removed",
    )


class OpenAi(Section):
    """The OpenAI-compatible listener."""

    listen: Address = setting("Address of the listener.", apply="restart", default="127.0.0.1:8080")
    tls: ServerTls | None = setting("Transport security of the listener.", apply="restart", default=None)
    insecure: bool = setting(
        "Say that no tls on an address that other machines reach is meant, because what stands in front of it encrypts "
        "or the network is trusted.",
        apply="restart",
        default=False,
    )
    long_context_threshold_tokens: int = setting(
        "A request whose estimated input reaches this is of the class `long`.",
        apply="live",
        unit="tokens",
        default=100_000,
        ge=1,
        le=1_000_000_000,
        at_limit="waits for a long slot where the model has any",
    )
    principal_tokens: Entries[PrincipalToken] = setting(
        "Callers' tokens by hash, for usage by principal.", apply="restart", default=()
    )
    require_principal: bool = setting(
        "Answer only callers with a token from principal_tokens.",
        apply="restart",
        default=False,
        at_limit="401 invalid_api_key on every /v1 path",
    )
    provider_auth: ProviderAuth = setting(
        "Forwarding of callers' provider tokens.", apply="restart", factory=ProviderAuth
    )
    expose_route: bool = setting(
        "Name provider, Node and queue time in x-iop-provider, x-iop-node and x-iop-queue-ms.",
        apply="restart",
        default=True,
    )
    sse_keep_alive_ms: int = setting(
        "Time without a byte after which a client of an event stream is sent an SSE comment; 0 for never. Only between "
        "two events, and never before the provider's own head. Some clients cannot read comments.",
        apply="restart",
        unit="ms",
        default=0,
        ge=0,
        le=DAY_MS,
    )
    cors_origins: Entries[Origin] = setting(
        "Origins of web pages that may use the API from a browser, as https://example.org; none may while it is empty.",
        apply="restart",
        default=(),
    )
    usage_log: UsageLog | None = setting("Where usage is written for billing.", apply="restart", default=None)
    limits: HttpLimits = setting("Limits of the HTTP front.", apply="restart", factory=HttpLimits)
