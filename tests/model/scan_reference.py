"""The body scan again, obvious and slow: a recursive-descent parser over the whole body, then a walk over the tree.

It says what `iop_fast._core.scan` must say for every body: the same read-outs, or the same first fault at the same
byte. Nothing here is incremental and nothing is shared with the compiled scan but the published constants.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MESSAGE, IMAGE, AUDIO, VIDEO, FILE = 4, 1_000, 1_000, 8_000, 4_000
UNITS = 64
SCHEMA_PIECE = 64
MODEL_CHARACTERS, KEY_COUNT, KEY_BYTES, NAME_BYTES = 1_024, 256, 256, 24
TOOLS, IMAGES, AUDIOS, JSON_SCHEMA, REMOTE_MEDIA, FILES = 1, 2, 4, 8, 16, 32

LETTER, DIGIT, SPACE, TAB, MARK = 19, 70, 6, 60, 46
RANGES = [
    (0x0080, 0x02FF, 38), (0x0300, 0x07FF, 44), (0x0800, 0x0DFF, 50), (0x0E00, 0x0E7F, 47), (0x0E80, 0x1FFF, 96),
    (0x2000, 0x203F, 48), (0x2040, 0x24FF, 80), (0x2500, 0x25FF, 64), (0x2600, 0x2FFF, 96), (0x3000, 0x303F, 60),
    (0x3040, 0x30FF, 70), (0x3100, 0x9FFF, 74), (0xA000, 0xABFF, 160), (0xAC00, 0xD7FF, 78), (0xD800, 0xDFFF, 192),
    (0xE000, 0xF8FF, 192), (0xF900, 0xFDFF, 96), (0xFE00, 0xFE3F, 64), (0xFE40, 0xFFFF, 60), (0x10000, 0x1EFFF, 192),
    (0x1F000, 0x1FAFF, 128), (0x1FB00, 0x10FFFF, 192),
]  # fmt: skip


def weight(text: str) -> int:
    """Sum of the code points' weights, in 1/64 tokens."""
    return sum(map(_weight_of, text))


def _weight_of(character: str) -> int:
    if character.isascii():
        if character.isalpha():
            return LETTER
        if character.isdigit():
            return DIGIT
        return {" ": SPACE, "\t": TAB}.get(character, MARK)
    return next(units for first, last, units in RANGES if first <= ord(character) <= last)


class Refused(Exception):
    def __init__(self, code: str, offset: int, param: str | None = None) -> None:
        super().__init__(code, offset, param)
        self.code, self.offset, self.param = code, offset, param


@dataclass
class Text:
    value: str


@dataclass
class Scalar:
    value: bool | None = None
    is_number: bool = False


@dataclass
class Array:
    items: list[Node]


@dataclass
class Object:
    members: list[tuple[str, Node]]
    spans: dict[str, tuple[int, int]] = field(default_factory=dict)


Node = Text | Scalar | Array | Object


