"""The scan of multipart forms again, obvious and slow: a walk over the whole body by `find` and regular expressions.

It says what `iop_fast._core.multipart` must say for every body: the same read-outs, or the same first fault at the same
byte. Nothing here is incremental and nothing is shared with the compiled scan.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote_to_bytes

HEAD, VALUE, PARTS, CHARACTERS, AUDIO = 4096, 4096, 256, 1024, 1000

TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
LINE = re.compile(rb"(%s):[ \t]*(.*?)[ \t]*" % TOKEN, re.DOTALL)
PARAMETER = re.compile(rb"[ \t]*(%s)=(?:(%s)|\"([^\"\\;]*)\")[ \t]*" % (TOKEN, TOKEN), re.DOTALL)
NAME = re.compile(rb"[A-Za-z0-9_.:\[\]-]{1,64}")
FLAGS = {b"true": True, b"1": True, b"false": False, b"0": False, b"": False}


class Refused(Exception):
    def __init__(self, code: str, offset: int, param: str | None = None) -> None:
        super().__init__(code, offset, param)
        self.code, self.offset, self.param = code, offset, param


@dataclass
class Form:
    model: str
    model_span: tuple[int, int]
    stream: bool
    estimated_tokens: int


@dataclass
class Part:
    name: bytes
    kind: str
    declared: int | None


def scan(body: bytes, boundary: bytes) -> Form:
    """Read a whole form; raises Refused."""
    return Reader(body, b"--" + boundary).read()


class Reader:
    def __init__(self, body: bytes, needle: bytes) -> None:
        self.body, self.needle = body, needle
        self.found: dict[str, tuple[bytes, int, int]] = {}
        self.parts = self.files = self.prompt_bytes = 0

    def read(self) -> Form:
        at = self.opening()
        while not self.body.startswith(b"--", at):
            at = self.part(at)
        self.nothing_behind(at + 2)
        if "model" not in self.found:
            raise Refused("missing_field", len(self.body), "model")
        value, start, end = self.found["model"]
        stream = self.found.get("stream", (b"", 0, 0))[0]
        tokens = AUDIO * self.files + -(-self.prompt_bytes // 4)
        return Form(value.decode(), (start, end), FLAGS[stream.lower()], tokens)

    def expect(self, at: int, wanted: bytes, code: str) -> None:
        """Refuse the first byte that is not the wanted one, or the end of the body."""
        for offset, byte in enumerate(wanted, at):
            if offset == len(self.body):
                raise Refused("invalid_form", offset)
            if self.body[offset] != byte:
                raise Refused(code, offset)

    def opening(self) -> int:
        lead = b"\r\n" if self.body.startswith(b"\r") else b""
        self.expect(0, lead + self.needle, "invalid_form")
        return len(lead) + len(self.needle)

    def nothing_behind(self, at: int) -> None:
        rest = self.body[at:]
        if rest in (b"", b"\r\n"):
            return
        if rest == b"\r":
            raise Refused("invalid_form", len(self.body))
        same = next((n for n, (a, b) in enumerate(zip(rest, b"\r\n", strict=False)) if a != b), 2)
        raise Refused("invalid_form", at + same)

    def part(self, at: int) -> int:
        """Read from behind one boundary to behind the next one."""
        if self.body.startswith(b"-", at):
            self.expect(at, b"--", "invalid_form")
        self.expect(at, b"\r\n", "invalid_form")
        self.parts += 1
        if self.parts > PARTS:
            raise Refused("too_many_parts", at + 1)
        head_at = at + 2
        head, data_at = self.head(head_at)
        part = self.meaning(head, head_at)
        boundary_at = self.next_boundary(data_at)
        self.take(part, head_at, data_at, boundary_at - 2)
        return boundary_at + len(self.needle)

    def head(self, at: int) -> tuple[bytes, int]:
        """Cut out a head, without its empty line; return it and where the data begins."""
        end = at - 2 if self.body.startswith(b"\r\n", at) else self.body.find(b"\r\n\r\n", at)
        is_whole = end >= at - 2 and end != -1
        before = 0
        for offset, byte in enumerate(self.body[at : end + 3] if is_whole else self.body[at:], at):
            if (byte == 10) != (before == 13) or byte == 127 or (byte < 32 and byte not in b"\t\r\n"):
                raise Refused("bad_part", offset)
            if offset - at == HEAD:
                raise Refused("bad_part", at)
            before = byte
        if not is_whole:
            raise Refused("invalid_form", len(self.body))
        return self.body[at : max(end, at)], end + 4

    def meaning(self, head: bytes, at: int) -> Part:
        fields: dict[bytes, bytes] = {}
        for line in head.split(b"\r\n") if head else []:
            match = LINE.fullmatch(line)
            if match is None or match[1].lower() in fields:
                raise Refused("bad_part", at)
            fields[match[1].lower()] = match[2]
        disposition = parameters(fields.get(b"content-disposition", b""))
        part = None if disposition is None else part_of(*disposition)
        media = fields.get(b"content-type")
        length = fields.get(b"content-length", b"0")
        is_good = (
            part is not None
            and fields.get(b"content-transfer-encoding", b"binary").lower() in (b"7bit", b"8bit", b"binary")
            and b"content-encoding" not in fields
            and not (media or b"").lower().startswith(b"multipart/")
            and re.fullmatch(rb"[0-9]{1,18}", length) is not None
            and (part.kind not in ("model", "stream") or media is None or is_plain(media))
        )
        if not is_good or part is None:
            raise Refused("bad_part", at)
        part.declared = int(length) if b"content-length" in fields else None
        return part

    def next_boundary(self, data_at: int) -> int:
        at = data_at - 1
        while (at := self.body.find(self.needle, at + 1)) >= 0:
            before = self.body[at - 2 : at]
            if before == b"\r\n":
                if at - 2 < data_at:
                    raise Refused("invalid_form", at)
                return at
            if before[1:] in (b"\r", b"\n"):
                raise Refused("invalid_form", at)
        raise Refused("invalid_form", len(self.body))

    def take(self, part: Part, head_at: int, start: int, end: int) -> None:
        if part.declared is not None and part.declared != end - start:
            raise Refused("bad_part", head_at)
        if part.kind == "file":
            self.files += 1
        elif part.kind == "prompt":
            self.prompt_bytes += end - start
        elif part.kind in ("model", "stream"):
            value = self.body[start:end]
            if part.kind in self.found:
                raise Refused("duplicate_field", head_at, part.kind)
            if len(value) > VALUE or not (is_model(value) if part.kind == "model" else value.lower() in FLAGS):
                raise Refused("bad_field", start, part.kind)
            self.found[part.kind] = (value, start, end)


def parameters(value: bytes) -> tuple[bytes, list[tuple[bytes, bytes]]] | None:
    """Return the word and the parameters of a header's value; None for a malformed one."""
    word, semicolon, rest = value.partition(b";")
    pairs: list[tuple[bytes, bytes]] = []
    while semicolon:
        match = PARAMETER.match(rest)
        if match is None or rest[match.end() : match.end() + 1] not in (b"", b";"):
            return None
        pairs.append((match[1].lower(), match[2] if match[2] is not None else match[3]))
        semicolon, rest = rest[match.end() : match.end() + 1], rest[match.end() + 1 :]
    return word.strip(b" \t").lower(), pairs


