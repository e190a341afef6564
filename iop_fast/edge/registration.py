"""How a stream becomes a session: its first frame, the checks, the answer.

A stream that says nothing within the limit, or nothing that can be checked, is refused or given up; it holds one place
of `UNREGISTERED_MAX` until then and nothing else. The checks go from what costs nothing to what reveals something, and
the first that fails is the refusal's reason:

    BAD_REQUEST     the first frame is no RegisterRequest, or a field is missing or too long
    VERSION         another major version of the protocol
    UNKNOWN_NODE    no such node in the configuration
    BAD_CERTIFICATE client certificates are demanded (edge.tls.client_ca_file) and the one shown does not name the node
    BAD_TOKEN       its hash is not the configured one (compared in constant time), or the node has none configured
    EDGE_DRAINING   this Edge shuts down
    NODE_ID_IN_USE  another instance holds the id and was heard within the silence limit

From the read of the first frame to the installed session everything is one synchronous step: two registrations of one
Node never interleave. An accepted session is not a candidate; `link` says what makes it one.
"""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import Callable, Collection
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError

import iop_fast
from iop_fast import logs
from iop_fast._hot.dispatch import dispatch_edge
from iop_fast._hot.frames import FrameError, encode_frame
from iop_fast.edge.link import NodeLink, Session
from iop_fast.edge.links import Links
from iop_fast.seams import MessageStream
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.liveness import NS_PER_MS
from iop_fast.wire.payload import registration_entries

if TYPE_CHECKING:
    from iop_fast.edge.state import EdgeState

log = logs.get(__name__)

PROTOCOL_MAJOR = 1
PROTOCOL = f"{PROTOCOL_MAJOR}.0"
SOFTWARE = f"iop_fast {iop_fast.__version__}"

# Time from the opening of a stream to its RegisterRequest.
REGISTER_LIMIT_S = 10.0
# Streams without a registration at one time: a fleet that dials in at once, not a crowd that never speaks.
UNREGISTERED_MAX = 1024
# Longest field of a registration; a token may be longer than a name.
FIELD_CHARS_MAX = 256
TOKEN_CHARS_MAX = 4096
# A refusal that quotes what a peer has shown is cut here.
DETAIL_CHARS_MAX = 1024


class Refused(NamedTuple):
    """Why a registration is refused: for the Node's program and, with what to do, for its operator."""

    refusal: pb.Refusal.ValueType
    detail: str


