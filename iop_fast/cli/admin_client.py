"""A small HTTP client for the admin listener: loopback address or unix socket, JSON answers, short timeouts."""

from __future__ import annotations

import http.client
import json
import re
import socket
from typing import Any

DEFAULT_ADMIN = "127.0.0.1:8082"
TIMEOUT_S = 10.0


class AdminError(Exception):
    """The admin listener cannot be reached or refused; the message is for people."""


class Unreachable(AdminError):
    """No Edge answers at the address."""


class BadAddress(AdminError):
    """What is to be an address is none."""


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def get_json(admin: str, path: str) -> Any:
    """GET a path of the admin listener at `admin` ("host:port" or "unix:/path"); raise AdminError."""
    status, body = exchange(admin, "GET", path, None, TIMEOUT_S)
    if status == http.client.NOT_FOUND and not is_own_error(body):
        page = path.partition("?")[0]
        raise Unreachable(
            f"what answers at {admin} has no {page}: is it an Edge's admin listener? --admin names another"
        )
    if status != http.client.OK:
        raise AdminError(f"{admin}{path} answered {status}: {said(body)}")
    return read_json(admin, path, body)


def post_json(admin: str, path: str, content: object, timeout_s: float = TIMEOUT_S) -> Any:
    """POST an object and return the answer's, whatever its status says of it; raise AdminError for an error answer."""
    status, body = exchange(admin, "POST", path, json.dumps(content).encode(), timeout_s)
    answer = read_json(admin, path, body)
    if isinstance(answer, dict) and "error" in answer:
        raise AdminError(f"{admin}{path} answered {status}: {answer['error'].get('message', answer['error'])}")
    return answer


def exchange(admin: str, method: str, path: str, body: bytes | None, timeout_s: float) -> tuple[int, bytes]:
    """Make one request; return status and body, or raise AdminError when nobody answers."""
    is_unix = admin.startswith("unix:")
    connection = UnixConnection(admin[5:], timeout_s) if is_unix else tcp_connection(admin, timeout_s)
    headers = {"accept": "application/json"}
    if body is not None:
        headers["content-type"] = "application/json"
    try:
        connection.request(method, path, body=body, headers=headers)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except http.client.HTTPException as error:  # its text may be whatever bytes came
        raise Unreachable(f"what answers at {admin} is no admin listener; name its address by --admin") from error
    except (OSError, UnicodeError) as error:
        raise Unreachable(f"no Edge answers at {admin}: {error}; name its admin address by --admin") from error
    finally:
        connection.close()


def is_own_error(body: bytes) -> bool:
    """Whether an error answer is in the admin listener's form, which no other listener has."""
    try:
        return set(json.loads(body)["error"]) == {"code", "message"}
    except (ValueError, TypeError, KeyError):
        return False


def said(body: bytes) -> str:
    """What an error answer says, as far as it can be read."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, TypeError, KeyError):
        return body[:500].decode(errors="replace")


def read_json(admin: str, path: str, body: bytes) -> Any:
    """Parse an answer; raise AdminError for what is not JSON."""
    try:
        return json.loads(body)
    except ValueError as error:
        raise AdminError(f"{admin}{path} answered what is not JSON: is this an Edge's admin listener?") from error


def tcp_connection(admin: str, timeout_s: float = TIMEOUT_S) -> http.client.HTTPConnection:
    """Open nothing yet: a connection object for "host:port"."""
    host, _, port = admin.rpartition(":")
    if not host or "/" in host or re.fullmatch(r"[0-9]{1,5}", port) is None or not 0 < int(port) < 65536:
        raise BadAddress(f"an admin address is host:port or unix:/path, got {admin!r}")
    return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=timeout_s)
