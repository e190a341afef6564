"""A small HTTP client for the admin listener: loopback address or unix socket, JSON answers, short timeouts."""

from __future__ import annotations

import http.client
import json
import socket
from typing import Any

DEFAULT_ADMIN = "127.0.0.1:8082"
TIMEOUT_S = 10.0


class AdminError(Exception):
    """The admin listener cannot be reached or refused; the message is for people."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(TIMEOUT_S)
        self.sock.connect(self._path)


def get_json(admin: str, path: str) -> Any:
    """GET a path of the admin listener at `admin` ("host:port" or "unix:/path"); raise AdminError."""
    connection = UnixConnection(admin[5:]) if admin.startswith("unix:") else tcp_connection(admin)
    try:
        connection.request("GET", path, headers={"accept": "application/json"})
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException) as error:
        raise AdminError(f"no Edge answers at {admin}: {error}; name its admin address by --admin") from error
    finally:
        connection.close()
    if answer.status != http.client.OK:
        raise AdminError(f"{admin}{path} answered {answer.status}: {body[:500].decode(errors='replace')}")
    try:
        return json.loads(body)
    except ValueError as error:
        raise AdminError(f"{admin}{path} answered what is not JSON: is this an Edge's admin listener?") from error


def tcp_connection(admin: str) -> http.client.HTTPConnection:
    """Open nothing yet: a connection object for "host:port"."""
    host, _, port = admin.rpartition(":")
    if not host or not port.isdigit():
        raise AdminError(f"an admin address is host:port or unix:/path, got {admin!r}")
    return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=TIMEOUT_S)