class Parser:
    """RFC 8259 with the scan's limits; raises Refused at the first byte that cannot be."""

    def __init__(self, body: bytes, max_depth: int) -> None:
        self.body, self.at, self.depth, self.max_depth = body, 0, 0, max_depth

    def peek(self) -> int:
        """The next byte, or -1 at the end."""
        return self.body[self.at] if self.at < len(self.body) else -1

    def fail(self, code: str = "invalid_json") -> Refused:
        return Refused("invalid_json" if self.at >= len(self.body) else code, self.at)

    def skip_space(self) -> int:
        while self.at < len(self.body) and self.body[self.at] in b" \t\n\r":
            self.at += 1
        return self.peek()

    def document(self) -> Object:
        first = self.skip_space()
        if first != ord("{"):
            is_other_value = first >= 0 and chr(first) in '["-0123456789tfn'
            raise self.fail("not_an_object" if is_other_value else "invalid_json")
        root = self.object(is_top=True)
        if self.skip_space() >= 0:
            raise self.fail()
        return root

    def value(self, key: str | None = None) -> Node:
        first = self.skip_space()
        start = self.at
        letter = chr(first) if first >= 0 else ""
        if letter and letter in '"{[-0123456789tfn':
            wrong = {"model": "{[-0123456789tfn", "stream": '"{[-0123456789', "messages": '"{-0123456789tfn'}
            if letter in wrong.get(key or "", ""):
                raise Refused("bad_field", start, key)
        if letter == '"':
            return Text(self.string("model" if key == "model" else "value"))
        if letter == "{":
            return self.object()
        if letter == "[":
            return self.array()
        if letter and letter in "tfn":
            return self.literal({"t": b"true", "f": b"false", "n": b"null"}[letter])
        if letter and letter in "-0123456789":
            return self.number()
        raise self.fail()

    def literal(self, word: bytes) -> Scalar:
        for wanted in word:
            if self.peek() != wanted:
                raise self.fail()
            self.at += 1
        return Scalar({b"true": True, b"false": False, b"null": None}[word])

    def digits(self) -> None:
        if not 48 <= self.peek() <= 57:
            raise self.fail()
        while 48 <= self.peek() <= 57:
            self.at += 1

    def number(self) -> Scalar:
        if self.peek() == ord("-"):
            self.at += 1
        if self.peek() == ord("0"):
            self.at += 1
            if 48 <= self.peek() <= 57:
                raise self.fail()
        else:
            self.digits()
        if self.peek() == ord("."):
            self.at += 1
            self.digits()
        if self.peek() in (ord("e"), ord("E")):
            self.at += 1
            if self.peek() in (ord("+"), ord("-")):
                self.at += 1
            self.digits()
        if self.at >= len(self.body):
            raise self.fail()
        return Scalar(is_number=True)

    def open(self) -> None:
        if self.depth == self.max_depth:
            raise self.fail("too_deep")
        self.depth += 1
        self.at += 1

    def close(self) -> None:
        self.depth -= 1
        self.at += 1

    def array(self) -> Array:
        items: list[Node] = []
        self.open()
        if self.skip_space() == ord("]"):
            self.close()
            return Array(items)
        while True:
            items.append(self.value())
            if self.skip_space() == ord("]"):
                self.close()
                return Array(items)
            if self.peek() != ord(","):
                raise self.fail()
            self.at += 1

    def object(self, is_top: bool = False) -> Object:
        found = Object([])
        self.open()
        if self.skip_space() == ord("}"):
            self.close()
            return found
        while True:
            if self.skip_space() != ord('"'):
                raise self.fail()
            key = self.top_key(found) if is_top else self.string("key")
            if self.skip_space() != ord(":"):
                raise self.fail()
            self.at += 1
            self.skip_space()
            start = self.at
            value = self.value(key if is_top else None)
            found.members.append((key, value))
            found.spans[key] = (start, self.at)
            if self.skip_space() == ord("}"):
                self.close()
                return found
            if self.peek() != ord(","):
                raise self.fail()
            self.at += 1

    def top_key(self, found: Object) -> str:
        start = self.at
        if len(found.members) == KEY_COUNT:
            raise Refused("too_many_keys", start)
        key = self.string("top")
        shown = key.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        if key in found.spans:
            raise Refused("duplicate_key", start, shown)
        folded = "".join(c.lower() if c.isascii() else {"\u017f": "s", "\u212a": "k"}.get(c, c) for c in key)
        if folded != key and folded in KNOWN:
            raise Refused("bad_field", start, shown)
        return key

    def string(self, kind: str) -> str:
        """Decode a string; `kind` is model, top (key), key or value, and sets the limit."""
        start = self.at
        units: list[str] = []
        size = 0
        high = ""
        is_lone = False

        def add(character: str) -> None:
            nonlocal size
            units.append(character)
            size += len(character.encode("utf-8", "surrogatepass"))
            if kind == "model" and len(units) > MODEL_CHARACTERS:
                raise Refused("bad_field", start, "model")
            if kind == "top" and size > KEY_BYTES:
                raise Refused("key_too_long", start)

        def drop_high() -> None:
            nonlocal high, is_lone
            if high:
                lone, high, is_lone = high, "", True
                add(lone)

        self.at += 1
        while True:
            byte = self.peek()
            if byte < 0:
                raise self.fail()
            if byte != ord("\\"):
                drop_high()
                if byte == ord('"'):
                    self.at += 1
                    break
                add(self.character())
                continue
            self.at += 1
            if self.peek() != ord("u"):
                if self.peek() >= 0:
                    drop_high()
                add(self.short_escape())
                continue
            unit = self.hex_escape()
            if high and 0xDC00 <= unit <= 0xDFFF:
                pair, high = 0x10000 + ((ord(high) - 0xD800) << 10) + (unit - 0xDC00), ""
                add(chr(pair))
                continue
            drop_high()
            if 0xD800 <= unit <= 0xDBFF:
                high = chr(unit)
            else:
                is_lone = is_lone or 0xDC00 <= unit <= 0xDFFF
                add(chr(unit))
        if kind == "model" and is_lone:
            raise Refused("bad_field", start, "model")
        return "".join(units)

    def character(self) -> str:
        """One character as UTF-8; the fault is the first byte that no well-formed sequence has there."""
        first = self.peek()
        if first < 0x20:
            raise self.fail()
        start = self.at
        self.at += 1
        for low, high in following(first):
            if self.at >= len(self.body) or not low <= self.peek() <= high:
                raise self.fail("invalid_utf8")
            self.at += 1
        try:
            return self.body[start : self.at].decode()
        except UnicodeDecodeError:
            raise Refused("invalid_utf8", start) from None

    def short_escape(self) -> str:
        table = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
        letter = chr(self.peek()) if self.peek() >= 0 else ""
        if letter not in table:
            raise self.fail()
        self.at += 1
        return table[letter]

    def hex_escape(self) -> int:
        self.at += 1
        unit = 0
        for _ in range(4):
            digit = chr(self.peek()) if self.peek() >= 0 else ""
            if not digit or digit not in "0123456789abcdefABCDEF":
                raise self.fail()
            unit = unit * 16 + int(digit, 16)
            self.at += 1
        return unit


