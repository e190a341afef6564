"""What a program prints, read: bytes of standard output become pieces of an answer, those of standard error a reason.

Two readers with one face, `TextOutput` and `JsonLines`. `feed` takes bytes as they come, cut anywhere, and gives the
pieces that are whole, one by one; `finish` gives the rest. What was not valid UTF-8 becomes U+FFFD. They raise
OutputError in the place of output that is not what the profile says: what stands before it has been given.
"""

from __future__ import annotations

import codecs
import re
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import orjson

from iop_fast.config.schema.cli_profile import CliField, CliProfile
from iop_fast.node.adapters.ndjson import LineReader, LineTooLongError
from iop_fast.seams import Usage

# Finish reasons that keep their meaning; all others are stop.
FINISH_REASONS = {
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "content_filter": "content_filter",
}

COMPLAINT_CHARACTERS_MAX = 500
COMPLAINT_LINES_MAX = 3
# Terminal control sequences (ECMA-48: CSI; OSC to its end), then any other control character.
ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.")
CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029]")
# Values shorter than this are words, not secrets: to hide them would make riddles of messages.
SECRET_CHARACTERS_MIN = 6


class OutputError(Exception):
    """The output is not what the profile says; the text is for people and quotes none of it."""


class Piece(NamedTuple):
    """The next characters of the answer, or of the reasoning."""

    text: str
    is_reasoning: bool = False


class Output(Protocol):
    """A reader of standard output. The fields have what is known so far."""

    finish_reason: str
    error: str
    line_count: int  # JSON lines that were read

    @property
    def usage(self) -> Usage | None:
        """Tokens, as far as the program told of them."""
        ...

    def feed(self, data: bytes) -> Iterable[Piece]:
        """Take bytes and give the pieces that are whole."""
        ...

    def finish(self) -> Iterable[Piece]:
        """Give what is left at the end of the output."""
        ...


def output_of(profile: CliProfile) -> Output:
    """Return a reader for one run of a profile."""
    return TextOutput() if profile.fields is None else JsonLines(profile)


class TextOutput:
    """The output is the answer. Line ends at its end are dropped, as a shell's $(...) does."""

    def __init__(self) -> None:
        self.finish_reason = "stop"
        self.error = ""
        self.line_count = 0
        self.usage: Usage | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._line_ends = 0  # held back: they may be the last

    def feed(self, data: bytes) -> Sequence[Piece]:
        """See Output."""
        return self._take(self._decoder.decode(data))

    def finish(self) -> Sequence[Piece]:
        """See Output."""
        return self._take(self._decoder.decode(b"", final=True))

    def _take(self, text: str) -> Sequence[Piece]:
        kept = text.rstrip("\n")
        if not kept:
            self._line_ends += len(text)
            return ()
        piece = Piece("\n" * self._line_ends + kept)
        self._line_ends = len(text) - len(kept)
        return (piece,)


class JsonLines:
    """The output is one JSON object a line; a profile's `fields` say where the values stand."""

    def __init__(self, profile: CliProfile) -> None:
        assert profile.fields is not None, "the loader demands fields for json_lines"
        self.finish_reason = "stop"
        self.error = ""
        self._fields = profile.fields
        self._lines = LineReader(profile.line_bytes_max)
        self.line_count = 0
        self._tokens = {"prompt_tokens": 0, "completion_tokens": 0, "cached_tokens": 0}
        self._has_tokens = False

    @property
    def usage(self) -> Usage | None:
        """Tokens, as far as the program told of them."""
        return Usage(**self._tokens) if self._has_tokens else None

    def feed(self, data: bytes) -> Iterator[Piece]:
        """See Output."""
        try:
            for line in self._lines.feed(data):
                yield from self._read(line)
        except LineTooLongError as error:
            raise OutputError(f"the program's output is not what line_bytes_max allows: {error}") from None

    def finish(self) -> Iterator[Piece]:
        """See Output. A last line needs no line end."""
        line = self._lines.finish()
        if line:
            yield from self._read(line)

    def _read(self, line: bytes) -> Iterator[Piece]:
        """Read one line."""
        self.line_count += 1
        try:
            document = orjson.loads(line)
        except orjson.JSONDecodeError:
            document = self._read_broken(line)
        if not isinstance(document, dict):
            raise OutputError(f"the program's output is not one JSON object a line: line {self.line_count} is none")
        self._note(document)
        for field, is_reasoning in ((self._fields.reasoning, True), (self._fields.text, False)):
            text = value_of(document, field)
            if isinstance(text, str) and text:
                yield Piece(text, is_reasoning)

    def _note(self, document: Any) -> None:
        """Keep what a line says of the run as a whole."""
        fields = self._fields
        reason = value_of(document, fields.finish_reason)
        if isinstance(reason, str):
            self.finish_reason = FINISH_REASONS.get(reason, "stop")
        error = value_of(document, fields.error)
        if error not in (None, False, ""):  # a line may also say that there was none
            self.error = error if isinstance(error, str) else orjson.dumps(error).decode()
        for name in self._tokens:
            count = value_of(document, getattr(fields, name))
            if isinstance(count, int) and not isinstance(count, bool) and 0 <= count < 2**53:
                self._tokens[name] = count
                self._has_tokens = True

    def _read_broken(self, line: bytes) -> Any:
        """Read a line whose text is not valid UTF-8; None for one that is no JSON either."""
        try:
            return orjson.loads(line.decode("utf-8", "replace"))
        except orjson.JSONDecodeError:
            return None


