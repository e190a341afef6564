"""What a provider is sent for a request: the opening of the tunnel and the body behind it, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from iop_fast.edge.auth import Headers, Principal, tunnel_headers
from iop_fast.edge.body import Body, EditedBody
from iop_fast.edge.edits import Spans, plan_edits
from iop_fast.edge.routes import Surface
from iop_fast.edge.runtime import Key, Runtime
from iop_fast.edge.state import RunLink
from iop_fast.seams import RequestHead, TunnelRequest

# A frame carries at most this much of a body (proto/iop/runtime.proto, "Sizes").
PIECE_BYTES = 64 * 1024


class Request(NamedTuple):
    """A request for a tunnel as its head says it. `forwarded` is the provider token that goes with it, if any."""

    id: bytes
    surface: Surface
    head: RequestHead
    principal: Principal
    forwarded: bytes | None


class Upload:
    """A body on its way to one provider: how much was handed on and how much the Node still takes."""

    __slots__ = ("_body", "_credit", "_handed")

    def __init__(self, body: EditedBody, window: int) -> None:
        self._body = body
        self._credit = window
        self._handed = 0

    @property
    def size(self) -> int:
        """Length of the whole body as it is sent."""
        return self._body.size

    @property
    def is_complete(self) -> bool:
        """True when all of it was handed on."""
        return self._handed == self._body.size

    def next_piece(self) -> bytes:
        """Take the next piece; b"" while the Node takes none."""
        piece = self._body.piece(self._handed, min(PIECE_BYTES, self._credit))
        self._handed += len(piece)
        self._credit -= len(piece)
        return piece

    def go_on(self, link: RunLink, run_id: int, granted: int) -> None:
        """Hand on what the Node takes after it granted `granted` more bytes."""
        self._credit += granted
        while not self.is_complete:
            piece = self.next_piece()
            if not piece:
                return
            link.send_body(run_id, piece, self.is_complete)


class Tunnel(NamedTuple):
    """An opening, the body that follows it, and the fields of the body that were lowered to a ceiling."""

    opening: TunnelRequest
    upload: Upload
    clamped: Sequence[str]


def prepare_tunnel(
    request: Request, body: Body, scan: Spans, is_stream: bool, model: str, runtime: Runtime, key: Key
) -> Tunnel:
    """Make a request ready for the provider `key`, as `runtime` says."""
    entry = runtime.models[model]
    served = entry.served[key]
    edits, clamped = plan_edits(scan, body.slice, served, request.surface.path, entry.generation)
    upload = Upload(EditedBody(body, edits), runtime.config.edge.link.run_window_bytes)
    head = request.head
    first = upload.next_piece()
    opening = TunnelRequest(
        provider_id=key[1],
        method=head.method,
        path=b"%b?%b" % (head.path, head.query) if head.query else head.path,
        headers=provider_fields(request, runtime),
        body=first,
        body_complete=upload.is_complete,
        body_length=upload.size,
        model=served,
        stream=is_stream,
    )
    return Tunnel(opening, upload, clamped)


def provider_fields(request: Request, runtime: Runtime) -> Headers:
    """Return the header fields that the provider gets: the caller's but for the private ones, the forwarded token,
    and our request id."""
    fields = tunnel_headers(request.head.headers, runtime.dropped_fields)
    if request.forwarded is not None and runtime.forward_rule is not None:
        fields.append((runtime.forward_rule.target_header, request.forwarded))
    fields.append((b"x-request-id", request.id))
    return fields
