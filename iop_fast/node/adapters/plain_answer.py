"""An HTTP/1.1 answer on its way in: bytes of a connection become a head and pieces of a body, as they are.

The head is collected until its empty line and read in one go: llhttp's cost grows quadratically with a head that
trickles in. Interim answers (1xx) are passed over. Where the body ends is RFC 9112, section 6.3: for the answer to
HEAD, 204 and 304 at the head; with Transfer-Encoding by its chunks; with Content-Length by counting; otherwise where
the connection closes.

llhttp judges, but is asked only where there is something to judge: heads and chunks of the plain form, which is what
servers send, are read by `_hot/heads` and `_hot/plain_chunks` at a tenth of its price. Whatever they leave goes to
llhttp, a body from the first odd byte on, so what is an answer and what is none is its word alone.

llhttp judges strictly but for three things that real servers do and aiohttp, which carries https here, lets pass:
control characters in a field, lines that end with LF alone, spaces after a chunk's size.
"""

from __future__ import annotations

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from iop_fast._hot.heads import CHUNKED, UNTIL_CLOSE, find_head_end, read_plain_head
from iop_fast._hot.plain_chunks import PlainChunks
from iop_fast._hot.records import new_record
from iop_fast.seams import Head

# Of a head, interim ones before it included.
HEAD_BYTES_MAX = 64 * 1024
FIELDS_MAX = 256

BEGINNING = b"HTTP/"
LINE_ENDS = b"\r\n"
# What brings a parser to the beginning of a chunked body.
CHUNKED_HEAD = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


class NotHttpError(ValueError):
    """What came instead of a head is none; the text says in a few words what is wrong and repeats no byte of it."""


