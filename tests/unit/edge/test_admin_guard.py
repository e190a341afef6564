"""The admin listener answers this machine's programs and its own pages, nobody else."""

from __future__ import annotations

import pytest

from iop_fast.edge.admin_guard import is_own_host, refusal

OWN = frozenset({"admin.internal"})
JSON = ["application/json"]


def check(method: str = "GET", **headers: list[str] | str) -> str | None:
    given = {name.replace("_", "-"): [v] if isinstance(v, str) else v for name, v in headers.items()}
    return refusal(method, {"host": ["127.0.0.1:8082"], **given}, OWN)


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "127.0.0.1:8082",
        "127.8.9.10:1",
        "localhost:8082",
        "LOCALHOST",
        "[::1]:8082",
        "[::1]",
        "[0:0:0:0:0:0:0:1]:80",
        "[::ffff:127.0.0.1]:8082",
        "admin.internal:8082",
    ],
)
def test_loopback_and_own_names_pass(host: str) -> None:
    assert is_own_host(host, OWN)
    assert check(host=host) is None


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8082",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1:8082",
        "0.0.0.0:8082",
        "128.0.0.1",
        "[::2]",
        "[::ffff:10.0.0.1]",
        "2130706433",
        "127.1",
        "",
        ":8082",
        "localhost:",
        "localhost:8082/x",
        "user@localhost",
        "localhost localhost",
        "localhost,evil.example",
        "localhost\n",
    ],
)
def test_every_other_host_is_refused(host: str) -> None:
    assert not is_own_host(host, OWN)
    assert check(host=host) is not None


def test_host_must_stand_once() -> None:
    assert refusal("GET", {}, OWN) is not None
    assert check(host=["localhost", "localhost"]) is not None


@pytest.mark.parametrize(
    "name", ["forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip"]
)
@pytest.mark.parametrize("method", ["GET", "HEAD", "POST"])
def test_what_came_through_a_proxy_is_refused(method: str, name: str) -> None:
    assert check(method, content_type=JSON, **{name: ""}) is not None


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({}, True),
        ({"sec_fetch_site": "none"}, True),
        ({"sec_fetch_site": "same-origin"}, True),
        ({"sec_fetch_site": "same-site"}, False),
        ({"sec_fetch_site": "cross-site"}, False),
        ({"sec_fetch_site": ["none", "cross-site"]}, False),
        ({"origin": "http://127.0.0.1:8082"}, True),
        ({"origin": "http://127.0.0.1:9"}, False),
        ({"origin": "https://127.0.0.1:8082"}, False),
        ({"origin": "null"}, False),
        ({"origin": "http://evil.example"}, False),
        ({"sec_fetch_mode": "navigate", "sec_fetch_site": "none"}, True),
    ],
)
def test_reading_from_pages(method: str, headers: dict[str, str], passes: bool) -> None:
    assert (check(method, **headers) is None) is passes


@pytest.mark.parametrize(
    ("headers", "passes"),
    [
        ({"content_type": JSON}, True),
        ({"content_type": "application/json; charset=utf-8"}, True),
        ({"content_type": "APPLICATION/JSON"}, True),
        ({}, False),
        ({"content_type": "text/plain"}, False),
        ({"content_type": "application/x-www-form-urlencoded"}, False),
        ({"content_type": ["application/json", "text/plain"]}, False),
        ({"content_type": JSON, "origin": "http://127.0.0.1:8082"}, False),
        ({"content_type": JSON, "origin": "null"}, False),
        ({"content_type": JSON, "sec_fetch_site": "same-origin"}, False),
        ({"content_type": JSON, "sec_fetch_mode": "cors"}, False),
        ({"content_type": JSON, "sec_fetch_dest": "empty"}, False),
    ],
)
def test_changing_is_for_programs_alone(headers: dict[str, str], passes: bool) -> None:
    assert (check("POST", **headers) is None) is passes


@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS", "TRACE", "CONNECT", "PATCH"])
def test_other_methods_are_refused(method: str) -> None:
    assert check(method, content_type=JSON) is not None
