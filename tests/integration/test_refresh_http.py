"""`/refresh` over real sockets: who may ask, what may be asked, and what is answered."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from iop_fast.edge.refresh import Busy
from iop_fast.wire import runtime_pb2 as pb
from tests.integration.edge_harness import Bench, bench, config, provider, run, until

JSON_TYPE = {"Content-Type": "application/json"}
APPLY = '{"mode": "apply"}'
CHANGED = config({"n1": [provider("p1", 3)]})
RESTART = config(edge={"name": "other"})


async def post(b: Bench, asked: Any, **headers: str) -> tuple[int, Any]:
    """POST /refresh; status and report."""
    async with b.client.post(b.admin("/refresh"), json=asked, headers=headers) as answer:
        assert answer.headers["cache-control"] == "no-store"
        return answer.status, await answer.json()


def write(file: Path, settings: dict[str, Any] | str) -> None:
    file.write_text(settings if isinstance(settings, str) else yaml.safe_dump(settings))


# What is answered


def test_every_outcome_has_its_status(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"

    async def work() -> None:
        async with bench(config(), file) as b:
            for settings, name, code in (
                (config(), "no_change", 200),
                ("models: 1\n", "invalid", 422),
                (RESTART, "restart_required", 409),
                (CHANGED, "applied", 200),
            ):
                await asyncio.to_thread(write, file, settings)
                status, report = await post(b, {"mode": "dry_run"})
                assert (status, report["status"], report["mode"]) == (200, name, "dry_run")
                status, report = await post(b, {"mode": "apply"})
                assert (status, report["status"], report["mode"]) == (code, name, "apply")
            assert report["revision"] == 2
            status, report = await post(b, {"mode": "apply"}, **{"If-Match": '"1"'})
            assert (status, report["status"]) == (412, "stale")
            status, report = await post(b, {"mode": "dry_run"}, **{"If-Match": '"1"'})
            assert (status, report["status"]) == (200, "stale")
            known = f'"nothing", "{report["file_sha256"]}"'
            assert (await post(b, {"mode": "apply"}, **{"If-Match": known}))[0] == 200
            assert (await post(b, {"mode": "dry_run", "config": yaml.safe_dump(RESTART)}))[1]["status"] == (
                "restart_required"
            )
            async with b.client.get(b.admin("/refresh/history")) as answer:
                history = (await answer.json())["refreshes"]
            assert [entry["report"]["status"] for entry in history[:2]] == ["restart_required", "no_change"]
            assert {entry["source"] for entry in history} == {"http"}

    run(work())


def test_the_answer_waits_for_the_nodes_and_says_what_they_said(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"

    async def work() -> None:
        async with bench(config(), file) as b:
            node = await b.ready()
            await asyncio.to_thread(write, file, CHANGED)
            asking = asyncio.ensure_future(post(b, {"mode": "apply"}))
            request = (await node.frame("refresh_request")).refresh_request
            assert not asking.done()
            answer = pb.NodeConfigRefreshResponse(payload_revision=request.payload_revision, error="no room")
            await node.send(pb.Frame(refresh_response=answer))
            _, report = await asking
            assert [(push["status"], push["reason"][:7]) for push in report["node_pushes"]] == [("refused", "no room")]
            payload = (await b.status())["nodes"][0]["payload"]
            assert payload == {"revision": 2, "sent": 2, "observed": 1, "pending": False, "error": "no room"}
            await node.close()
            again = await b.ready()
            assert again.response.payload_revision == 2
            assert (await b.status())["nodes"][0]["payload"]["observed"] == 2

    run(work())


def test_status_says_whether_the_file_is_still_what_runs(tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"

    async def work() -> None:
        async with bench(config(), file) as b:

            async def disk() -> dict[str, Any]:
                found: dict[str, Any] = (await b.status())["config"]["disk"]
                return found

            assert (await disk())["differs"] is False
            text = await asyncio.to_thread(file.read_text)
            await asyncio.to_thread(write, file, text.replace("capacity: 1", "capacity: 2"))  # of the same size
            assert (await disk())["differs"] is True
            await post(b, {"mode": "apply"})
            assert (await disk())["differs"] is False
            await asyncio.to_thread(write, file, "# a comment\n" + text.replace("capacity: 1", "capacity: 2"))
            assert (await disk())["differs"] is True
            assert (await post(b, {"mode": "apply"}))[1]["status"] == "no_change"
            assert (await disk())["differs"] is False
            await asyncio.to_thread(file.unlink)
            gone = await disk()
            assert (gone["differs"], gone["file_sha256"]) == (None, "")
            assert "cannot be read" in gone["error"]

    run(work())


def test_plain_clients_of_this_machine_are_served_over_both_families(tmp_path: Path) -> None:
    """B16: curl on the host works."""
    file = tmp_path / "edge.yaml"

    async def work() -> None:
        for listen in ("127.0.0.1:0", "[::1]:0"):
            async with bench(config(admin={"listen": listen}), file) as b:
                host = listen.rpartition(":")[0]
                url = f"http://{host}:{b.edge.admin_port}/refresh"
                async with b.client.post(url, json={"mode": "apply"}) as answer:
                    assert (answer.status, (await answer.json())["status"]) == (200, "no_change")
                async with b.client.post(b.http("/refresh"), json={"mode": "apply"}) as answer:
                    assert answer.status == 404  # the public listener has no such path
                assert len(b.edge.refresher.history) == 1

    run(work())


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [(Busy("64 refreshes wait"), 503, "busy"), (RuntimeError("scripted"), 500, "internal")],
)
def test_what_is_no_report_is_an_error_object(
    raised: Exception, status: int, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work() -> None:
        async with bench(config(), tmp_path / "edge.yaml") as b:

            async def fail(asked: object) -> None:
                raise raised

            monkeypatch.setattr(b.edge.refresher, "refresh", fail)
            got, answer = await post(b, {"mode": "apply"})
            assert (got, answer["error"]["code"]) == (status, code)
            assert "scripted" not in answer["error"]["message"]

    run(work())


# Hostile requests

BAD_BODIES = [
    "",
    " ",
    "null",
    "true",
    "1",
    '"apply"',
    "[]",
    '["apply"]',
    '[{"mode": "apply"}]',
    "{}",
    "{",
    '{"mode"}',
    '{"mode": }',
    '{"mode": "apply"',
    '{"mode": "apply"}}',
    '{"mode": "apply"} {"mode": "apply"}',
    '{"mode": "apply",}',
    "{'mode': 'apply'}",
    "mode=apply",
    "mode: apply\n",
    '{"mode": null}',
    '{"mode": true}',
    '{"mode": 1}',
    '{"mode": []}',
    '{"mode": ["apply"]}',
    '{"mode": {"apply": 1}}',
    '{"mode": ""}',
    '{"mode": "Apply"}',
    '{"mode": "APPLY"}',
    '{"mode": " apply"}',
    '{"mode": "apply "}',
    '{"mode": "apply\\u0000"}',
    '{"mode": "dry-run"}',
    '{"mode": "force"}',
    '{"Mode": "apply"}',
    '{"mode ": "apply"}',
    '{"mode": "apply", "mode": "apply"}',
    '{"mode": "dry_run", "mode": "apply"}',
    '{"mode": "apply", "config": "models: []"}',
    '{"mode": "apply", "config": null}',
    '{"mode": "apply", "config": ""}',
    '{"mode": "dry_run", "config": null}',
    '{"mode": "dry_run", "config": {}}',
    '{"mode": "dry_run", "config": ["models: []"]}',
    '{"mode": "dry_run", "config": 1}',
    '{"mode": "dry_run", "config": "a: 1", "config": "b: 1"}',
    '{"mode": "apply", "force": true}',
    '{"mode": "apply", "path": "/etc/passwd"}',
    '{"mode": "apply", "file": "other.yaml"}',
    '{"mode": "apply", "": 1}',
    '{"mode": "apply", "__proto__": {}}',
    '{"mode": NaN}',
    '{"mode": "apply", "config": NaN}',
    '{"mode": Infinity}',
    '{"mode": "apply"}\x00',
    '\ufeff{"mode": "apply"}',
    "[" * 100_000,
    '{"mode": ' * 50_000,
    '{"mode": "' + "a" * 1_000_000 + '"}',
    '{"' + "k" * 1_000_000 + '": 1}',
    b'\xff\xfe{\x00"\x00m\x00',
    '{"mode": "apply"}'.encode("utf-16"),
    '{"mode": "apply"}'.encode("utf-32"),
    b'{"mode": "apply\xff"}',
    b"\x1f\x8b\x08\x00",
]
BAD_HEADERS: list[dict[str, str]] = [
    {},
    {"Content-Type": "text/plain"},
    {"Content-Type": "application/x-www-form-urlencoded"},
    {"Content-Type": "multipart/form-data; boundary=x"},
    {"Content-Type": "application/jsonp"},
    {"Content-Type": "text/json"},
    {"Content-Type": ""},
    {"Content-Type": "text/plain, application/json"},
    {**JSON_TYPE, "Origin": "http://evil.example"},
    {**JSON_TYPE, "Origin": "null"},
    {**JSON_TYPE, "Origin": "http://127.0.0.1:8082"},
    {**JSON_TYPE, "Origin": "OWN"},
    {**JSON_TYPE, "Sec-Fetch-Site": "same-origin"},
    {**JSON_TYPE, "Sec-Fetch-Site": "none"},
    {**JSON_TYPE, "Sec-Fetch-Site": "cross-site"},
    {**JSON_TYPE, "Sec-Fetch-Mode": "no-cors"},
    {**JSON_TYPE, "Sec-Fetch-Dest": "empty"},
    {**JSON_TYPE, "Sec-Fetch-User": "?1"},
    {**JSON_TYPE, "Forwarded": "for=127.0.0.1"},
    {**JSON_TYPE, "X-Forwarded-For": "127.0.0.1"},
    {**JSON_TYPE, "X-Forwarded-For": "10.0.0.1"},
    {**JSON_TYPE, "X-Forwarded-Host": "localhost"},
    {**JSON_TYPE, "X-Forwarded-Proto": "http"},
    {**JSON_TYPE, "X-Forwarded-Anything": ""},
    {**JSON_TYPE, "Host": "evil.example"},
    {**JSON_TYPE, "Host": "evil.example:8082"},
    {**JSON_TYPE, "Host": "127.0.0.1.evil.example"},
    {**JSON_TYPE, "Host": "localhost.evil.example"},
    {**JSON_TYPE, "Host": "10.0.0.1"},
    {**JSON_TYPE, "Host": "0.0.0.0"},
    {**JSON_TYPE, "Host": "2130706433"},
    {**JSON_TYPE, "Host": "localhost@evil.example"},
    {**JSON_TYPE, "Host": "localhost, evil.example"},
    {**JSON_TYPE, "Host": ""},
]
BAD_METHODS = ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "post", "REFRESH"]
BAD_TARGETS = ["/refresh/", "/Refresh", "//refresh", "/refresh/history", "/refresh/apply", "/%72efresh/x", "/status"]


def request(
    port: int, method: str = "POST", target: str = "/refresh", headers: dict[str, str] | None = None, body: Any = APPLY
) -> bytes:
    """A request, as written."""
    content = body.encode() if isinstance(body, str) else body
    fields = {"Host": f"127.0.0.1:{port}", **(JSON_TYPE if headers is None else headers)}
    lines = [f"{name}: {value.replace('OWN', f'http://127.0.0.1:{port}')}" for name, value in fields.items()]
    head = "\r\n".join([f"{method} {target} HTTP/1.1", *lines, f"Content-Length: {len(content)}"])
    return head.encode() + b"\r\nConnection: close\r\n\r\n" + bytes(content)


def hostile_requests(port: int) -> list[tuple[str, bytes]]:
    """Every request that must change nothing, with what it is."""
    rows = [(f"body {body[:40]!r}", request(port, body=body)) for body in BAD_BODIES]
    rows += [(f"headers {headers}", request(port, headers=headers)) for headers in BAD_HEADERS]
    rows += [(f"method {method}", request(port, method=method)) for method in BAD_METHODS]
    rows += [(f"target {target}", request(port, target=target)) for target in BAD_TARGETS]
    whole = request(port)
    rows += [
        ("two hosts", whole.replace(b"Content-Type", b"Host: evil.example\r\nContent-Type")),
        ("two types", whole.replace(b"Content-Type", b"Content-Type: text/plain\r\nContent-Type")),
        ("no host", whole.replace(b"Host: ", b"X-Host: ")),
        ("two lengths", whole.replace(b"Connection", b"Content-Length: 1\r\nConnection")),
        ("both framings", whole.replace(b"Connection", b"Transfer-Encoding: chunked\r\nConnection")),
        ("a body cut off", whole.removesuffix(b'"}')),
        ("a control character", whole.replace(b"application/json", b"application/json\x00")),
        ("a body too large", whole.replace(b"Content-Length: 17", b"Content-Length: 99999999999")),
    ]
    return rows


CUT_OFF = b'{"mode": "apply'


async def status_of(port: int, message: bytes) -> int:
    """Send bytes and read the answer's status; 0 when the connection just ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(message)
        if message.endswith(CUT_OFF):
            writer.write_eof()
        answer = await asyncio.wait_for(reader.read(200), 10)
    except ConnectionError:
        return 0
    finally:
        writer.close()
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.") else 0


