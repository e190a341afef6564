"""Puts the served model's name into a request body without copying the body.

Pure functions on the body and the offsets that the scan found. The pieces are views into the body: a bytearray cannot
be resized while one of them lives, and what is sent is what the body holds at that moment, so the body stays as it is
until the last piece has been sent. No byte outside the model's JSON text is touched.
"""

from __future__ import annotations

import orjson


def splice_model(body: bytes | bytearray, span: tuple[int, int], served: str) -> tuple[list[memoryview | bytes], int]:
    """Return the pieces to send for `body` with the JSON text at `span` replaced by the string `served`, and their sum.

    `span` is the scan's `model_span`. No piece is empty, and a body that already says exactly that is one piece. Raises
    ValueError for a span that is not within the body or is empty (a body without a model).
    """
    start, end = span
    if not 0 < start < end < len(body):
        raise ValueError(f"span: expected 0 < start < end < {len(body)}, got {span!r}")
    view = memoryview(body)
    name = orjson.dumps(served)
    if body[start:end] == name:
        return [view], len(body)
    return [view[:start], name, view[end:]], len(body) - (end - start) + len(name)
