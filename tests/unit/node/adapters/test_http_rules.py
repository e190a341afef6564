"""What an HTTP tunnel passes on, where to, and how a failed connect is said."""

from __future__ import annotations

import errno
import socket
import ssl
from typing import Any

import pytest

from iop_fast.config.schema.node import NodeLimits
from iop_fast.node.adapters import BrokenAdapter, Surroundings
from iop_fast.node.adapters.http_rules import (
    HEAD_BYTES_MAX,
    answer_fields,
    connect_reason,
    is_own_failure,
    read_endpoint,
    request_fields,
    request_head,
)
from iop_fast.node.adapters.openai_compat import OpenAICompatAdapter, make_openai_compat
from tests.unit.edge.worlds import VirtualLoop
from tests.unit.node.worlds import settings


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://h:8000", ("http://h:8000", "h", 8000, False, "")),
        (" https://h/v1/ \n", ("https://h", "h", 443, True, "/v1")),
        ("http://[::1]:1/a/b//", ("http://[::1]:1", "::1", 1, False, "/a/b")),
        ("http://127.0.0.1", ("http://127.0.0.1", "127.0.0.1", 80, False, "")),
    ],
)
def test_endpoints_are_read(text: str, parts: tuple[object, ...]) -> None:
    assert read_endpoint(text)[:5] == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "h:8000",
        "ftp://h",
        "http://",
        "http://h:x",
        "http://h:0",
        "http://h:99999",
        "http://secret-user@h",
        "http://u:secret-user@h",
        "http://h/?secret-user=1",
        "http://h/#secret-user",
        "http://h/a b",
        "http://h/\x00",
        "http://안녕/",
        "http://h/안녕",
    ],
)
def test_other_endpoints_are_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(ValueError, match="expected") as caught:
        read_endpoint(text)
    assert "secret-user" not in str(caught.value)


@pytest.mark.parametrize("root", ["", "/", "/v1", "/v1/"])
@pytest.mark.parametrize("target", [b"/v1/chat/completions", b"/v1/models?x=/v1/y", b"/v1", b"/v1/a%2Fb"])
def test_an_endpoint_with_and_without_the_version_is_the_same_url(root: str, target: bytes) -> None:
    url = read_endpoint(f"http://host:8000{root}").url(target)
    assert str(url) == f"http://host:8000{target.decode()}"


@pytest.mark.parametrize(
    ("endpoint", "target", "url"),
    [
        ("http://h/openai", b"/v1/embeddings", "http://h/openai/v1/embeddings"),
        ("http://h/openai/v1", b"/v1/embeddings", "http://h/openai/v1/embeddings"),
        ("http://h/v1/account/openai", b"/v1/embeddings", "http://h/v1/account/openai/embeddings"),
        ("http://h/v1beta/openai/", b"/v1/embeddings", "http://h/v1beta/openai/embeddings"),
        ("http://h/api/paas/v4", b"/v1/embeddings", "http://h/api/paas/v4/embeddings"),
        ("http://h/v1", b"/v10/x", "http://h/v1/v10/x"),
        ("http://h/v1", b"/health", "http://h/v1/health"),
    ],
)
def test_an_endpoint_that_names_a_version_is_that_apis_root(endpoint: str, target: bytes, url: str) -> None:
    assert str(read_endpoint(endpoint).url(target)) == url


def test_a_repeated_field_keeps_its_values_and_their_order() -> None:
    fields = [(b"X-A", b"1"), (b"y", b"2"), (b"x-a", b"3")]
    assert request_fields(fields, "") == [("X-A", "1"), ("y", "2"), ("X-A", "3")]


def test_values_are_read_as_utf_8_or_latin_1() -> None:
    fields = request_fields([(b"a", "é안".encode()), (b"b", b"caf\xe9")], "")
    assert fields == [("a", "é안"), ("b", "café")]


def test_a_requests_head_is_written_byte_for_byte() -> None:
    fields = [(b"x-A", b" caf\xe9"), (b"X-a", b""), (b"Connection", b"x-b"), (b"x-b", b"1"), (b"Content-Length", b"9")]
    assert request_head(b"POST", b"/v1/x?y", b"h:1", fields, "key", 2) == (
        b"POST /v1/x?y HTTP/1.1\r\nHost: h:1\r\nx-A:  caf\xe9\r\nX-a: \r\nAuthorization: Bearer key\r\n"
        b"Content-Length: 2\r\n\r\n"
    )
    assert request_head(b"GET", b"/", b"h", [], "", 0) == b"GET / HTTP/1.1\r\nHost: h\r\n\r\n"
    assert request_head(b"DELETE", b"/", b"h", [], "", 0).endswith(b"\r\nContent-Length: 0\r\n\r\n")


