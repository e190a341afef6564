"""What a provider is sent for a request: the opening of the tunnel and the body behind it, piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from iop_fast._core.multipart import FormScan
from iop_fast._core.scan import BodyScan
from iop_fast._hot.records import new_record
from iop_fast.edge.auth import Field, Principal
from iop_fast.edge.body import Body, EditedBody, apply_edits
from iop_fast.edge.edits import Spans, plan_edits
from iop_fast.edge.routes import Surface
from iop_fast.edge.runtime import Key, Runtime
from iop_fast.seams import RequestHead, TunnelRequest
from iop_fast.wire.options import PIECE_BYTES

if TYPE_CHECKING:
    from iop_fast.edge.state import RunLink


class Request:
    """A request for a tunnel as its head says it. `passed` are the fields that go on to the provider, `forwarded` is
    the provider token that goes with them, if any, `cors` what every answer says to a browser. `boundary` is that of a
    body that is a form, `target` the path with its query."""

    __slots__ = (
        "boundary",
        "cors",
        "dialect",
        "forwarded",
        "head",
        "id",
        "is_metered",
        "method",
        "passed",
        "path",
        "principal",
        "surface",
        "target",
    )

    def __init__(
        self,
        id: bytes,
        surface: Surface,
        head: RequestHead,
        passed: Sequence[Field],
        principal: Principal,
        forwarded: bytes | None,
        cors: Sequence[Field] = (),
        boundary: bytes = b"",
    ) -> None:
        self.id = id
        self.surface = surface
        # What is asked of it again and again; a dataclass answers slowly.
        self.path, self.dialect, self.is_metered = surface.path, surface.dialect, surface.is_metered
        self.head = head
        self.passed = passed
        self.principal = principal
        self.forwarded = forwarded
        self.cors = cors
        self.boundary = boundary
        self.method = head.method
        self.target = b"%b?%b" % (head.path, head.query) if head.query else head.path

    def again(self, id: bytes, head: RequestHead) -> Request:
        """Return another request with the same head but for its content_length."""
        twin = Request.__new__(Request)
        twin.id = id
        twin.surface = self.surface
        twin.path = self.path
        twin.dialect = self.dialect
        twin.is_metered = self.is_metered
        twin.head = head
        twin.passed = self.passed
        twin.principal = self.principal
        twin.forwarded = self.forwarded
        twin.cors = self.cors
        twin.boundary = self.boundary
        twin.method = self.method
        twin.target = self.target
        return twin

    def new_scan(self) -> BodyScan | FormScan:
        """Make the scan that reads a body of this kind."""
        return FormScan(self.boundary) if self.boundary else BodyScan()


class Pieces(Protocol):
    """A body as it is sent, read from any offset."""

    @property
    def size(self) -> int:
        """Its length."""
        ...

    def piece(self, offset: int, limit: int) -> bytes:
        """Copy the bytes from `offset`, at most `limit` of them; b"" at the end."""
        ...

    def view(self, offset: int, limit: int) -> bytes | memoryview:
        """What `piece` returns, for who reads it at once."""
        ...


class Upload:
    """A body on its way to one provider: how much was handed on and how much the Node still takes."""

    __slots__ = ("_body", "_credit", "_handed")

    def __init__(self, body: Pieces, window: int) -> None:
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
        """Hand on what the Node takes after it granted `granted` more bytes, as far as the link has room."""
        self._credit += granted
        while not self.is_complete:
            if not link.takes_body:
                link.wait_to_send(run_id)
                return
            piece = self._body.view(self._handed, min(PIECE_BYTES, self._credit))
            if not piece:
                return
            self._handed += len(piece)
            self._credit -= len(piece)
            link.send_body(run_id, piece, self.is_complete)


def prepare_tunnel(
    request: Request, body: Body, scan: Spans, is_stream: bool, model: str, runtime: Runtime, key: Key
) -> tuple[TunnelRequest, Upload | None, Sequence[str]]:
    """Make a request ready for the provider `key`, as `runtime` says.

    Returns the opening, the body behind it (None when the opening holds all of it), and the names of the fields that
    were lowered to a ceiling.
    """
    settings = runtime.settings
    entry = settings.models[model]
    served = entry.served[key]
    name = served.name.encode() if request.boundary else served.json
    edits, clamped = plan_edits(scan, body, name, request.path, entry.generation)
    limit = min(PIECE_BYTES, settings.run_window_bytes)
    first = apply_edits(body.slice(0, body.size), edits) if body.size <= limit else b""
    size = len(first)
    upload = None
    if not 0 < size <= limit:
        upload = Upload(EditedBody(body, edits), settings.run_window_bytes)
        first = upload.next_piece()
        size = upload.size
    opening = new_record(
        TunnelRequest,
        (
            key[1],
            request.method,
            request.target,
            provider_fields(request, runtime),
            first,
            upload is None or upload.is_complete,
            size,
            served.name,
            is_stream,
            request.forwarded is not None,
        ),
    )
    return opening, upload, clamped


def provider_fields(request: Request, runtime: Runtime) -> list[Field]:
    """Return the header fields that the provider gets: the caller's but for the private ones, the forwarded token,
    and our request id."""
    fields = [*request.passed, (b"x-request-id", request.id)]
    if request.forwarded is not None and runtime.forward_rule is not None:
        fields.append((runtime.forward_rule.target_header, request.forwarded))
    return fields