def value_of(document: Any, field: CliField | None) -> Any:
    """Return the value of a field in a line; None where there is none."""
    if field is None:
        return None
    for path, expected in field.where.items():
        found = walk(document, path)
        if (found if isinstance(found, str) else orjson.dumps(found).decode()) != expected:
            return None
    return walk(document, field.path)


def walk(document: Any, path: str) -> Any:
    """Follow names and list indexes into a document; None where they lead nowhere."""
    for part in path.split("."):
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and part.isdecimal() and int(part) < len(document):
            document = document[int(part)]
        else:
            return None
    return document


class Complaint:
    """The end of standard error, and what of it may be said to a client."""

    def __init__(self, bytes_max: int, secrets: Mapping[str, str]) -> None:
        self._bytes_max = bytes_max
        self._secrets = secrets
        self._kept = bytearray()
        self._is_cut = False

    def feed(self, data: bytes) -> None:
        """Take bytes; only the end is kept."""
        self._is_cut = self._is_cut or len(self._kept) + len(data) > self._bytes_max
        self._kept += data[-self._bytes_max :] if self._bytes_max else b""
        # Cut now and then, not each time: a program may write byte by byte.
        if len(self._kept) > 2 * self._bytes_max:
            del self._kept[: -self._bytes_max]

    def text(self) -> str:
        """Return the last lines, cleaned and bounded; "" when there are none."""
        kept = bytes(self._kept[-self._bytes_max :]) if self._bytes_max else b""
        if self._is_cut:
            # The end of a secret whose beginning is cut off would not be known as one.
            _, line_end, rest = kept.partition(b"\n")
            longest = max((len(value.encode("utf-8", "replace")) for value in self._secrets.values()), default=0)
            kept = rest if line_end and len(kept) - len(rest) >= longest else kept[longest:]
        return clean(kept.decode("utf-8", "replace"), self._secrets)


def clean(text: str, secrets: Mapping[str, str]) -> str:
    """Return the last lines of a text without control characters and without the values of variables."""
    text = hide(ESCAPES.sub("", hide(text, secrets)), secrets)
    # A line that is written over and over by carriage returns counts as its last state.
    lines = [line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n")]
    lines = [shown for line in lines if (shown := CONTROLS.sub("\ufffd", line).strip())]
    said = "; ".join(lines[-COMPLAINT_LINES_MAX:])
    return said if len(said) <= COMPLAINT_CHARACTERS_MAX else f"...{said[3 - COMPLAINT_CHARACTERS_MAX :]}"


def hide(text: str, secrets: Mapping[str, str]) -> str:
    """Put the names of variables in the place of their values, the longest value first."""
    for name, value in sorted(secrets.items(), key=lambda secret: -len(secret[1])):
        if len(value) >= SECRET_CHARACTERS_MIN:
            text = text.replace(value, f"[{name}]")
    return text


def exit_words(code: int) -> str:
    """Say how a program exited: a code, or the negative number of a signal."""
    if code >= 0:
        return f"the program exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"the program was killed by {name}"
