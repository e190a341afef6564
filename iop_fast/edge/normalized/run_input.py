"""A RunInput of proto/iop/runtime.proto as bytes: written field by field, sent piece by piece.

Long media stays in the request's body and is decoded as pieces leave (`media`), and all lengths are known beforehand.
So no serialized whole is ever made: a message object of protobuf would hold and copy all of it in one step.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from iop_fast.edge.normalized.media import Media

# Field numbers. RunInput:
MESSAGES, INPUTS, PARAMETERS = 1, 2, 3
# RunMessage:
ROLE, PARTS, NAME, TOOL_CALL_ID, TOOL_CALLS = 1, 2, 3, 4, 5
# RunPart:
TEXT, IMAGE, AUDIO, MEDIA_TYPE = 1, 2, 3, 4

Segment = bytes | Media
# Bytes that are not copied together with what stands beside them.
OWN_SEGMENT_BYTES = 64 * 1024


class Part(NamedTuple):
    """A part of a message: `field` is TEXT, IMAGE or AUDIO."""

    field: int
    content: Segment
    media_type: bytes = b""


class Message(NamedTuple):
    """A message, its texts in UTF-8; what is empty is not given."""

    role: bytes
    parts: Sequence[Part]
    name: bytes = b""
    tool_call_id: bytes = b""
    tool_calls: bytes = b""


def varint(number: int) -> bytes:
    """Encode a number as protobuf does."""
    if number < 0x80:
        return bytes((number,))
    octets = bytearray()
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    octets.append(number)
    return bytes(octets)


# What stands before a short field, by number and size.
SHORT = tuple(tuple(bytes((number << 3 | 2, size)) for size in range(128)) for number in range(6))


def opened(number: int, size: int) -> bytes:
    """Encode what stands before the `size` bytes of a field."""
    return SHORT[number][size] if size < 128 else bytes((number << 3 | 2,)) + varint(size)


def field(number: int, content: bytes) -> bytes:
    """Encode a field of bytes, text or a message."""
    return opened(number, len(content)) + content


def optional(number: int, content: bytes) -> bytes:
    """Encode a field that is left out when it is empty."""
    return field(number, content) if content else b""


def size_of(segments: Iterable[Segment]) -> int:
    """Add up the lengths of segments."""
    return sum(len(segment) if isinstance(segment, bytes) else segment.size for segment in segments)


def part_segments(part: Part) -> list[Segment]:
    """Encode a part as a field of its message; a short one as one segment."""
    content, media_type = part.content, optional(MEDIA_TYPE, part.media_type)
    if isinstance(content, bytes):
        size = len(content)
        if size < OWN_SEGMENT_BYTES:
            return [field(PARTS, field(part.field, content) + media_type)]
    else:
        size = content.size
    head = opened(part.field, size)
    return [opened(PARTS, len(head) + size + len(media_type)) + head, content, media_type]


def message_segments(message: Message) -> list[Segment]:
    """Encode a message as a field of the input."""
    role, parts, name, tool_call_id, tool_calls = message
    if len(parts) == 1 and not (name or tool_call_id or tool_calls):
        content = parts[0].content
        if isinstance(content, bytes) and len(content) < OWN_SEGMENT_BYTES:  # fast path: most messages are one text
            text = field(PARTS, field(parts[0].field, content) + optional(MEDIA_TYPE, parts[0].media_type))
            return [field(MESSAGES, field(ROLE, role) + text)]
    segments: list[Segment] = [field(ROLE, role)]
    for part in parts:
        segments += part_segments(part)
    if name or tool_call_id or tool_calls:
        segments.append(optional(NAME, name) + optional(TOOL_CALL_ID, tool_call_id) + optional(TOOL_CALLS, tool_calls))
    return [opened(MESSAGES, size_of(segments)), *segments]


def input_segments(messages: Iterable[Message], inputs: Iterable[bytes], parameters: bytes) -> list[Segment]:
    """Encode a whole RunInput."""
    segments: list[Segment] = []
    for message in messages:
        segments += message_segments(message)
    segments += (field(INPUTS, text) for text in inputs)
    segments.append(optional(PARAMETERS, parameters))
    return segments


class RunInputPieces:
    """A RunInput as it is sent, read piece by piece from any offset."""

    __slots__ = ("_segments", "size")

    def __init__(self, segments: Iterable[Segment]) -> None:
        # (offset, length, segment), small adjacent bytes joined
        self._segments: list[tuple[int, int, Segment]] = []
        self.size = 0
        literal: list[bytes] = []
        for segment in segments:
            if isinstance(segment, bytes) and len(segment) < OWN_SEGMENT_BYTES:
                literal.append(segment)
            else:
                self._add(b"".join(literal))
                literal.clear()
                self._add(segment)
        self._add(b"".join(literal))

    def _add(self, segment: Segment) -> None:
        length = len(segment) if isinstance(segment, bytes) else segment.size
        if length:
            self._segments.append((self.size, length, segment))
            self.size += length

    def piece(self, offset: int, limit: int) -> bytes:
        """Copy the bytes from `offset`, at most `limit` of them; b"" at the end. Raises RequestRefused for media that
        is no base64."""
        end = min(offset + limit, self.size)
        parts = []
        for base, length, segment in self._segments:
            first, last = max(offset - base, 0), min(end - base, length)
            if first < last:
                parts.append(segment[first:last] if isinstance(segment, bytes) else segment.piece(first, last))
        return b"".join(parts)

    def view(self, offset: int, limit: int) -> bytes:
        """What `piece` returns: it is put together here, and is a copy in any case."""
        return self.piece(offset, limit)