class Answer:
    """One answer. `head` is None until it is whole; its fields are all of them, in order and as they were written.

    `is_complete` once the body's last byte was fed; `is_broken` when its framing failed, and nothing may follow then.
    `can_keep`: the connection may carry another request after this answer; false also when more came than the answer.
    """

    __slots__ = (
        "_buffer",
        "_chunks",
        "_fields",
        "_has_filler",
        "_is_bodiless",
        "_left",
        "_parser",
        "_pieces",
        "_reason",
        "_seen_bytes",
        "can_keep",
        "head",
        "is_broken",
        "is_complete",
    )

    def __init__(self, is_bodiless: bool) -> None:
        """Begin; `is_bodiless` is true for the answer to a HEAD request."""
        self._is_bodiless = is_bodiless
        self._buffer = b""  # of a head that is not whole
        self._seen_bytes = 0  # of interim heads
        self._fields: list[tuple[bytes, bytes]] = []
        self._reason = b""
        self._chunks: PlainChunks | None = None  # of a chunked body, while its framing is plain
        self._parser: HttpResponseParser | None = None  # of a chunked body that is not; it holds this object
        self._pieces: list[bytes] = []  # that it found
        self._has_filler = False  # the first byte that it will find is none of the body
        self._left = UNTIL_CLOSE
        self.head: Head | None = None
        self.is_complete = False
        self.is_broken = False
        self.can_keep = False

    def has_begun(self) -> bool:
        """True once any byte of it has come."""
        return self.head is not None or bool(self._buffer) or self._seen_bytes > 0

    def feed(self, data: bytes) -> bytes:
        """Take what came and return the part of it that is body. Raises NotHttpError before the head is whole."""
        if self.head is None:
            data = self._feed_head(data)
            if self.is_complete:
                self.can_keep = self.can_keep and not data
                return b""
            if not data:
                return data
        left = self._left
        if left == CHUNKED:
            return self._feed_chunks(data)
        if left == UNTIL_CLOSE:
            return data
        if len(data) < left:
            self._left = left - len(data)
            return data
        self.is_complete = True
        if len(data) == left:
            return data
        self.can_keep = False
        return data[:left]

    def feed_end(self) -> bool:
        """The server closed the connection properly; return True when that makes the answer whole."""
        if self.head is not None and self._left == UNTIL_CLOSE:
            self.is_complete = True
        return self.is_complete

    def close(self) -> None:
        """Let go of the parser, which holds this object."""
        self._parser = None

    # The head.

    def _feed_head(self, data: bytes) -> bytes:
        """Take bytes until the head is whole and return what is left behind it."""
        searched = max(0, len(self._buffer) - 2)
        if self._buffer:
            data = self._buffer + data
        while True:
            if data and data[0] in LINE_ENDS:  # empty lines before a status line
                data = data.lstrip(LINE_ENDS)
                searched = 0
            found = find_head_end(data, searched)
            end = found or len(data)
            if self._seen_bytes + end > HEAD_BYTES_MAX:
                raise NotHttpError(f"its head is over {HEAD_BYTES_MAX} bytes")
            if not found or not self._read_plain(data, end):
                if not data.startswith(BEGINNING[:end]):
                    raise NotHttpError("expected a status line")
                if not found:
                    self._buffer = data
                    return b""
                self._parse_head(data[:end])
            data = data[end:]
            if self.head is not None:
                self._buffer = b""
                return data
            self._seen_bytes += end
            searched = 0

    def _read_plain(self, data: bytes, end: int) -> bool:
        """Read a head of the plain form, which no interim one is; False for another."""
        read = read_plain_head(data, end)
        if read is None:
            return False
        self.head = new_record(Head, read[:3])
        self._left = 0 if self._is_bodiless else read[3]
        self.can_keep = read[4]
        if self._left == CHUNKED:
            self._chunks = PlainChunks()
        self.is_complete = self._left == 0
        return True

    def _parse_head(self, block: bytes) -> None:
        """Have a whole head judged; `head` stays None for an interim one."""
        self._fields = []
        self._reason = b""
        parser = self._new_parser()
        try:
            parser.feed_data(block)
        except HttpParserUpgrade:
            pass  # the run refuses a 101
        except HttpParserError as error:
            raise NotHttpError(first_line(str(error))) from None
        status = parser.get_status_code()
        if len(self._fields) > FIELDS_MAX:
            raise NotHttpError(f"it has more than {FIELDS_MAX} header fields")
        if 100 <= status < 200 and status != 101:
            return
        self.head = Head(status, self._reason, self._fields)
        self.can_keep = parser.should_keep_alive()
        self._left = self._body_length(status)
        self.is_complete = self._left == 0
        if self._left == CHUNKED:
            self._chunks = PlainChunks()

    def _new_parser(self) -> HttpResponseParser:
        parser = HttpResponseParser(self)
        parser.set_dangerous_leniencies(
            lenient_headers=True, lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
        )
        return parser

    def _body_length(self, status: int) -> int:
        """Return the body's length by the head, CHUNKED or UNTIL_CLOSE. llhttp has judged what it is read from."""
        if self._is_bodiless or status in (101, 204, 304):
            return 0
        length = UNTIL_CLOSE
        for name, value in self._fields:
            lower = name.lower()
            if lower == b"content-length":
                length = int(value)
            elif lower == b"transfer-encoding":
                coding = value.strip().lower()
                if coding == b"chunked":
                    return CHUNKED
                if coding != b"identity":
                    raise NotHttpError("it has a transfer coding that nobody asked for")
        return length

    # The parser's callbacks.

    def on_message_begin(self) -> None:
        if self.is_complete:
            self.can_keep = False

    def on_status(self, reason: bytes) -> None:
        self._reason = reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is None:  # what comes behind the body are trailers
            self._fields.append((name, value.rstrip(b" \t")))

    def on_body(self, piece: bytes) -> None:
        if self._has_filler:
            self._has_filler = False
        elif not self.is_complete and self.head is not None:
            self._pieces.append(piece)

    def on_message_complete(self) -> None:
        if self.head is not None:
            self.is_complete = True

    # Chunks.

    def _feed_chunks(self, data: bytes) -> bytes:
        chunks = self._chunks
        if chunks is None:
            return self._parse_chunks(data)
        body = chunks.feed(data)
        if chunks.odd is not None:
            self._chunks = None
            self._begin_parser(chunks.has_filler)
            body += self._parse_chunks(chunks.odd)
        elif chunks.is_complete:
            self.is_complete = True
            self.can_keep = self.can_keep and not chunks.has_more
        return body

    def _begin_parser(self, has_filler: bool) -> None:
        """Make a parser that stands at the beginning of a chunk."""
        self._parser = self._new_parser()
        self._parser.feed_data(CHUNKED_HEAD)
        self._has_filler = has_filler

    def _parse_chunks(self, data: bytes) -> bytes:
        assert self._parser is not None, "chunks without a parser"
        try:
            self._parser.feed_data(data)
        except HttpParserError:
            self.can_keep = False
            self.is_broken = not self.is_complete
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self.is_complete or self.is_broken:
            self._parser = None
        return body


def first_line(message: str) -> str:
    """Return what a parser complains of, without the bytes it points at below."""
    return message.partition("\n")[0].rstrip(": ")
