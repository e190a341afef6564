"""Who may speak to the admin listener: programs on this machine, and pages that this listener itself has served.

The listener has no login, so a browser on the same machine is the danger: any page may send it requests. Every request
is checked before anything else looks at it, whatever its path:

- exactly one Host, and it is a loopback name or the listener's own address: a name that an attacker's DNS points at
  127.0.0.1 is not;
- no trace of a proxy: what a proxy would forward, comes from elsewhere;
- GET and HEAD: not from another site (`Sec-Fetch-Site`, `Origin`, where the client sends them);
- POST: not from a browser at all, and JSON, which a plain form cannot send without asking first.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence

# "host", "host:port", "[v6]", "[v6]:port"
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::([0-9]{1,5}))?")

# What proxies add, beside the fields that begin with x-forwarded-.
PROXY_FIELDS = frozenset({"forwarded", "via", "x-real-ip"})

READING = frozenset({"GET", "HEAD"})


def refusal(method: str, headers: Mapping[str, Sequence[str]], own_hosts: frozenset[str]) -> str | None:
    """Return why a request is refused, None when it may pass.

    `headers` maps lower-case names to all their values. `own_hosts` are the host parts of the listener's own address
    beside the loopback names.
    """
    hosts = headers.get("host", ())
    if len(hosts) != 1:
        return f"expected exactly one Host header, got {len(hosts)}"
    if not is_own_host(hosts[0], own_hosts):
        return "the Host header names neither this machine's loopback nor this listener"
    if any(name in PROXY_FIELDS or name.startswith("x-forwarded-") for name in headers):
        return "the request came through a proxy; the admin listener answers this machine alone"
    if method in READING:
        return foreign_page(headers, hosts[0])
    if method == "POST":
        return foreign_post(headers)
    return f"method {method} is not served here"


def is_own_host(host: str, own_hosts: frozenset[str]) -> bool:
    """Say whether a Host header names a loopback name or address, or one of `own_hosts`; the port does not matter."""
    match = HOST.fullmatch(host)
    if match is None:
        return False
    name = (match[1] or match[2]).lower()
    if name == "localhost" or name in own_hosts:
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # ::ffff:127.0.0.1 is 127.0.0.1 as IPv6 programs write it, which Python 3.11 does not call loopback.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (address if mapped is None else mapped).is_loopback


def foreign_page(headers: Mapping[str, Sequence[str]], host: str) -> str | None:
    """Refuse a read that a page of another site asked for."""
    for site in headers.get("sec-fetch-site", ()):
        if site not in ("none", "same-origin"):
            return "the request was made by a page of another site (Sec-Fetch-Site)"
    for origin in headers.get("origin", ()):
        if origin != f"http://{host}":
            return "the request was made by a page of another site (Origin)"
    return None


def foreign_post(headers: Mapping[str, Sequence[str]]) -> str | None:
    """Refuse a change that a browser asked for, or that is no JSON."""
    for name in headers:
        if name == "origin" or name.startswith("sec-fetch-"):
            return f"a browser cannot change anything here ({name})"
    kinds = headers.get("content-type", ())
    if len(kinds) != 1 or kinds[0].partition(";")[0].strip().lower() != "application/json":
        return "expected Content-Type: application/json"
    return None
