"""Sections that the Edge's and the Node's file share."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator

from iop_fast.config.schema.fields import Address, Section, Text, check_endpoint, setting

LinkTransport = Literal["builtin", "grpcio"]


def link_transport() -> Any:
    """The key that both files have for what carries a session."""
    return setting(
        "What carries the session, which is gRPC over HTTP/2 either way; the two sides need not have the same. builtin "
        "is this program's own and takes a fraction of the CPU. grpcio is the library of that name, for where "
        "something between the sides gets along with it alone; it takes 10 MB more, and cannot cut off a peer that "
        "does not read.",
        apply="restart",
        default="builtin",
    )


class ServerTls(Section):
    """Transport security of a listener. Giving the section turns it on."""

    cert_file: Text = setting("File with the certificate chain, PEM.", apply="restart")
    key_file: Text = setting("File with the private key, PEM.", apply="restart")
    client_ca_file: Text | None = setting(
        "File with the authorities whose client certificates are demanded, PEM; left out, none is demanded. On the "
        "listener for Nodes the certificate's common name or an alternative name must be the Node's id.",
        apply="restart",
        default=None,
    )


class ClientTls(Section):
    """Transport security of a connection to a listener. Giving the section turns it on."""

    ca_file: Text | None = setting(
        "File with the authorities that are trusted, PEM; left out, those of the operating system.",
        apply="restart",
        default=None,
    )
    cert_file: Text | None = setting(
        "File with the certificate shown to the listener, PEM.", apply="restart", default=None
    )
    key_file: Text | None = setting("File with its private key, PEM.", apply="restart", default=None)
    server_name: Text | None = setting(
        "Name expected in the listener's certificate; left out, the host of the address.",
        apply="restart",
        default=None,
    )


class Observe(Section):
    """A listener for GET /livez, /readyz and /metrics and nothing else."""

    listen: Address = setting(
        "Address of the listener. Any address is allowed: it shows counters, no requests and no secrets.",
        apply="restart",
    )


class Log(Section):
    """What is written to standard error, one JSON object a line."""

    level: Literal["debug", "info", "warning", "error"] = setting(
        "Lowest level that is written.", apply="restart", default="info"
    )


def check_collector(value: str) -> str:
    """Refuse what of a collector's address would be a secret, and say where it goes."""
    if "@" in value:
        raise ValueError("expected no user or password in the URL: OTEL_EXPORTER_OTLP_HEADERS takes what is needed")
    return value


class Tracing(Section):
    """Spans of requests, sent by OTLP over HTTP (docs/tracing.md)."""

    enabled: bool = setting(
        "Make spans of requests and send them. Takes the extra otel: pip install 'iop_fast[otel]'.",
        apply="restart",
        default=False,
    )
    endpoint: Annotated[str, AfterValidator(check_collector), AfterValidator(check_endpoint)] = setting(
        "Where a collector takes spans by OTLP over HTTP, the path included. What it demands beyond that (keys, "
        "certificates) is given by the variables OTEL_EXPORTER_OTLP_* of the environment.",
        apply="restart",
        default="http://127.0.0.1:4318/v1/traces",
        quiet=True,
    )
    sample_ratio: float = setting(
        "Share of the traces that begin here which are recorded. For a request that names a trace of its caller, the "
        "caller has decided.",
        apply="restart",
        default=1.0,
        ge=0,
        le=1,
    )
    service_name: Text | None = setting(
        "Name of this program in traces; left out, iop-edge or iop-node.", apply="restart", default=None
    )
