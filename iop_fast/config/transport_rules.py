"""The rules about listeners and connections: addresses, encryption, silence.

Plaintext stays on this machine unless the file says otherwise. On the link between Edge and Node, which carries tokens
both ways and every request, it takes an explicit `insecure: true`. The HTTP front stands behind something that
encrypts often enough that plaintext there is a warning, which `insecure: true` answers.
"""

from __future__ import annotations

from iop_fast.config.schema.fields import is_loopback, parse_address
from iop_fast.config.tree import MapNode, Remark
from iop_fast.config.view import Spot, truth

LISTENERS = (
    ("edge", "127.0.0.1:8081"),
    ("openai", "127.0.0.1:8080"),
    ("admin", "127.0.0.1:8082"),
    ("observe", None),
)
EVERY_V4 = "0.0.0.0"  # binding it takes every IPv4 address of this machine


def check_listeners(root: MapNode) -> list[Remark]:
    """Two listeners cannot have one address, nor one of them an address that is among those of another."""
    remarks = []
    earlier: list[tuple[str, str, Spot | None]] = []
    for name, default in LISTENERS:
        section = Spot(root, ()).section(name)
        is_given = section is not None and section.has("listen")
        address = section.text("listen") if section is not None and is_given else default
        if address is None:
            continue
        giver = section if is_given else None
        for other_name, other, other_giver in earlier:
            holder = giver or other_giver
            if holder is not None and is_shared(address, other):
                what = "is the address" if address == other else f"takes the address {other}"
                remarks.append(holder.remark("listen", f"{name}.listen {address} {what} of {other_name}.listen too"))
                break
        earlier.append((name, address, giver))
    return remarks


def is_shared(one: str, other: str) -> bool:
    """True when two listeners cannot be bound at one time; False for what is no address."""
    try:
        (host, port), (other_host, other_port) = parse_address(one), parse_address(other)
    except ValueError:
        return one == other  # unix:/path; what is wrong otherwise has a finding of its own
    if port != other_port or port == 0:
        return False
    hosts, other_hosts = _hosts(host), _hosts(other_host)
    is_every = (EVERY_V4 in hosts and _has_v4(other_hosts)) or (EVERY_V4 in other_hosts and _has_v4(hosts))
    return is_every or not hosts.isdisjoint(other_hosts)


def _hosts(host: str) -> frozenset[str]:
    """The addresses that a host stands for, as far as its text tells; other names stand for themselves."""
    return frozenset({"127.0.0.1", "::1"}) if host.lower() == "localhost" else frozenset({host.lower()})


def _has_v4(hosts: frozenset[str]) -> bool:
    return any(host.replace(".", "").isdigit() for host in hosts)


def check_encryption(root: MapNode) -> list[Remark]:
    """The Edge's listeners off loopback have tls, or say that they do without."""
    edge, openai = (Spot(root, ()).section(name) for name in ("edge", "openai"))
    remarks = []
    if edge is not None:
        remarks += check_plaintext(edge, "edge", "listen", "Nodes' tokens and all requests", "error")
    if openai is not None:
        remarks += check_plaintext(openai, "openai", "listen", "callers' tokens and requests", "warning")
    return remarks


def check_plaintext(section: Spot, name: str, key: str, what: str, severity: str) -> list[Remark]:
    """An address that other machines reach goes with tls or with `insecure: true`."""
    # What is neither true nor false is reported as that and is no answer to this question.
    is_meant = truth(section.get("insecure"), section.has("insecure"))
    if section.has("tls"):
        message = "has no meaning beside tls, which encrypts; remove one of them"
        return [section.remark("insecure", message, "warning", at_key=True)] if is_meant else []
    address = section.text(key)
    if address is None or is_meant:
        return []
    try:
        host, _ = parse_address(address)
    except ValueError:
        return []
    if is_loopback(host):
        return []
    message = (
        f"{address} is not a loopback address and there is no {name}.tls: {what} would cross the network readable, "
        f"expected {name}.tls, or {name}.insecure: true where that is meant"
    )
    return [section.remark(key, message, severity)]


def check_link(root: MapNode) -> list[Remark]:
    """Silence is judged by heartbeats: it must be longer than the time between two of them."""
    edge = Spot(root, ()).section("edge")
    link = edge.section("link") if edge is not None else None
    return check_silence(link) if link is not None else []


def check_silence(spot: Spot) -> list[Remark]:
    """Check heartbeat_ms against silence_ms, with the defaults of both files."""
    heartbeat = spot.whole("heartbeat_ms") if spot.has("heartbeat_ms") else 5_000
    silence = spot.whole("silence_ms") if spot.has("silence_ms") else 15_000
    if heartbeat is None or silence is None or silence >= 2 * heartbeat:
        return []
    key = "silence_ms" if spot.has("silence_ms") else "heartbeat_ms"
    message = f"silence_ms {silence} is below twice heartbeat_ms {heartbeat}: one late heartbeat would end a session"
    return [spot.remark(key, message)]