class Registrar:
    """Takes the Nodes' streams and runs their sessions."""

    __slots__ = ("_edge", "_links", "_loop", "_unregistered")

    def __init__(self, edge: EdgeState, links: Links, loop: asyncio.AbstractEventLoop) -> None:
        self._edge = edge
        self._links = links
        self._loop = loop
        self._unregistered = 0

    async def serve(
        self,
        stream: MessageStream,
        address: str,
        names: Collection[str] = (),
        on_registered: Callable[[], None] | None = None,
    ) -> None:
        """Register a stream and be its session's reader until the end.

        `address` is the peer's, for people; `names` are those in the certificate that it has shown. `on_registered` is
        called when the registration is accepted, before anything else is read.
        """
        if self._unregistered >= UNREGISTERED_MAX:
            log.warning("stream_refused", address=address, unregistered=self._unregistered)
            stream.abandon()
            return
        self._unregistered += 1
        limit = self._loop.call_later(REGISTER_LIMIT_S, self._give_up, stream, address)
        try:
            link = await self._register(stream, address, names)
        finally:
            limit.cancel()
            self._unregistered -= 1
        if link is not None:
            if on_registered is not None:
                on_registered()
            await link.read_until_closed()

    def _give_up(self, stream: MessageStream, address: str) -> None:
        log.warning("registration_late", address=address, limit_s=REGISTER_LIMIT_S)
        stream.abandon()

    async def _register(self, stream: MessageStream, address: str, names: Collection[str]) -> NodeLink | None:
        message = await stream.read()
        if message is None:
            log.debug("stream_left", address=address)
            return None
        request = first_request(message)
        refused = BAD_FIRST_FRAME if request is None else self._refusal_of(request, names)
        if refused is None:
            assert request is not None
            return self._accept(request, stream, address)
        name = pb.Refusal.Name(refused.refusal).lower()
        self._links.counters.refused += 1
        log.warning(
            "registration_refused",
            node=request.node_id[:FIELD_CHARS_MAX] if request is not None else "",
            address=address,
            refusal=name,
            detail=refused.detail,
        )
        answer = pb.RegisterResponse(
            refusal=refused.refusal, detail=refused.detail, protocol=PROTOCOL, software=SOFTWARE
        )
        try:
            await stream.write(encode_frame(pb.Frame(register_response=answer).SerializeToString()))
        except ConnectionError:
            log.debug("stream_left", address=address)
        return None

    def _refusal_of(self, request: pb.RegisterRequest, names: Collection[str]) -> Refused | None:
        """Return the first check that the registration fails, None when it is to be accepted."""
        return check_fields(request) or self._check_identity(request, names) or self._check_holder(request)

    def _check_identity(self, request: pb.RegisterRequest, names: Collection[str]) -> Refused | None:
        """A Node is known by its token and, where client certificates are demanded, by its certificate's name."""
        node = next((node for node in self._edge.runtime.config.nodes if node.id == request.node_id), None)
        if node is None:
            detail = f"no node {request.node_id!r} in the Edge's configuration; add it under nodes[]"
            return Refused(pb.UNKNOWN_NODE, detail)
        tls = self._edge.runtime.config.edge.tls
        if tls is not None and tls.client_ca_file is not None and node.id not in names:
            shown = ", ".join(map(repr, sorted(names))) or "none"
            detail = f"expected a client certificate whose common name or alternative name is {node.id!r}, got {shown}"
            return Refused(pb.BAD_CERTIFICATE, detail[:DETAIL_CHARS_MAX])
        expected = node.token_hash_sha256
        if expected is None:
            return Refused(pb.BAD_TOKEN, f"node {node.id!r} has no token_hash_sha256 in the Edge's configuration")
        if not hmac.compare_digest(sha256(request.token.encode()).hexdigest(), expected):
            detail = f"the token is not the one whose sha256 stands at nodes[{node.id}].token_hash_sha256"
            return Refused(pb.BAD_TOKEN, detail)
        return None

    def _check_holder(self, request: pb.RegisterRequest) -> Refused | None:
        if self._edge.is_draining:
            return Refused(pb.EDGE_DRAINING, "the Edge is shutting down; dial again later")
        holder = self._links.holder(request.node_id, request.instance_id)
        if holder is None:
            return None
        silent_s = holder.silence.silent_ns / 1e9
        detail = (
            f"another process holds node {request.node_id!r} from {holder.session.address} and was heard "
            f"{silent_s:.1f} s ago; stop it, or give this one an id of its own"
        )
        return Refused(pb.NODE_ID_IN_USE, detail)

    def _accept(self, request: pb.RegisterRequest, stream: MessageStream, address: str) -> NodeLink:
        edge = self._edge
        revision = edge.runtime.payload_revisions[request.node_id]
        session = Session(
            node_id=request.node_id,
            instance_id=request.instance_id,
            generation=self._links.next_generation(),
            payload_revision=revision,
            address=address,
            software=request.software[:FIELD_CHARS_MAX],
            host=request.host[:FIELD_CHARS_MAX],
            protocol=request.protocol,
        )
        link = NodeLink(edge, self._links, session, stream, self._loop)
        if link.silence.allow_for(request.heartbeat_ms):
            log.warning("silence_stretched", node=session.node_id, silence_ms=link.silence.limit_ms)
        self._links.install(link)
        log.info(
            "node_accepted",
            node=session.node_id,
            generation=session.generation,
            payload_revision=revision,
            address=address,
            software=session.software,
            host=session.host,
        )
        response = pb.RegisterResponse(
            generation=session.generation,
            payload_revision=revision,
            protocol=PROTOCOL,
            software=SOFTWARE,
            run_window_bytes=edge.runtime.run_window_bytes,
            heartbeat_ms=self._links.limits.heartbeat_ns // NS_PER_MS,
        )
        link.start(registration_entries(response, edge.runtime.encoded[request.node_id]))
        return link


BAD_FIRST_FRAME = Refused(pb.BAD_REQUEST, "the first frame of a session must be a RegisterRequest")


class _FirstFrame:
    """Catches the first session frame of a message."""

    def __init__(self) -> None:
        self.frame: bytes | None = None

    def on_control(self, frame: bytes) -> None:
        if self.frame is None:
            self.frame = frame

    def on_frame_failed(self, run_id: int, error: Exception) -> None:
        raise AssertionError("a message was dispatched without runs") from error


def first_request(message: bytes) -> pb.RegisterRequest | None:
    """Return the RegisterRequest that a stream begins with, None when it begins with anything else."""
    first = _FirstFrame()
    try:
        dispatch_edge(message, {}, first)
        frame = pb.Frame.FromString(first.frame or b"")
    except (FrameError, DecodeError):
        return None
    return frame.register_request if frame.WhichOneof("body") == "register_request" else None


def check_fields(request: pb.RegisterRequest) -> Refused | None:
    """Check what can be checked without the configuration."""
    for name, value in (
        ("node_id", request.node_id),
        ("token", request.token),
        ("instance_id", request.instance_id),
        ("protocol", request.protocol),
    ):
        limit = TOKEN_CHARS_MAX if name == "token" else FIELD_CHARS_MAX
        if not 0 < len(value) <= limit:
            return Refused(pb.BAD_REQUEST, f"{name}: expected 1 to {limit} characters, got {len(value)}")
    version = re.fullmatch(r"([0-9]{1,9})\.([0-9]{1,9})", request.protocol, re.ASCII)
    if version is None:
        return Refused(pb.BAD_REQUEST, f"protocol: expected major.minor, got {request.protocol!r}")
    if int(version[1]) != PROTOCOL_MAJOR:
        detail = f"the Edge speaks protocol {PROTOCOL}, the Node {request.protocol}; install the same major version"
        return Refused(pb.VERSION, detail)
    return None
