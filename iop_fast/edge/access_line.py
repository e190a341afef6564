"""Access lines as JSON, written straight to bytes: one for every request.

A line says what `books.access_fields` says, in the same order; a test compares the two. The names in it come from the
configuration, so their text is rendered once for each combination and kept, within bounds.
"""

from __future__ import annotations

import orjson

from iop_fast import logs
from iop_fast._hot.text import decimal
from iop_fast.edge.record import Record

NS_PER_MS = 1_000_000
# Combinations of names that are kept rendered; when so many have come, all are forgotten.
NAMES_MAX = 4_096


class AccessLines:
    """Renders the lines of one logger."""

    __slots__ = ("_middle", "_names")

    def __init__(self, logger: str) -> None:
        self._middle = logs.json_middle(logger, "request")
        self._names: dict[tuple[str | bytes, ...], bytes] = {}

    def render(self, record: Record, end: str, usage_state: str, now_ns: int) -> bytes:
        """Return the line of a request that is over, its end included. `end` is the two letters of its end state."""
        request, reply, usage = record.request, record.reply, record.usage
        began_ns = record.began_ns
        parts = [
            logs.JSON_START,
            logs.stamp(),
            self._middle,
            b'"request":"',
            request.id,
            b'",',
            self._names_of(record),
            b',"status":',
            decimal(reply.status),
            b',"outcome":"',
            record.outcome.encode(),
            b'","end":"',
            end.encode(),
            b'","class":"long","queue_ms":' if record.is_long else b'","class":"normal","queue_ms":',
            decimal(record.queue_ns // NS_PER_MS),
            b',"total_ms":',
            decimal((now_ns - began_ns) // NS_PER_MS),
            b',"estimated_tokens":',
            decimal(record.estimated_tokens),
            b',"bytes_in":',
            decimal(record.bytes_in),
            b',"bytes_out":',
            decimal(reply.bytes_out),
        ]
        if record.head_ns:
            parts += (b',"ttfb_ms":', decimal((record.head_ns - began_ns) // NS_PER_MS))
        if usage_state:
            parts += (b',"usage":"', usage_state.encode(), b'"')
        if usage is not None:
            prompt, completion, cached = usage
            parts += (b',"prompt_tokens":', str(prompt).encode(), b',"completion_tokens":', str(completion).encode())
            parts += (b',"cached_tokens":', str(cached).encode())
        parts.append(b"}\n")
        return b"".join(parts)

    def _names_of(self, record: Record) -> bytes:
        """Return the fields that are names."""
        request = record.request
        principal = request.principal
        path = request.surface.path
        key = (principal[0], principal[1], record.model, record.node_id, record.provider_id, path)
        names = self._names.get(key)
        if names is None:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            fields = dict(zip(("principal", "token", "model", "node", "provider"), key[:5], strict=True))
            names = self._names[key] = orjson.dumps({**fields, "path": path.decode()})[1:-1]
        return names