def part_of(word: bytes, pairs: list[tuple[bytes, bytes]]) -> Part | None:
    given = dict(pairs)
    name = given.get(b"name", b"")
    if word != b"form-data" or len(given) < len(pairs) or set(given) - {b"name", b"filename", b"filename*"}:
        return None
    if NAME.fullmatch(name) is None:
        return None
    if b"filename*" in given:
        match = re.fullmatch(rb"(?i:utf-8)''(.*)", given[b"filename*"], re.DOTALL)
        if match is None or unquote_to_bytes(match[1]) != given.get(b"filename"):
            return None
    is_file = b"filename" in given
    stem = re.split(rb"[\[.]", name.lower())[0]
    if stem == b"_charset_" or (stem in (b"model", b"stream") and (name != stem or is_file)):
        return None
    if stem in (b"model", b"stream"):
        return Part(name, stem.decode(), None)
    return Part(name, "file" if is_file else "prompt" if name == b"prompt" else "other", None)


def is_plain(media: bytes) -> bool:
    found = parameters(media)
    if found is None or found[0] != b"text/plain":
        return False
    charsets = [value.lower() for name, value in found[1] if name == b"charset"]
    return len(found[1]) == len(charsets) <= 1 and set(charsets) <= {b"utf-8", b"us-ascii"}


def is_model(value: bytes) -> bool:
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return False
    return len(text) <= CHARACTERS and not re.search(r"[\x00-\x1f\x7f]", text)