def following(first: int) -> list[tuple[int, int]]:
    """Bounds of the bytes that follow a first byte in well-formed UTF-8 (Unicode table 3-7); none for a wrong one."""
    tail = (0x80, 0xBF)
    second = {0xE0: (0xA0, 0xBF), 0xED: (0x80, 0x9F), 0xF0: (0x90, 0xBF), 0xF4: (0x80, 0x8F)}.get(first, tail)
    if 0xC2 <= first <= 0xDF:
        return [second]
    if 0xE0 <= first <= 0xEF:
        return [second, tail]
    if 0xF0 <= first <= 0xF4:
        return [second, tail, tail]
    return []


# ---- meaning ---------------------------------------------------------------------------------------------------------

TEXT_FIELDS = {"prompt", "input", "system", "instructions", "suffix", "query", "documents"}
TOOL_FIELDS = {"tools", "functions"}
FORMAT_FIELDS = {"response_format", "output_format"}
FORMAT_HOLDERS = {"text", "output_config"}
LIMITS = {"max_tokens", "max_completion_tokens", "max_output_tokens"}
KNOWN = {"model", "stream", "messages"} | TEXT_FIELDS | TOOL_FIELDS | FORMAT_FIELDS | FORMAT_HOLDERS | LIMITS

LABELS = {
    "role", "id", "status", "detail", "call_id", "file_id", "tool_call_id", "tool_use_id", "media_type", "file_data",
    "encrypted_content", "signature", "result", "file_url",
}  # fmt: skip
MEDIA_KEYS = {
    "image_url": "image", "image": "image", "image_embeds": "image", "input_audio": "audio", "audio_url": "audio",
    "video_url": "video", "video": "video", "file": "file",
}  # fmt: skip
MEDIA_TYPES = {
    "image_url": "image", "input_image": "image", "image": "image", "image_generation_call": "image",
    "image_embeds": "image", "input_audio": "audio", "audio_url": "audio", "audio": "audio", "video_url": "video",
    "video": "video", "input_video": "video", "file": "file", "input_file": "file", "document": "file",
}  # fmt: skip


