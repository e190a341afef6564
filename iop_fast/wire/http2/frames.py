"""Frames, settings and error codes of HTTP/2 (RFC 9113), and how the small frames are written."""

from __future__ import annotations

import struct

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # section 3.4

HEAD_BYTES = 9  # section 4.1

# Frame types, section 6.
DATA = 0x0
HEADERS = 0x1
PRIORITY = 0x2
RST_STREAM = 0x3
SETTINGS = 0x4
PUSH_PROMISE = 0x5
PING = 0x6
GOAWAY = 0x7
WINDOW_UPDATE = 0x8
CONTINUATION = 0x9

# Flags, section 6.
END_STREAM = 0x1
ACK = 0x1
END_HEADERS = 0x4
PADDED = 0x8
PRIORITY_FIELDS = 0x20

# Settings, section 6.5.2.
HEADER_TABLE_SIZE = 0x1
ENABLE_PUSH = 0x2
MAX_CONCURRENT_STREAMS = 0x3
INITIAL_WINDOW_SIZE = 0x4
MAX_FRAME_SIZE = 0x5
MAX_HEADER_LIST_SIZE = 0x6

# Error codes, section 7.
NO_ERROR = 0x0
PROTOCOL_ERROR = 0x1
INTERNAL_ERROR = 0x2
FLOW_CONTROL_ERROR = 0x3
SETTINGS_TIMEOUT = 0x4
STREAM_CLOSED = 0x5
FRAME_SIZE_ERROR = 0x6
REFUSED_STREAM = 0x7
CANCEL = 0x8
COMPRESSION_ERROR = 0x9
ENHANCE_YOUR_CALM = 0xB

ERROR_NAMES = {
    NO_ERROR: "no error",
    PROTOCOL_ERROR: "protocol error",
    INTERNAL_ERROR: "internal error",
    FLOW_CONTROL_ERROR: "flow control error",
    SETTINGS_TIMEOUT: "settings timeout",
    STREAM_CLOSED: "stream closed",
    FRAME_SIZE_ERROR: "frame size error",
    REFUSED_STREAM: "refused",
    CANCEL: "cancelled",
    COMPRESSION_ERROR: "compression error",
    0xA: "connect error",
    ENHANCE_YOUR_CALM: "too much work asked for",
    0xC: "inadequate security",
    0xD: "HTTP/1.1 required",
}

DEFAULT_WINDOW_BYTES = 65_535  # sections 6.5.2 and 6.9.2
DEFAULT_FRAME_BYTES = 16_384
MAX_FRAME_BYTES = 16_777_215
MAX_WINDOW_BYTES = 2**31 - 1
MAX_STREAM_ID = 2**31 - 1

_HEAD = struct.Struct(">HBBBI")
_SETTING = struct.Struct(">HI")
_WORD = struct.Struct(">I")
_TWO_WORDS = struct.Struct(">II")


class ProtocolError(Exception):
    """The peer broke HTTP/2: its connection ends with this error code. The text is for people and goes to the peer."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


def error_name(code: int) -> str:
    """Return an error code in words."""
    return ERROR_NAMES.get(code, f"error {code:#x}")


def frame(kind: int, flags: int, stream_id: int, payload: bytes = b"") -> bytes:
    """Return one whole frame."""
    size = len(payload)
    return _HEAD.pack(size >> 8, size & 0xFF, kind, flags, stream_id) + payload


def settings(values: dict[int, int]) -> bytes:
    """Return a SETTINGS frame."""
    return frame(SETTINGS, 0, 0, b"".join(_SETTING.pack(name, value) for name, value in values.items()))


def read_settings(payload: bytes) -> list[tuple[int, int]]:
    """Return the pairs of a SETTINGS payload, whose size is a multiple of six."""
    return list(_SETTING.iter_unpack(payload))


def window_update(stream_id: int, byte_count: int) -> bytes:
    """Return a WINDOW_UPDATE frame; stream 0 is the connection."""
    return frame(WINDOW_UPDATE, 0, stream_id, _WORD.pack(byte_count))


def rst_stream(stream_id: int, code: int) -> bytes:
    """Return an RST_STREAM frame."""
    return frame(RST_STREAM, 0, stream_id, _WORD.pack(code))


def goaway(last_id: int, code: int, text: str = "") -> bytes:
    """Return a GOAWAY frame; the text is cut to what a person reads."""
    return frame(GOAWAY, 0, 0, _TWO_WORDS.pack(last_id, code) + text.encode("utf-8", "replace")[:256])


SETTINGS_ACK = frame(SETTINGS, ACK, 0)
