"""The Edge's URL space: what a method and a path ask for. Pure; answers and tunnels are made elsewhere.

Paths are matched as they were sent, byte for byte: an encoded or doubled slash is another path. Only the model id of
`/v1/models/{id}` is percent-decoded, because ids may hold "/" and ":" and clients encode them or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from iop_fast.edge import needs

API_ROOT = b"/v1/"
MODELS_PATH = b"/v1/models"
MESSAGES_ROOT = b"/v1/messages/"

READ_METHODS = (b"GET", b"HEAD")
HEX_DIGITS = frozenset(b"0123456789abcdefABCDEF")


class Dialect(Enum):
    """Whose error objects a surface speaks."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


@dataclass(frozen=True, slots=True)
class Surface:
    """An API that is tunnelled to a provider. `bit` is what the provider must be able to do, `is_metered` says that it
    uses tokens, `is_form` that its requests are multipart forms and not JSON."""

    path: bytes
    bit: int
    dialect: Dialect
    is_metered: bool = True
    is_form: bool = False


@dataclass(frozen=True, slots=True)
class ModelList:
    """The list of all models."""


@dataclass(frozen=True, slots=True)
class ModelPage:
    """One model; `model` is None where the path decodes to no text."""

    model: str | None


@dataclass(frozen=True, slots=True)
class NotFound:
    """No such path."""


@dataclass(frozen=True, slots=True)
class WrongMethod:
    """The path exists for the methods of `allow` only."""

    allow: bytes


Route = Surface | ModelList | ModelPage | NotFound | WrongMethod

SURFACES: Mapping[bytes, Surface] = {
    surface.path: surface
    for surface in (
        Surface(b"/v1/chat/completions", needs.SURFACE_CHAT, Dialect.OPENAI),
        Surface(b"/v1/completions", needs.SURFACE_COMPLETIONS, Dialect.OPENAI),
        Surface(b"/v1/embeddings", needs.SURFACE_EMBEDDINGS, Dialect.OPENAI),
        Surface(b"/v1/rerank", needs.SURFACE_RERANK, Dialect.OPENAI),
        Surface(b"/v1/audio/speech", needs.SURFACE_SPEECH, Dialect.OPENAI),
        Surface(b"/v1/audio/transcriptions", needs.SURFACE_TRANSCRIPTIONS, Dialect.OPENAI, is_form=True),
        Surface(b"/v1/audio/translations", needs.SURFACE_TRANSCRIPTIONS, Dialect.OPENAI, is_form=True),
        Surface(b"/v1/images/generations", needs.SURFACE_IMAGES, Dialect.OPENAI),
        Surface(b"/v1/responses", needs.SURFACE_RESPONSES, Dialect.RESPONSES),
        Surface(b"/v1/messages", needs.SURFACE_MESSAGES, Dialect.ANTHROPIC),
        Surface(b"/v1/messages/count_tokens", needs.SURFACE_MESSAGES, Dialect.ANTHROPIC, is_metered=False),
    )
}


def find_route(method: bytes, path: bytes) -> Route:
    """Say what a request is for."""
    surface = SURFACES.get(path)
    if surface is not None:
        return surface if method == b"POST" else WrongMethod(b"POST")
    if path == MODELS_PATH:
        return ModelList() if method in READ_METHODS else WrongMethod(b"GET, HEAD")
    if path.startswith(MODELS_PATH + b"/") and len(path) > len(MODELS_PATH) + 1:
        if method not in READ_METHODS:
            return WrongMethod(b"GET, HEAD")
        return ModelPage(decode_id(path[len(MODELS_PATH) + 1 :]))
    return NotFound()


def is_api(path: bytes) -> bool:
    """True for the paths that callers must be known on where a principal is required."""
    return path.startswith(API_ROOT)


def dialect_of(path: bytes) -> Dialect:
    """Return whose error objects a path speaks, also when it cannot be served."""
    surface = SURFACES.get(path)
    if surface is not None:
        return surface.dialect
    return Dialect.ANTHROPIC if path.startswith(MESSAGES_ROOT) else Dialect.OPENAI


def served_path(path: bytes) -> bytes:
    """Return a path if it is one of ours, for logs; b"" for one that a client made up."""
    if path in SURFACES:
        return path
    return MODELS_PATH if path == MODELS_PATH or path.startswith(MODELS_PATH + b"/") else b""


def decode_id(raw: bytes) -> str | None:
    """Percent-decode a model id (RFC 3986, section 2.1); None for a broken escape or for what is not UTF-8."""
    head, *parts = raw.split(b"%")
    decoded = bytearray(head)
    for part in parts:
        digits = part[:2]
        if len(digits) < 2 or not HEX_DIGITS.issuperset(digits):
            return None
        decoded += bytes([int(digits, 16)]) + part[2:]
    try:
        return decoded.decode()
    except UnicodeDecodeError:
        return None
