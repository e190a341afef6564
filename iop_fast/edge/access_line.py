"""Access lines as JSON, written straight to bytes: one for every request.

A line says what `books.access_fields` says, in the same order; a test compares the two. The names in it come from the
configuration, so their text is rendered once for each combination and kept, within bounds.
"""

from __future__ import annotations

import orjson

from iop_fast import logs
from iop_fast._hot.records import item
from iop_fast._hot.text import Block, Stamp
from iop_fast.edge.record import Record

NS_PER_MS = 1_000_000
# Combinations of names that are kept rendered; when so many have come, all are forgotten.
NAMES_MAX = 4_096


class AccessLines:
    """Renders the lines of one logger."""

    __slots__ = ("_line", "_middle", "_names", "_stamp", "_start")

    def __init__(self, logger: str) -> None:
        self._start = logs.JSON_START
        self._stamp = Stamp()
        self._middle = logs.json_middle(logger, "request") + b'"request":"'
        self._names: dict[tuple[object, ...], bytes] = {}
        self._line = Block()

    def render(self, record: Record, end: str, usage_state: str, now_ns: int) -> bytes:
        """Return the line of a request that is over, its end included. `end` is the two letters of its end state."""
        line = self._line
        line.clear()
        line.put(self._start)
        line.put(self._stamp.now())
        line.put(self._middle)
        line.put(record.request.id)
        line.put(b'",')
        line.put(self._names_of(record))
        self._put_outcome(record, end, now_ns)
        if usage_state:
            line.put(b',"usage":"')
            line.put_text(usage_state)
            line.put(b'"')
        usage = record.usage
        if usage is not None:
            line.put(b',"prompt_tokens":')
            line.put_number(item(usage, 0))
            line.put(b',"completion_tokens":')
            line.put_number(item(usage, 1))
            line.put(b',"cached_tokens":')
            line.put_number(item(usage, 2))
        line.put(b"}\n")
        return line.take()

    def _put_outcome(self, record: Record, end: str, now_ns: int) -> None:
        """Add what became of the request: words and numbers."""
        line, reply, began_ns = self._line, record.reply, record.began_ns
        line.put(b',"status":')
        line.put_number(reply.status)
        line.put(b',"outcome":"')
        line.put_text(record.outcome)
        line.put(b'","end":"')
        line.put_text(end)
        line.put(b'","class":"long","queue_ms":' if record.is_long else b'","class":"normal","queue_ms":')
        line.put_number(record.queue_ns // NS_PER_MS)
        line.put(b',"total_ms":')
        line.put_number((now_ns - began_ns) // NS_PER_MS)
        line.put(b',"estimated_tokens":')
        line.put_number(record.estimated_tokens)
        line.put(b',"bytes_in":')
        line.put_number(record.bytes_in)
        line.put(b',"bytes_out":')
        line.put_number(reply.bytes_out)
        if record.head_ns:
            line.put(b',"ttfb_ms":')
            line.put_number((record.head_ns - began_ns) // NS_PER_MS)

    def _names_of(self, record: Record) -> bytes:
        """Return the fields that are names."""
        principal, path = record.request.principal, record.request.path
        key = (principal, record.model, record.node_id, record.provider_id, path)
        names = self._names.get(key)
        if names is None:
            if len(self._names) >= NAMES_MAX:
                self._names.clear()
            fields = {
                "principal": principal[0],
                "token": principal[1],
                "model": record.model,
                "node": record.node_id,
                "provider": record.provider_id,
                "path": path.decode(),
            }
            names = self._names[key] = orjson.dumps(fields)[1:-1]
        return names
