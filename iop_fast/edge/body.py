"""A request's body: received once, kept until the provider has it, sent with edits that copy nothing.

A body is held in blocks of 1 MiB that grow in place. One buffer for the whole body would be simpler, but growing it
past some megabytes copies all of it at once (measured: 8 to 26 ms for one step of a 32 MiB body), and a list of the
pieces as they arrive would cost 56 bytes for a piece of one. What a body *allocates* is charged to one budget for the
whole process; a declared length is charged up to 1 MiB before the first byte comes, so that clients which announce
little and send much are not what fills it.

Who opens a body drops it, exactly once and in every outcome; `drop` may be called again and then does nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from iop_fast._hot.records import item
from iop_fast._hot.text import part, replaced

BLOCK_BYTES = 1024 * 1024
RESERVED_BYTES_MAX = 1024 * 1024


class BodyTooLarge(Exception):
    """The body is larger than `openai.limits.body_bytes`."""


class BudgetExhausted(Exception):
    """All bodies together reach `openai.limits.buffered_bytes`."""


class ByteBudget:
    """The memory that all buffered bodies may take together."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def take(self, count: int) -> bool:
        """Take `count` bytes, or nothing and return False."""
        if self.used + count > self.limit:
            return False
        self.used += count
        return True

    def give(self, count: int) -> None:
        """Give back what was taken."""
        assert 0 <= count <= self.used, f"{count} bytes given back of {self.used} taken"
        self.used -= count


