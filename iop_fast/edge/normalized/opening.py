"""What a provider is sent for a request that takes no tunnel: the opening of the run, the input behind it; and what its
events are to become.

The parameters go on as the client wrote them, one by one: the JSON text of every field that is not the input or the
Edge's own to answer, with the generation policy of the model applied as it is for a tunnel (`edge/edits`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import orjson

from iop_fast._core.multipart import FormScan
from iop_fast._core.scan import BodyScan
from iop_fast._hot.records import new_record
from iop_fast.config.schema import Generation
from iop_fast.edge.body import Body
from iop_fast.edge.edits import NO_PARAMETERS, PARAMETERS, clamp_edits, default_members
from iop_fast.edge.needs import NAMES
from iop_fast.edge.normalized.limits import (
    CHAT,
    COMPLETIONS,
    EMBEDDINGS,
    INPUT_VALUES_MAX,
    MEDIA,
    READ_BYTES_MAX,
    field_needs,
)
from iop_fast.edge.normalized.media import LONG_BYTES, Span, find_media
from iop_fast.edge.normalized.request import EMBEDDING_INPUTS_MAX, Marked, loaded, read_inputs, read_messages, refuse
from iop_fast.edge.normalized.run_input import Message, RunInputPieces, input_segments
from iop_fast.edge.normalized.translation import (
    ChatAnswer,
    ChatStream,
    EmbeddingAnswer,
    Envelope,
    TextAnswer,
    TextStream,
    Translation,
)
from iop_fast.edge.outcomes import RequestRefused, Verdict
from iop_fast.edge.runtime import Key, Runtime
from iop_fast.edge.tunnel import Request, Upload, prepare_tunnel
from iop_fast.errors import Failure
from iop_fast.seams import RunOpening, TunnelRequest
from iop_fast.wire.options import PIECE_BYTES
from iop_fast.wire.runtime_pb2 import RunRequest

# A field that the Edge answers itself is small.
OWN_FIELD_BYTES_MAX = 4096


class Form(NamedTuple):
    """One API: the kind of run, the field that holds the input, and the fields that are no parameters of the run."""

    kind: int
    source: str
    kept: frozenset[str]


FORMS: Mapping[bytes, Form] = {
    CHAT: Form(RunRequest.CHAT, "messages", frozenset({"model", "messages", "stream", "stream_options"})),
    COMPLETIONS: Form(RunRequest.COMPLETION, "prompt", frozenset({"model", "prompt", "stream", "stream_options"})),
    EMBEDDINGS: Form(RunRequest.EMBEDDING, "input", frozenset({"model", "input", "stream", "encoding_format"})),
}


class Opened(NamedTuple):
    """A request made ready: `upload` is what follows the opening, None when it holds all; `clamped` names the fields
    that were lowered to a ceiling; `translation` makes the answer of a normalized run, None for a tunnel."""

    opening: TunnelRequest | RunOpening
    upload: Upload | None
    clamped: Sequence[str]
    translation: Translation | None


def prepare_run(
    request: Request,
    body: Body,
    scan: BodyScan | FormScan,
    model: str,
    runtime: Runtime,
    key: Key,
    unix_time: Callable[[], int],
) -> Opened:
    """Make a request ready for the provider `key`, as `runtime` says; raise RequestRefused. `unix_time` gives the whole
    seconds since 1970, for what is dated in answers."""
    settings = runtime.settings
    if key not in settings.normalized:
        opening, upload, clamped = prepare_tunnel(request, body, scan, scan.stream, model, runtime, key)
        return new_record(Opened, (opening, upload, clamped, None))
    assert isinstance(scan, BodyScan), "no form is asked of a provider that takes no tunnel"
    return prepare_normalized(request, body, scan, model, runtime, key, unix_time())


def prepare_normalized(
    request: Request, body: Body, scan: BodyScan, model: str, runtime: Runtime, key: Key, unix_time: int
) -> Opened:
    """Make a request ready for a provider of normalized runs."""
    path = request.surface.path
    form = FORMS[path]
    missing = field_needs(scan, body, path) & ~runtime.can[key]
    if missing:  # the configuration gave the model its first provider of this kind while the request waited
        names = ", ".join(name for bit, name in NAMES.items() if bit & missing)
        raise RequestRefused(Verdict(Failure.UNSUPPORTED_BY_MODEL, f"this model does not support {names}"))
    entry = runtime.models[model]
    messages, inputs = read_source(form, body, scan)
    parameters, clamped = parameters_of(form, body, scan, path, entry.generation)
    pieces = RunInputPieces(input_segments(messages, inputs, parameters))
    upload = Upload(pieces, runtime.run_window_bytes)
    is_stream = scan.stream and path != EMBEDDINGS
    first = pieces.piece(0, PIECE_BYTES) if pieces.size <= PIECE_BYTES else upload.next_piece()
    opening = RunOpening(
        key[1],
        entry.served[key].name,
        form.kind,
        is_stream,
        first,
        len(first) == pieces.size,
        pieces.size,
    )
    translation = translation_of(request, body, scan, model, max(1, len(inputs)), unix_time)
    return Opened(opening, None if opening.body_complete else upload, clamped, translation)


def read_source(form: Form, body: Body, scan: BodyScan) -> tuple[list[Message], list[bytes]]:
    """Read what the run works on: messages, or texts."""
    span = scan.value_span(form.source)
    if span is None:
        refuse(form.source, "expected this field")
    start, end = span
    media: list[Span] = []
    if scan.features & MEDIA and end - start > LONG_BYTES:
        media = find_media(body, start, end, READ_BYTES_MAX)
    marked = Marked(body, start, end, media, form.source)
    if form.kind != RunRequest.CHAT:
        count_max = EMBEDDING_INPUTS_MAX if form.kind == RunRequest.EMBEDDING else INPUT_VALUES_MAX
        return [], read_inputs(marked.value, form.source, count_max)
    messages = read_messages(marked, form.source)
    if not marked.is_used_up:
        # What looks like media stands where text is expected: it is text, and read as such.
        if end - start > READ_BYTES_MAX:
            refuse(form.source, f"expected at most {READ_BYTES_MAX} bytes of text for this model")
        messages = read_messages(Marked(body, start, end, (), form.source), form.source)
    return messages, []


def parameters_of(
    form: Form, body: Body, scan: BodyScan, path: bytes, policy: Generation | None
) -> tuple[bytes, Sequence[str]]:
    """Put the parameters together as one JSON object, and name the fields that were lowered to a ceiling."""
    lowered: Mapping[str, bytes] = {}
    members: list[bytes] = []
    if policy is not None:
        known = PARAMETERS.get(path, NO_PARAMETERS)
        lowered = {name: edit.text for name, edit in clamp_edits(scan, body, policy, known).items()}
        members += default_members(scan, policy, known)
    for name in scan.top_level_keys:
        if name in form.kept:
            continue
        span = scan.value_span(name)
        text = lowered.get(name) or (b"null" if span is None else body.slice(*span))
        if text != b"null":
            members.append(orjson.dumps(name) + b":" + text)
    parameters = b"{" + b",".join(members) + b"}"
    loaded(parameters, None)  # the Node will
    return parameters, tuple(lowered)


def translation_of(
    request: Request, body: Body, scan: BodyScan, model: str, choices: int, unix_time: int
) -> Translation:
    """Return what makes the answer of a request's events."""
    path = request.surface.path
    if path == EMBEDDINGS:
        encoding = small_value(body, scan, "encoding_format")
        if encoding not in (None, "float", "base64"):
            refuse("encoding_format", "expected float or base64")
        return EmbeddingAnswer(model, choices, is_base64=encoding == "base64")
    envelope = Envelope(request.id, model, unix_time, path == CHAT)
    if not scan.stream:
        return ChatAnswer(envelope) if path == CHAT else TextAnswer(envelope, choices)
    options = small_value(body, scan, "stream_options")
    if options is not None and not isinstance(options, dict):
        refuse("stream_options", "expected an object")
    wants_usage = (options or {}).get("include_usage") is True
    make: Callable[[Envelope, int, bool], Translation] = ChatStream if path == CHAT else TextStream
    return make(envelope, choices, wants_usage)


def small_value(body: Body, scan: BodyScan, name: str) -> object:
    """Read a field that is the Edge's own to answer; None without one."""
    span = scan.value_span(name)
    if span is None:
        return None
    if span[1] - span[0] > OWN_FIELD_BYTES_MAX:
        refuse(name, f"expected at most {OWN_FIELD_BYTES_MAX} bytes")
    return loaded(body.slice(*span), name)
