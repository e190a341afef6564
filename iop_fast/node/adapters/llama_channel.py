"""Frames between the Node and a model's worker: two lengths, a JSON object (the head), bytes behind it (the tail).

    Node to worker
        load, folder   options of the model; a directory for the socket that the library opens
        start, kind    a run's number; the tail is the request's body
        used, bytes    a run's number; bytes of its frames that the Node has passed on
        cancel         a run's number

    Worker to Node
        loading        how far it is
        loaded         seconds that it took
        broken         why the model cannot be loaded
        run            a run's number, beside it one of
            said       events: each the name of a RunSink's method without "on_", and its arguments
            embedding  the index of an embedding; the tail holds its numbers, float32 of this machine
            end        the fields of an End; nothing of the run comes behind it

Credit. A worker sends frames of a run while less than WINDOW_BYTES of them are unused, so it overdraws by one frame at
most, and keeps the others. A run whose client does not read thus stops itself, and no other run of its worker.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import orjson

HEADER = struct.Struct(">II")
# What the Node passes on in one turn of its loop may be all of it.
WINDOW_BYTES = 32_768


class Frame(NamedTuple):
    """A frame that has arrived; `size` is what it counts of a window."""

    head: Mapping[str, Any]
    tail: bytes
    size: int


def pack(head: Mapping[str, Any], tail: bytes = b"") -> bytes:
    """Return a frame."""
    body = orjson.dumps(head)
    return b"".join((HEADER.pack(len(body), len(tail)), body, tail))


class Unpacker:
    """Makes frames of a stream, however it is cut."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, piece: bytes) -> Iterator[Frame]:
        """Add a piece and yield the frames that are whole."""
        self._rest += piece
        while len(self._rest) >= HEADER.size:
            head_size, tail_size = HEADER.unpack_from(self._rest)
            begin = HEADER.size + head_size
            end = begin + tail_size
            if len(self._rest) < end:
                return
            head = orjson.loads(self._rest[HEADER.size : begin])
            tail = bytes(self._rest[begin:end])
            del self._rest[:end]
            yield Frame(head, tail, end)
