"""Every row of the error table, brought about through the real front, service and exchange, as bytes."""

from __future__ import annotations

import ast
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPMessage, parse_headers
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from iop_fast.config.schema.front import HttpLimits
from iop_fast.edge import answers
from iop_fast.errors import Failure
from iop_fast.wire.runtime_pb2 import RunEnd
from scripts import gen_error_docs
from tests.unit.edge.exchange_world import ExchangeWorld, provider_spec
from tests.unit.edge.front.harness import Bench, Client

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"
PACKAGE = Path(gen_error_docs.TARGET).parents[1] / "iop_fast"


class Desk:
    """A whole request path from a connection's bytes on; one client a call."""

    def __init__(self, world: ExchangeWorld, limits: HttpLimits) -> None:
        self.world = world
        self.bench = Bench(world.service, limits, render=world.service.render)

    def send(self, raw: str) -> Client:
        client = self.bench.connect()
        client.send(raw.encode())
        self.world.loop.settle()
        self.bench.loop.settle()
        return client

    def post(self, path: str = CHAT, body: str = '{"model":"m"}', *fields: str) -> Client:
        lines = [f"POST {path} HTTP/1.1", "Host: a", f"Content-Length: {len(body)}", *fields]
        return self.send("\r\n".join(lines) + "\r\n\r\n" + body)


@contextmanager
def desk(limits: dict[str, int] | None = None, world: dict[str, Any] | None = None, **config: Any) -> Iterator[Desk]:
    openai = {**config.pop("openai", {}), "limits": limits or {}}
    with ExchangeWorld(**(world or {}), openai=openai, **config) as made:
        yield Desk(made, HttpLimits(**(limits or {})))


def read(client: Client) -> tuple[int, HTTPMessage, bytes]:
    """The one answer that a client got."""
    line, _, rest = client.output.partition(b"\r\n")
    file = BytesIO(rest)
    return int(line.split()[1]), parse_headers(file), file.read()


CASES: dict[Failure, Callable[[str], Iterator[Client]]] = {}


def case(failure: Failure) -> Callable[[Callable[[str], Iterator[Client]]], Callable[[str], Iterator[Client]]]:
    def keep(function: Callable[[str], Iterator[Client]]) -> Callable[[str], Iterator[Client]]:
        CASES[failure] = function
        return function

    return keep


@case(Failure.QUEUE_FULL)
def queue_full(path: str) -> Iterator[Client]:
    with desk(provider_pool={"max_queue": 1}) as at:
        yield [at.post(path) for _ in range(3)][-1]


@case(Failure.QUEUE_TIMEOUT)
def queue_timeout(path: str) -> Iterator[Client]:
    with desk() as at:
        _, waiting = at.post(path), at.post(path)
        at.world.loop.run_for(31)
        yield waiting


@case(Failure.UNAVAILABLE)
def unavailable(path: str) -> Iterator[Client]:
    with desk(world={"ready": False}) as at:
        yield at.post(path)


@case(Failure.DRAINING)
def draining(path: str) -> Iterator[Client]:
    with desk() as at:
        at.world.edge.start_draining()
        yield at.post(path)


@case(Failure.OVERLOADED)
def overloaded(path: str) -> Iterator[Client]:
    with desk({"buffered_bytes": 1024 * 1024}) as at:
        big = '{"model":"m","x":"' + "y" * 700_000 + '"}'
        at.post(path, big)
        yield at.post(path, big)


