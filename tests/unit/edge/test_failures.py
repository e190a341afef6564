"""Every row of the error table is reached by somebody, and by whom."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from iop_fast.errors import Failure
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import ExchangeWorld, FakeDownstream, provider_spec

FRONT = Path(__file__).resolve().parents[3] / "iop_fast" / "edge" / "front"


def ended_by(status: int) -> Callable[[], FakeDownstream]:
    def scenario() -> FakeDownstream:
        with ExchangeWorld() as world:
            call = world.post()
            world.link.answer(1, status=status)
            return call.downstream

    return scenario


def queue_full() -> FakeDownstream:
    with ExchangeWorld(provider_pool={"max_queue": 1}) as world:
        return [world.post() for _ in range(3)][-1].downstream


def queue_timeout() -> FakeDownstream:
    with ExchangeWorld(provider_pool={"queue_timeout_ms": 1}) as world:
        world.post()
        call = world.post()
        world.loop.run_for(0.1)
        return call.downstream


def unavailable() -> FakeDownstream:
    with ExchangeWorld(ready=False) as world:
        return world.post().downstream


def draining() -> FakeDownstream:
    with ExchangeWorld() as world:
        world.edge.start_draining()
        return world.open().downstream


def overloaded() -> FakeDownstream:
    with ExchangeWorld(openai={"limits": {"buffered_bytes": 1024 * 1024}}) as world:
        world.open(length=1024 * 1024)
        return world.open(length=1).downstream


def too_large() -> FakeDownstream:
    with ExchangeWorld() as world:
        return world.open(length=1 << 40).downstream


def unsupported() -> FakeDownstream:
    with ExchangeWorld([provider_spec("n1", "p1", adapter_type="cli", type="cli")]) as world:
        return world.post({"model": "m", "tools": [{}]}).downstream


def posted(body: bytes) -> Callable[[], FakeDownstream]:
    def scenario() -> FakeDownstream:
        with ExchangeWorld() as world:
            return world.post(body).downstream

    return scenario


def got(method: bytes, path: bytes, **config: object) -> Callable[[], FakeDownstream]:
    def scenario() -> FakeDownstream:
        with ExchangeWorld(**config) as world:  # type: ignore[arg-type]
            return world.get(path, method)

    return scenario


def headed(name: bytes, value: bytes) -> Callable[[], FakeDownstream]:
    def scenario() -> FakeDownstream:
        with ExchangeWorld() as world:
            return world.open(headers=[(name, value)]).downstream

    return scenario


SCENARIOS: dict[Failure, Callable[[], FakeDownstream]] = {
    Failure.QUEUE_FULL: queue_full,
    Failure.QUEUE_TIMEOUT: queue_timeout,
    Failure.UNAVAILABLE: unavailable,
    Failure.DRAINING: draining,
    Failure.OVERLOADED: overloaded,
    Failure.MODEL_NOT_FOUND: posted(b'{"model":"x"}'),
    Failure.NOT_FOUND: got(b"GET", b"/x"),
    Failure.METHOD_NOT_ALLOWED: got(b"PUT", b"/v1/models"),
    Failure.UNSUPPORTED_BY_MODEL: unsupported,
    Failure.INVALID_REQUEST: posted(b"{"),
    Failure.REQUEST_TOO_LARGE: too_large,
    Failure.UNSUPPORTED_ENCODING: headed(b"content-encoding", b"gzip"),
    Failure.UNSUPPORTED_MEDIA_TYPE: headed(b"content-type", b"text/plain"),
    Failure.INVALID_API_KEY: got(b"GET", b"/v1/models", openai={"require_principal": True}),
    Failure.MISSING_PROVIDER_AUTHORIZATION: got(
        b"POST", b"/v1/completions", openai={"provider_auth": {"enabled": True}}
    ),
    Failure.UPSTREAM_ERROR: ended_by(RunEnd.UPSTREAM_ERROR),
    Failure.UPSTREAM_TIMEOUT: ended_by(RunEnd.UPSTREAM_TIMEOUT),
    Failure.INTERNAL: ended_by(RunEnd.INTERNAL),
}
# What breaks HTTP itself is refused by the front, whose own tests meet each of these.
OF_THE_FRONT = {
    Failure.MALFORMED_HTTP,
    Failure.EXPECTATION_FAILED,
    Failure.METHOD_NOT_IMPLEMENTED,
    Failure.ENCODING_NOT_IMPLEMENTED,
    Failure.VERSION_NOT_SUPPORTED,
    Failure.URI_TOO_LONG,
    Failure.HEAD_TOO_LARGE,
    Failure.REQUEST_TIMEOUT,
}


def test_every_row_has_its_owner() -> None:
    assert set(SCENARIOS) | OF_THE_FRONT == set(Failure)
    assert not set(SCENARIOS) & OF_THE_FRONT
    source = "".join(path.read_text() for path in sorted(FRONT.glob("*.py")))
    for failure in OF_THE_FRONT:
        assert f"Failure.{failure.name}" in source


@pytest.mark.parametrize("failure", list(SCENARIOS), ids=lambda failure: failure.reason)
def test_a_row_is_reached(failure: Failure) -> None:
    downstream = SCENARIOS[failure]()
    row = failure.value
    assert downstream.status == row.status
    error = downstream.error
    assert (error["code"], error["type"]) == (row.code, row.type)
    assert error["message"]
    assert set(error) == {"message", "type", "param", "code"}
    assert downstream.field(b"x-iop-reason") == failure.reason.encode()
    assert downstream.field(b"connection") == (b"close" if row.closes else None)
    assert downstream.is_ended