def test_hostile_requests_change_nothing(tmp_path: Path) -> None:
    """B16: refused in every form, and without any trace in what runs."""
    file = tmp_path / "edge.yaml"

    async def work() -> None:
        async with bench(config(), file) as b:
            node = await b.ready()
            await asyncio.to_thread(write, file, CHANGED)  # an apply that got through would be seen
            before = b.edge.state.runtime
            rows = hostile_requests(b.edge.admin_port)
            assert len(rows) >= 100
            for name, message in rows:
                status = await status_of(b.edge.admin_port, message)
                assert 400 <= status < 500 or (name == "a body cut off" and not status), (
                    name,
                    status,
                )
                assert b.edge.state.runtime is before, name
                assert b.edge.refresher.history == [], name
            assert not any(frame.WhichOneof("body") == "refresh_request" for frame in node.frames)
            asking = asyncio.ensure_future(status_of(b.edge.admin_port, request(b.edge.admin_port)))
            await until(lambda: b.edge.state.runtime.revision == 2, "the one good request")
            await node.close()
            assert await asking == 200

    run(work())


@pytest.mark.parametrize("header", ["If-Match", "Idempotency-Key"])
def test_odd_preconditions_are_no_server_error(header: str, tmp_path: Path) -> None:
    file = tmp_path / "edge.yaml"

    async def work() -> None:
        async with bench(config(), file) as b:
            for value in ("", ",", '"', '""', 'W/"1"', "1" * 5_000, "\\", "caf\xe9"):
                status, report = await post(b, {"mode": "apply"}, **{header: value})
                expected = (412, "stale") if header == "If-Match" else (200, "no_change")
                assert (status, report["status"]) == expected, value
            assert json.dumps(report)

    run(work())