@case(Failure.MODEL_NOT_FOUND)
def model_not_found(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.post(path, '{"model":"mm"}')


@case(Failure.NOT_FOUND)
def not_found(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.post(f"{path}/nothing")


@case(Failure.METHOD_NOT_ALLOWED)
def method_not_allowed(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.send(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n")


@case(Failure.UNSUPPORTED_BY_MODEL)
def unsupported(path: str) -> Iterator[Client]:
    with desk(world={"providers": [provider_spec("n1", "p1", type="cli", adapter_type="cli")]}) as at:
        yield at.post(path, '{"model":"m","tools":[{}]}')


@case(Failure.INVALID_REQUEST)
def invalid_request(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.post(path, '{"model":"m","model":"m"}')


@case(Failure.MALFORMED_HTTP)
def malformed(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")


@case(Failure.EXPECTATION_FAILED)
def expectation(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.post(path, "{}", "Expect: a-miracle")


@case(Failure.METHOD_NOT_IMPLEMENTED)
def method_not_implemented(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.send(f"BREW {path} HTTP/1.1\r\nHost: a\r\n\r\n")


@case(Failure.ENCODING_NOT_IMPLEMENTED)
def transfer_encoding(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip, chunked\r\n\r\n")


@case(Failure.VERSION_NOT_SUPPORTED)
def version(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.send(f"POST {path} HTTP/2.0\r\nHost: a\r\n\r\n")


@case(Failure.REQUEST_TOO_LARGE)
def too_large(path: str) -> Iterator[Client]:
    with desk({"body_bytes": 1024}) as at:
        yield at.post(path, "x" * 1025)


@case(Failure.URI_TOO_LONG)
def uri_too_long(path: str) -> Iterator[Client]:
    with desk({"target_bytes": 64}) as at:
        yield at.post(path + "?" + "x" * 64)


@case(Failure.HEAD_TOO_LARGE)
def head_too_large(path: str) -> Iterator[Client]:
    with desk({"head_fields": 8}) as at:
        yield at.post(path, "{}", *(f"X-{number}: 1" for number in range(9)))


@case(Failure.REQUEST_TIMEOUT)
def request_timeout(path: str) -> Iterator[Client]:
    with desk() as at:
        client = at.send(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\n")
        at.bench.advance(11)
        yield client


@case(Failure.UNSUPPORTED_ENCODING)
def encoded(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.post(path, "{}", "Content-Encoding: gzip")


@case(Failure.UNSUPPORTED_MEDIA_TYPE)
def other_media(path: str) -> Iterator[Client]:
    with desk() as at:
        yield at.post(path, "{}", "Content-Type: text/plain")


@case(Failure.INVALID_API_KEY)
def bad_key(path: str) -> Iterator[Client]:
    with desk(openai={"require_principal": True}) as at:
        yield at.post(path, "{}", "Authorization: Bearer guessed")


@case(Failure.MISSING_PROVIDER_AUTHORIZATION)
def no_provider_token(path: str) -> Iterator[Client]:
    with desk(openai={"provider_auth": {"enabled": True}}) as at:
        yield at.post(path)


@case(Failure.UPSTREAM_ERROR)
def upstream_error(path: str) -> Iterator[Client]:
    with desk() as at:
        client = at.post(path)
        at.world.link.answer(1, status=RunEnd.UPSTREAM_ERROR)
        yield client


@case(Failure.UPSTREAM_TIMEOUT)
def upstream_timeout(path: str) -> Iterator[Client]:
    with desk() as at:
        client = at.post(path)
        at.world.link.answer(1, status=RunEnd.UPSTREAM_TIMEOUT)
        yield client


@case(Failure.INTERNAL)
def internal(path: str) -> Iterator[Client]:
    with desk() as at:
        client = at.post(path)
        at.world.link.answer(1, status=RunEnd.INTERNAL)
        yield client


def test_every_row_has_its_case() -> None:
    assert set(CASES) == set(Failure)


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
@pytest.mark.parametrize("failure", list(Failure), ids=lambda failure: failure.reason)
def test_a_row_reaches_the_client_whole(failure: Failure, path: str) -> None:
    [(status, fields, body)] = [read(client) for client in CASES[failure](path)]
    row = failure.value
    assert status == row.status
    assert fields["x-iop-reason"] == failure.reason
    assert len(fields["x-request-id"]) == 32
    assert fields["content-type"] == "application/json"
    assert fields["x-should-retry"] == (None if row.retry is None else str(row.retry).lower())
    assert (fields["connection"] == "close") is row.closes
    assert (fields["retry-after"] is not None) is (failure is Failure.QUEUE_FULL)
    found = json.loads(body)
    if path == MESSAGES:
        assert found["type"] == "error"
        assert found["error"]["type"] == answers.anthropic_type(failure)
        assert fields["request-id"] == fields["x-request-id"]
    else:
        assert (found["error"]["code"], found["error"]["type"]) == (row.code, row.type)
        assert set(found["error"]) == {"message", "type", "param", "code"}
    assert found["error"]["message"]


@pytest.mark.parametrize(
    "sent",
    [
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        "POST nonsense HTTP/1.1\r\nHost: a\r\n\r\n",
        "\x16\x03\x01\r\n\r\n",
        "POST /v1/messag",
    ],
)
def test_what_asks_for_no_path_is_answered_in_openai_s_form(sent: str) -> None:
    with desk() as at:
        client = at.send(sent)
        at.bench.advance(11)
        assert "code" in json.loads(read(client)[2])["error"]


def test_the_form_is_that_of_an_absolute_target_s_path_too() -> None:
    with desk() as at:
        client = at.send("TRACE http://a/v1/messages?x HTTP/1.1\r\nHost: a\r\n\r\n")
        assert json.loads(read(client)[2])["type"] == "error"


def test_the_table_says_what_each_row_means() -> None:
    for failure in Failure:
        row = failure.value
        assert row.when.endswith(".")
        assert f"`{row.code}`" in gen_error_docs.render()
        assert row.retry is None or row.status >= 500 or row.status in (408, 409, 429)


def test_the_page_is_fresh() -> None:
    assert gen_error_docs.main(["--check"]) == 0


def test_no_row_is_raised_by_nobody_and_nobody_raises_what_has_no_row() -> None:
    raised: set[str] = set()
    for path in (PACKAGE / "edge").rglob("*.py"):
        if path.name == "books.py":  # reads reasons, raises none
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Failure":
                raised.add(node.attr)
    assert raised == set(Failure.__members__)