class Meaning:
    """What a parsed body asks for: features, and tokens in 1/64."""

    def __init__(self, root: Object) -> None:
        self.features = 0
        self.units = 0
        for key, value in root.members:
            self.field(key, value)

    def field(self, key: str, value: Node) -> None:
        if key == "messages" and isinstance(value, Array):
            for message in value.items:
                self.message(message)
        elif key in TEXT_FIELDS:
            if isinstance(value, Array):
                self.texts(value)
            else:
                self.content(value)
        elif key in TOOL_FIELDS:
            self.tools(value)
        elif key in FORMAT_FIELDS:
            self.response_format(value)
        elif key in FORMAT_HOLDERS and isinstance(value, Object):
            for name, held in value.members:
                if name == "format":
                    self.response_format(held)

    def message(self, item: Node) -> None:
        if isinstance(item, Array):
            self.texts(item)
        else:
            self.units += MESSAGE * UNITS if isinstance(item, Object) else 0
            self.content(item)

    def texts(self, array: Array) -> None:
        for item in array.items:
            self.units += UNITS if isinstance(item, Scalar) and item.is_number else 0
            self.message(item)

    def content(self, value: Node) -> None:
        if isinstance(value, Text):
            self.units += weight(value.value)
        elif isinstance(value, Array):
            for item in value.items:
                self.content(item)
        elif isinstance(value, Object):
            self.part(value)

    def part(self, value: Object) -> None:
        kinds: set[str] = set()
        for key, held in value.members:
            if isinstance(held, Scalar):
                continue
            if key in MEDIA_KEYS:
                kinds.add(MEDIA_KEYS[key])
                self.inside_media(held)
            elif isinstance(held, Text):
                if key == "type":
                    kinds.add(MEDIA_TYPES.get(held.value, ""))
                elif key not in LABELS:
                    self.content(held)
            elif key == "source":
                kinds.add("text_source" if self.source(held) else "")
            elif key in ("arguments", "input"):
                self.schema(held)
            else:
                self.content(held)
        self.media(kinds)

    def media(self, kinds: set[str]) -> None:
        if "text_source" in kinds:
            kinds.discard("file")
        costs = {"image": IMAGE, "audio": AUDIO, "video": VIDEO, "file": FILE}
        self.units += sum(costs.get(kind, 0) for kind in kinds) * UNITS
        if kinds & {"image", "video"}:
            self.features |= IMAGES
        if "audio" in kinds:
            self.features |= AUDIOS
        if kinds & {"video", "file"}:
            self.features |= FILES

    def inside_media(self, value: Node) -> None:
        """Look for a URL that leads out of the request, at any depth."""
        if isinstance(value, Text):
            if value.value.lower().startswith(("http://", "https://")):
                self.features |= REMOTE_MEDIA
        elif isinstance(value, Array | Object):
            for held in value.items if isinstance(value, Array) else [held for _, held in value.members]:
                self.inside_media(held)

    def source(self, value: Node) -> bool:
        """Count a media source that is text after all; tell whether it was."""
        is_text = False
        held = 0
        for key, inner in value.members if isinstance(value, Object) else []:
            if key == "type" and isinstance(inner, Text):
                is_text = is_text or inner.value == "text"
            elif key == "data" and isinstance(inner, Text):
                held += weight(inner.value)
            elif key == "content" and isinstance(inner, Array | Object):
                is_text = True
                self.content(inner)
            elif isinstance(inner, Array | Object):
                self.inside_media(inner)
        for inner in value.items if isinstance(value, Array) else []:
            if isinstance(inner, Array | Object):
                self.inside_media(inner)
        self.units += held if is_text else 0
        return is_text

    def tools(self, value: Node) -> None:
        if isinstance(value, Text):
            self.units += weight(value.value)
        elif isinstance(value, Array | Object):
            if value.items if isinstance(value, Array) else value.members:
                self.features |= TOOLS
            self.schema(value)

    def schema(self, value: Array | Object) -> None:
        """Count what is inside a schema: every key, value and bracket is a piece."""
        pieces: list[Node] = []
        if isinstance(value, Array):
            pieces += value.items
        else:
            for key, inner in value.members:
                pieces += [Text(key), inner]
        for piece in pieces:
            self.units += SCHEMA_PIECE
            if isinstance(piece, Text):
                self.units += weight(piece.value)
            elif isinstance(piece, Array | Object):
                self.schema(piece)

    def response_format(self, value: Node) -> None:
        for key, inner in value.members if isinstance(value, Object) else []:
            if key == "type" and inner == Text("json_schema"):
                self.features |= JSON_SCHEMA


INPUTS = {"messages", "prompt", "input", "system", "instructions", "suffix", "query", "documents"}


def count_values(node: Node) -> int:
    """A value and all that it holds."""
    if isinstance(node, Array):
        return 1 + sum(map(count_values, node.items))
    if isinstance(node, Object):
        return 1 + sum(count_values(value) for _, value in node.members)
    return 1


@dataclass
class Result:
    model: str | None
    model_span: tuple[int, int]
    stream: bool
    features: int
    estimated_tokens: int
    value_count: int
    input_value_count: int
    top_level_keys: list[str]
    insert_at: int
    spans: list[tuple[int, int]]


def scan(body: bytes, max_depth: int = 128) -> Result:
    """Read a body, or raise Refused."""
    root = Parser(body, max_depth).document()
    values = dict(root.members)
    model = values.get("model")
    meaning = Meaning(root)
    return Result(
        model=model.value if isinstance(model, Text) else None,
        model_span=root.spans.get("model", (0, 0)),
        stream=values.get("stream") == Scalar(True),
        features=meaning.features,
        estimated_tokens=-(-meaning.units // UNITS),
        value_count=sum(count_values(value) for _, value in root.members),
        input_value_count=sum(count_values(value) for key, value in root.members if key in INPUTS),
        top_level_keys=[key.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for key, _ in root.members],
        insert_at=body.index(b"{") + 1,
        spans=[root.spans[key] for key, _ in root.members],
    )
