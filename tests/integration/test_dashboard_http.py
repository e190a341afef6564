"""The operator's page over a real socket: what is served, under which policy, and to whom."""

from __future__ import annotations

import pytest

from iop_fast.edge.dashboard_http import PAGE, PREFIX, TYPES, read_files
from tests.integration.edge_harness import bench, run

PATHS = ["/", *(PREFIX + name for name in read_files() if name != PAGE)]
OTHERS = [PREFIX, PREFIX + PAGE, PREFIX + "..%2fapp.py", PREFIX + "../app.py", PREFIX + "none.js", "/dashboard"]

# As Chromium asks: for the page itself, and for what belongs to it.
NAVIGATION = {"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
SUBRESOURCE = {"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "script"}

FOREIGN = [
    {"Host": "evil.example"},
    {"Origin": "http://evil.example"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"X-Forwarded-For": "10.0.0.1"},
]


def test_each_file_is_served_as_what_it_is_and_under_a_policy() -> None:
    async def work() -> None:
        async with bench() as b:
            for path in PATHS:
                name = path.removeprefix(PREFIX) if path != "/" else PAGE
                headers = NAVIGATION if path == "/" else SUBRESOURCE
                async with b.client.get(b.admin(path), headers=headers) as answer:
                    assert answer.status == 200
                    assert await answer.read() == read_files()[name]
                    assert answer.headers["content-type"] == TYPES["." + name.rsplit(".", 1)[1]]
                    assert answer.headers["x-content-type-options"] == "nosniff"
                    assert answer.headers["referrer-policy"] == "no-referrer"
                    assert answer.headers["cache-control"] == "no-store"
                    policy = answer.headers["content-security-policy"].split("; ")
                async with b.client.head(b.admin(path)) as answer:
                    assert answer.status == 200
                assert policy[0] == "default-src 'none'"
                assert {
                    "script-src 'self'",
                    "style-src 'self'",
                    "connect-src 'self'",
                    "base-uri 'none'",
                    "form-action 'none'",
                    "frame-ancestors 'none'",
                    "require-trusted-types-for 'script'",
                } <= set(policy)
                assert "unsafe" not in " ".join(policy)

    run(work())


def test_nothing_else_of_the_folder_is_served() -> None:
    async def work() -> None:
        async with bench() as b:
            for path in OTHERS:
                async with b.client.get(b.admin(path)) as answer:
                    assert answer.status == 404, path

    run(work())


@pytest.mark.parametrize("headers", FOREIGN, ids=str)
def test_the_guard_stands_before_every_file(headers: dict[str, str]) -> None:
    async def work() -> None:
        async with bench() as b:
            for path in PATHS:
                async with b.client.get(b.admin(path), headers=headers) as answer:
                    assert answer.status == 403, path

    run(work())


def test_the_page_takes_nothing() -> None:
    async def work() -> None:
        async with bench() as b:
            for path in PATHS:
                async with b.client.post(b.admin(path), json={}) as answer:
                    assert answer.status == 405, path

    run(work())


def test_a_tunnel_under_another_port_is_this_machine_still() -> None:
    """`ssh -L 9000:127.0.0.1:8082` gives the browser an address of its own machine."""

    async def work() -> None:
        async with bench() as b:
            headers = {**SUBRESOURCE, "Host": "localhost:9000", "Origin": "http://localhost:9000"}
            async with b.client.get(b.admin("/"), headers=headers) as answer:
                assert answer.status == 200

    run(work())