@pytest.mark.parametrize(
    ("method", "field"),
    [
        (b"GET /x", (b"a", b"b")),
        (b"", (b"a", b"b")),
        (b"GET", (b"", b"b")),
        (b"GET", (b"a:", b"b")),
        (b"GET", (b"a b", b"b")),
        (b"GET", (b"a\r\nb", b"b")),
        (b"GET", (b"a", b"b\r\nc")),
        (b"GET", (b"a", b"b\nc")),
        (b"GET", (b"a", b"\0")),
    ],
)
def test_a_request_that_no_message_can_hold_is_refused(method: bytes, field: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match=r"tokens|line end"):
        request_head(method, b"/", b"h", [field], "", 0)


def test_a_length_beside_a_transfer_coding_is_dropped() -> None:
    fields = [(b"Content-Length", b"5"), (b"Transfer-Encoding", b"chunked"), (b"a", b"b")]
    assert answer_fields(fields) == [(b"a", b"b")]
    assert answer_fields(fields[:1]) == fields[:1]


@pytest.mark.parametrize("field", [(b"a\r\nb", b"c"), (b"a", b"b\nc"), (b"a", b"\0")])
def test_a_field_that_could_end_its_line_is_refused(field: tuple[bytes, bytes]) -> None:
    with pytest.raises(ValueError, match="line end or NUL"):
        answer_fields([field])


def test_a_head_too_large_for_a_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="over"):
        answer_fields([(b"a", b"x" * 65_000)] * (HEAD_BYTES_MAX // 65_000 + 1))


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.9', 1)"), "connection refused"),
        (OSError("Multiple exceptions: [Errno 111] Connect call failed, [Errno 101] x"), "connection refused"),
        (OSError(errno.EHOSTUNREACH, "x"), "no route to host"),
        (socket.gaierror(-2, "Name or service not known"), "host name not found"),
        (ssl.SSLError(1, "[SSL: WRONG_VERSION_NUMBER] wrong version number"), "TLS failed: handshake"),
        (OSError("10.0.0.9 says no"), "cannot connect"),
    ],
)
def test_a_failed_connect_is_said_without_addresses(error: OSError, reason: str) -> None:
    assert connect_reason(error) == reason


def test_a_certificate_that_is_not_trusted_is_said() -> None:
    error = ssl.SSLCertVerificationError(1, "certificate verify failed")
    error.verify_message = "self-signed certificate"
    assert connect_reason(error) == "TLS failed: self-signed certificate"


def test_running_out_of_files_is_no_failure_of_the_backend() -> None:
    assert is_own_failure(OSError(errno.EMFILE, "Too many open files"))
    assert not is_own_failure(OSError(errno.ECONNREFUSED, "x"))


ENVIRON = {"URL": "http://h:1/v1", "BAD": "h:1", "KEY": "k", "EMPTY": " ", "ODD": "a b", "UTF8": "안"}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"endpoint": "", "endpoint_env": "NONE"}, "variable NONE of the Node's environment (endpoint_env) is not set"),
        (
            {"endpoint": "", "endpoint_env": "BAD"},
            "variable BAD of the Node's environment (endpoint_env): expected a URL",
        ),
        ({"options": (("a", "b"), ("c", "d"))}, "options: expected none, got a, c"),
        ({"endpoint": "nonsense"}, "endpoint: expected a URL"),
        ({"api_key_env": "NONE"}, "variable NONE of the Node's environment (api_key_env) is not set"),
        ({"api_key_env": "EMPTY"}, "variable EMPTY of the Node's environment (api_key_env) is not set"),
        ({"api_key_env": "ODD"}, "expected printable ASCII without spaces"),
        ({"api_key_env": "UTF8"}, "expected printable ASCII without spaces"),
    ],
)
def test_a_backend_that_cannot_be_used_as_configured_is_broken_with_the_reason(
    changes: dict[str, Any], reason: str
) -> None:
    """B17: an unset or empty variable breaks its provider; values are never repeated."""
    with VirtualLoop() as loop:
        surroundings = Surroundings(loop, ENVIRON, {}, NodeLimits())
        with pytest.raises(BrokenAdapter) as caught:
            make_openai_compat(settings(**({"endpoint": "http://h"} | changes)), surroundings)
        assert reason in str(caught.value)
        assert "a b" not in str(caught.value)


def test_endpoint_and_key_may_come_from_the_environment() -> None:
    with VirtualLoop() as loop:
        surroundings = Surroundings(loop, ENVIRON, {}, NodeLimits())
        adapter = make_openai_compat(settings("", endpoint_env="URL", api_key_env="KEY"), surroundings)
        assert isinstance(adapter, OpenAICompatAdapter)
        assert (adapter.backend.endpoint.root, adapter.backend.key) == ("/v1", "k")
        loop.run_until_complete(adapter.close())
