"""OpenAI's JSON read into the parts of a RunInput. Pure; what has another shape is refused by its place.

A field's place is written as clients write it: `messages[2].content[0].image_url`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import orjson

from iop_fast.edge.body import Body
from iop_fast.edge.normalized.media import Media, Span, decode
from iop_fast.edge.normalized.run_input import AUDIO, IMAGE, TEXT, Message, Part, Segment
from iop_fast.edge.outcomes import RequestRefused, Verdict
from iop_fast.errors import Failure

ROLES = {role: role.encode() for role in ("system", "developer", "user", "assistant", "tool")}
EMBEDDING_INPUTS_MAX = 2048  # platform.openai.com, "Create embeddings"

# Stands in the place of long media while the rest is read. No base64 begins so.
MARK = "\0"

DATA_URL = re.compile(r"data:([^,;]*)(?:;[^,;]*)*;base64,", re.IGNORECASE)
MEDIA_TYPE = re.compile(r"[\w.+-]+/[\w.+-]+", re.ASCII)
AUDIO_FORMAT = re.compile(r"[\w.+-]+", re.ASCII)
AUDIO_TYPES = {"mp3": "audio/mpeg"}


def refuse(param: str, words: str) -> NoReturn:
    """Refuse a request for a field."""
    raise RequestRefused(Verdict(Failure.INVALID_REQUEST, f"{param}: {words}"), param)


def loaded(text: bytes, param: str | None) -> Any:
    """Parse what the scan took for JSON; refuse lone surrogates and numbers out of a double's range."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as error:
        words = f"expected Unicode, and numbers within a double's range: {error.msg}"
        raise RequestRefused(Verdict(Failure.INVALID_REQUEST, words), param) from None


def text_of(value: Any, param: str) -> bytes:
    """Return a string as UTF-8."""
    if not isinstance(value, str):
        refuse(param, f"expected a string, got {kind_of(value)}")
    return value.encode()


def object_of(value: Any, param: str) -> Mapping[str, Any]:
    """Return an object."""
    if not isinstance(value, dict):
        refuse(param, f"expected an object, got {kind_of(value)}")
    return value


def list_of(value: Any, param: str) -> Sequence[Any]:
    """Return an array."""
    if not isinstance(value, list):
        refuse(param, f"expected an array, got {kind_of(value)}")
    return value


def kind_of(value: Any) -> str:
    """Name a JSON value's type."""
    if value is None:
        return "null"
    names = {bool: "a boolean", str: "a string", list: "an array", dict: "an object"}
    return names.get(type(value), "a number")


class Marked:
    """A part of a body read with its long media left out: `value` holds marks in their places."""

    def __init__(self, body: Body, start: int, end: int, media: Sequence[Span], param: str) -> None:
        """Raises RequestRefused as `loaded` does."""
        self._body = body
        self._left = dict(enumerate(media))
        pieces: list[bytes] = []
        at = start
        for index, span in enumerate(media):
            pieces += (body.slice(at, span.start), b"\\u0000%d" % index)
            at = span.end
        pieces.append(body.slice(at, end))
        self.value: Any = loaded(b"".join(pieces), param)

    @property
    def is_used_up(self) -> bool:
        """True when every mark was taken for the media that it stands for."""
        return not self._left

    def take(self, text: str, param: str) -> Segment:
        """Return the media of a string that is base64 or a mark."""
        if not text.startswith(MARK):
            return decode(text.encode("ascii", "replace"), param)
        span = self._left.pop(int(text[1:]), None) if text[1:].isdecimal() else None
        return decode(b"\0", param) if span is None else Media(self._body, span, param)


def read_messages(marked: Marked, place: str) -> list[Message]:
    """Read the messages of a chat."""
    given = list_of(marked.value, place)
    if not given:
        refuse(place, "expected at least one message")
    return [read_message(marked, message, f"{place}[{index}]") for index, message in enumerate(given)]