class Body:
    """The bytes of one request's body."""

    __slots__ = ("_allocated", "_blocks", "_budget", "_charged", "_limit", "size")

    def __init__(self, budget: ByteBudget, limit: int, declared: int | None) -> None:
        """Open a body of at most `limit` bytes. Raises `BodyTooLarge` or `BudgetExhausted` for the declared length."""
        reserved = min(declared or 0, RESERVED_BYTES_MAX)
        if declared is not None and declared > limit:
            raise BodyTooLarge
        self._budget = budget
        if not self._budget.take(reserved):
            raise BudgetExhausted
        self._limit = limit
        self._charged = reserved
        self._blocks: list[bytes | bytearray] = []
        self._allocated = 0  # by all blocks
        self.size = 0

    def append(self, piece: bytes) -> None:
        """Take the next bytes. Raises `BodyTooLarge` or `BudgetExhausted`; the body must then be dropped."""
        count = len(piece)
        if self.size + count > self._limit:
            raise BodyTooLarge
        if not self.size and count <= BLOCK_BYTES:
            # Fast path: most bodies come in one piece, which is kept as it is.
            self._blocks.append(piece)
            self._allocated = self.size = count
        else:
            self._append_to_blocks(piece)
        if self._allocated > self._charged:
            if not self._budget.take(self._allocated - self._charged):
                raise BudgetExhausted
            self._charged = self._allocated

    def _append_to_blocks(self, piece: bytes) -> None:
        offset = 0
        while offset < len(piece):
            used = self.size % BLOCK_BYTES
            part = piece[offset : offset + BLOCK_BYTES - used]
            last = bytearray()
            if used:
                last = self._growing_block()
                self._allocated -= last.__alloc__()
            else:
                self._blocks.append(last)
            last += part
            self._allocated += last.__alloc__()
            self.size += len(part)
            offset += len(part)

    def _growing_block(self) -> bytearray:
        """Return the last block, made growable if it is a piece that was kept as it came."""
        last = self._blocks[-1]
        if isinstance(last, bytes):
            self._allocated -= len(last)
            last = self._blocks[-1] = bytearray(last)
            self._allocated += last.__alloc__()
        return last

    def slice(self, start: int, end: int) -> bytes:
        """Copy a part of the body."""
        if start >= end:
            return b""
        block_bytes = BLOCK_BYTES
        first, last = start // block_bytes, (end - 1) // block_bytes
        if first == last:
            base = first * block_bytes
            block = self._blocks[first]
            if isinstance(block, bytes):
                return part(block, start - base, min(end - base, len(block)))
            return bytes(memoryview(block)[start - base : end - base])
        parts = []
        for index in range(first, last + 1):
            base = index * block_bytes
            parts.append(memoryview(self._blocks[index])[max(start - base, 0) : end - base])
        return b"".join(parts)

    def view(self, start: int, end: int) -> bytes | memoryview:
        """Show a part of the body without a copy where it stands in one block; it must not grow before that is read."""
        base = start // BLOCK_BYTES * BLOCK_BYTES
        if start >= end or end - base > BLOCK_BYTES:
            return self.slice(start, end)
        return memoryview(self._blocks[start // BLOCK_BYTES])[start - base : end - base]

    def find(self, needle: bytes, start: int, end: int) -> int:
        """Return the first place of `needle` in a part of the body, -1 without one."""
        reach = len(needle) - 1
        while start < end:
            base = start // BLOCK_BYTES * BLOCK_BYTES
            found = self._blocks[start // BLOCK_BYTES].find(needle, start - base, end - base)
            if found >= 0:
                return base + found
            border = base + BLOCK_BYTES
            if reach and border < end:  # it may stand across two blocks
                first = max(start, border - reach)
                found = self.slice(first, min(border + reach, end)).find(needle)
                if found >= 0:
                    return first + found
            start = border
        return -1

    def drop(self) -> None:
        """Free the bytes and give their budget back."""
        self._budget.give(self._charged)
        self._charged = self._allocated = self.size = 0
        self._blocks = []


class Edit(NamedTuple):
    """Put `text` in the place of the body's bytes from `start` to `end`; equal offsets insert."""

    start: int
    end: int
    text: bytes


def apply_edits(text: bytes, edits: Sequence[Edit]) -> bytes:
    """Return a short body with its edits made."""
    if len(edits) == 1:
        edit = edits[0]
        return replaced(text, item(edit, 0), item(edit, 1), item(edit, 2))
    parts = []
    at = 0
    for start, end, replacement in edits:
        parts.append(text[at:start])
        parts.append(replacement)
        at = end
    if not parts:
        return text
    parts.append(text[at:])
    return b"".join(parts)


class EditedBody:
    """A body as it is sent: its bytes with a few edits, read piece by piece from any offset."""

    __slots__ = ("_body", "_segments", "size")

    def __init__(self, body: Body, edits: Iterable[Edit]) -> None:
        """Lay `edits` over `body`: in order of their place, not overlapping."""
        self._body = body
        # (offset in the edited body, length, offset in the original or -1, literal text)
        self._segments: list[tuple[int, int, int, bytes]] = []
        self.size = 0
        at = 0
        for start, end, text in edits:
            assert at <= start <= end <= body.size, f"edit {start}..{end} after {at} in a body of {body.size} bytes"
            self._add(start - at, at, b"")
            self._add(len(text), -1, text)
            at = end
        self._add(body.size - at, at, b"")

    def _add(self, length: int, source: int, text: bytes) -> None:
        if length:
            self._segments.append((self.size, length, source, text))
            self.size += length

    def piece(self, offset: int, limit: int) -> bytes:
        """Copy the bytes from `offset`, at most `limit` of them; b"" at the end."""
        end = min(offset + limit, self.size)
        parts = []
        for base, length, source, text in self._segments:
            first, last = max(offset - base, 0), min(end - base, length)
            if first < last:
                parts.append(text[first:last] if source < 0 else self._body.slice(source + first, source + last))
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def view(self, offset: int, limit: int) -> bytes | memoryview:
        """What `piece` returns, without a copy where it is one part of the original; for a reader of this moment."""
        end = min(offset + limit, self.size)
        for base, length, source, _ in self._segments:
            if base <= offset and end <= base + length and source >= 0:
                return self._body.view(source + offset - base, source + end - base)
        return self.piece(offset, limit)
