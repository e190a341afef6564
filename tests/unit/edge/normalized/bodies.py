"""Bodies of requests for the tests of normalized runs."""

from __future__ import annotations

import json
from typing import Any

from iop_fast._core.scan import BodyScan
from iop_fast.edge.auth import ANONYMOUS
from iop_fast.edge.body import Body, ByteBudget
from iop_fast.edge.normalized.opening import Opened, prepare_normalized
from iop_fast.edge.routes import SURFACES
from iop_fast.edge.runtime import Runtime
from iop_fast.edge.tunnel import Request
from iop_fast.seams import RequestHead, RunOpening
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.exchange_world import provider_spec, runtime_of

CHAT = b"/v1/chat/completions"
COMPLETIONS = b"/v1/completions"
EMBEDDINGS = b"/v1/embeddings"
KEY = ("n1", "p1")
MIB = 1024 * 1024


def body_of(raw: bytes) -> tuple[Body, BodyScan]:
    """A received body and its finished scan."""
    body, scan = Body(ByteBudget(64 * MIB), 64 * MIB, len(raw)), BodyScan()
    for start in range(0, len(raw), 100_000):
        body.append(raw[start : start + 100_000])
        scan.feed(raw[start : start + 100_000])
    scan.finish()
    return body, scan


def a_runtime(policy: dict[str, Any] | None = None, **config: Any) -> Runtime:
    """A configuration whose model `m` a native provider serves."""
    providers = [provider_spec("n1", "p1", type="native", adapter_type="native")]
    return runtime_of(providers, {"m": {"p1": "served-m"}}, config, policies={"m": policy} if policy else None)


def opened(given: dict[str, Any] | bytes, path: bytes = CHAT, policy: dict[str, Any] | None = None) -> Opened:
    """A request made ready."""
    raw = given if isinstance(given, bytes) else json.dumps({"model": "m", **given}).encode()
    body, scan = body_of(raw)
    head = RequestHead(b"POST", path, b"", [], len(raw))
    request = Request(b"5" * 32, SURFACES[path], head, (), ANONYMOUS, None)
    return prepare_normalized(request, body, scan, "m", a_runtime(policy), KEY, 1_700_000_000)


def opening_of(made: Opened) -> RunOpening:
    assert isinstance(made.opening, RunOpening)
    return made.opening


def sent_by(made: Opened) -> pb.RunInput:
    """The RunInput as the Node reads it, pieces put together."""
    opening = opening_of(made)
    data = bytearray(opening.body)
    upload = made.upload
    while upload is not None and not upload.is_complete:
        upload.go_on(Grants(data), 1, 256 * 1024)
    assert len(data) == opening.body_length
    assert opening.body_complete == (made.upload is None)
    return pb.RunInput.FromString(bytes(data))


class Grants:
    """A link that takes everything."""

    takes_body = True

    def __init__(self, data: bytearray) -> None:
        self.data = data

    def send_body(self, run_id: int, piece: bytes, complete: bool) -> None:
        assert 0 < len(piece) <= 65536
        self.data += piece

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"not called: {name}")