def read_message(marked: Marked, value: Any, place: str) -> Message:
    """Read one message."""
    given = object_of(value, place)
    role, content = given.get("role"), given.get("content")
    if not isinstance(role, str) or role not in ROLES:
        refuse(f"{place}.role", f"expected one of {', '.join(ROLES)}")
    parts: Sequence[Part] = ()
    if isinstance(content, str):
        if len(given) == 2:  # fast path: most messages are a role and a text
            return Message(ROLES[role], (Part(TEXT, content.encode()),))
        parts = (Part(TEXT, content.encode()),)
    elif isinstance(content, list):
        parts = [read_part(marked, part, f"{place}.content[{index}]") for index, part in enumerate(content)]
    elif content is not None or role != "assistant":
        refuse(f"{place}.content", f"expected a string or an array of parts, got {kind_of(content)}")
    if given.get("function_call") is not None:
        refuse(f"{place}.function_call", "this model takes tool_calls only")
    calls = given.get("tool_calls")
    return Message(
        ROLES[role],
        parts,
        b"" if given.get("name") is None else text_of(given["name"], f"{place}.name"),
        b"" if given.get("tool_call_id") is None else text_of(given["tool_call_id"], f"{place}.tool_call_id"),
        b"" if calls is None else read_tool_calls(calls, f"{place}.tool_calls"),
    )


def read_part(marked: Marked, value: Any, place: str) -> Part:
    """Read a part of a message's content."""
    given = object_of(value, place)
    kind = given.get("type")
    if kind == "text" or kind == "refusal":
        return Part(TEXT, text_of(given.get(kind), f"{place}.{kind}"))
    if kind == "image_url":
        return read_image(marked, given.get("image_url"), f"{place}.image_url")
    if kind == "input_audio":
        return read_audio(marked, given.get("input_audio"), f"{place}.input_audio")
    shown = repr(kind[:32]) if isinstance(kind, str) else kind_of(kind)
    refuse(f"{place}.type", f"expected text, image_url or input_audio for this model, got {shown}")


def read_image(marked: Marked, value: Any, place: str) -> Part:
    """Read an image that is in the request; the gateway fetches none."""
    place, url = (place, value) if isinstance(value, str) else (f"{place}.url", object_of(value, place).get("url"))
    if not isinstance(url, str):
        refuse(place, f"expected a string, got {kind_of(url)}")
    lead = DATA_URL.match(url)
    if lead is None:
        if url[:5].lower() == "data:":
            refuse(place, "expected a data: URL in base64")
        refuse(place, "expected a data: URL; images elsewhere are not fetched for this model")
    media_type = lead[1] or "image/png"
    if MEDIA_TYPE.fullmatch(media_type) is None:
        refuse(place, "expected a media type such as image/png")
    return Part(IMAGE, marked.take(url[lead.end() :], place), media_type.encode())


def read_audio(marked: Marked, value: Any, place: str) -> Part:
    """Read sound."""
    given = object_of(value, place)
    data, form = given.get("data"), given.get("format", "wav")
    if not isinstance(data, str):
        refuse(f"{place}.data", f"expected a string, got {kind_of(data)}")
    if not isinstance(form, str) or AUDIO_FORMAT.fullmatch(form) is None:
        refuse(f"{place}.format", "expected a format such as wav or mp3")
    media_type = AUDIO_TYPES.get(form, f"audio/{form}")
    return Part(AUDIO, marked.take(data, f"{place}.data"), media_type.encode())


def read_tool_calls(value: Any, place: str) -> bytes:
    """Read the tool calls of an assistant's message; arguments that are an object become the JSON text of it."""
    calls = []
    for index, call in enumerate(list_of(value, place)):
        here = f"{place}[{index}]"
        given = object_of(call, here)
        function = object_of(given.get("function"), f"{here}.function")
        text_of(function.get("name"), f"{here}.function.name")
        if given.get("id") is not None:
            text_of(given["id"], f"{here}.id")
        arguments = function.get("arguments")
        if arguments is None:
            arguments = ""
        elif isinstance(arguments, dict):
            arguments = orjson.dumps(arguments).decode()
        else:
            text_of(arguments, f"{here}.function.arguments")
        calls.append({**given, "function": {**function, "arguments": arguments}})
    return orjson.dumps(calls) if calls else b""


def read_inputs(value: Any, place: str, count_max: int) -> list[bytes]:
    """Read a text or an array of texts."""
    if isinstance(value, str):
        return [value.encode()]
    if not isinstance(value, list) or not value:
        refuse(place, f"expected a string or an array of strings, got {kind_of(value) if value != [] else 'none'}")
    if len(value) > count_max:
        refuse(place, f"expected at most {count_max} texts, got {len(value)}")
    return [text_of(text, f"{place}[{index}]") for index, text in enumerate(value)]
