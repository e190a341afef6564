"""The text of a configuration file as a tree of nodes that know where they stand.

The tree is built from libyaml's events, without recursion, so no input can exhaust the stack. What YAML allows and a
configuration has no use for is refused here, each with its place: tags, several documents, keys given twice (also by a
merge), keys that are not texts, and sizes beyond the limits below. An alias is the anchored node itself, met again:
what it costs to walk it counts each time, so that a few lines cannot stand for millions of values.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, field

import yaml

from iop_fast.config.scalars import odd_kind

FILE_BYTES_MAX = 16 * 1024 * 1024
NODES_MAX = 500_000
DEPTH_MAX = 64
TREE_FINDINGS_MAX = 1_000

# What YAML allows in a stream (YAML 1.1, section 5.1), negated.
UNPRINTABLE = re.compile("[^\x09\x0a\x0d\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

Location = tuple["str | int", ...]


@dataclass(slots=True, eq=False)
class Scalar:
    """A value without parts. Lines and columns count from 1."""

    line: int
    column: int
    text: str
    is_plain: bool
    weight: int = 1
    height: int = 1


@dataclass(slots=True, eq=False)
class ListNode:
    """A sequence."""

    line: int
    column: int
    items: list[Node] = field(default_factory=list)
    weight: int = 1
    height: int = 1


@dataclass(slots=True)
class Entry:
    """A key of a mapping with its place and what it holds. `is_merged` when it came by `<<`."""

    line: int
    column: int
    value: Node
    is_merged: bool = False


@dataclass(slots=True, eq=False)
class MapNode:
    """A mapping, in file order."""

    line: int
    column: int
    entries: dict[str, Entry] = field(default_factory=dict)
    weight: int = 1
    height: int = 1


Node = Scalar | ListNode | MapNode


@dataclass(frozen=True, slots=True)
class Known:
    """A name that is not among the known ones. Looking for the nearest is slow, so it is left for what is shown."""

    name: str
    names: Collection[str]


@dataclass(frozen=True, slots=True)
class Remark:
    """A finding before its path and file are written out."""

    line: int
    column: int
    location: Location
    message: str
    severity: str = "error"
    known: Known | None = None


class _Stop(Exception):
    """Reading on makes no sense; the remark is made already."""


@dataclass(slots=True)
class _Frame:
    """A collection whose end has not come. In a mapping `key` is the key whose value is due."""

    node: ListNode | MapNode
    location: Location
    anchor: str | None
    key: Scalar | None = None
    is_key_due: bool = True
    merges: list[tuple[Scalar, Node]] = field(default_factory=list)

    def next_part(self) -> str | int:
        if isinstance(self.node, ListNode):
            return len(self.node.items)
        return self.key.text if self.key is not None else "?"


def read_tree(data: bytes | str) -> tuple[MapNode | None, list[Remark]]:
    """Read a file's content: the tree (None when there is none to go on with) and what is wrong with it."""
    builder = _Builder()
    text = _decode(data, builder)
    if text is not None:
        builder.run(text)
    return builder.result(), builder.remarks


def _decode(data: bytes | str, builder: _Builder) -> str | None:
    raw = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    if len(raw) > FILE_BYTES_MAX:
        builder.remark(1, 1, (), f"the file is too long, expected at most {FILE_BYTES_MAX} bytes")
        return None
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        builder.remark(1, 1, (), "the file is UTF-16, expected UTF-8")
        return None
    try:
        text = raw.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        before = raw[: error.start].decode("utf-8")
        builder.remark(*place_of(before), (), f"byte 0x{raw[error.start]:02x} is not UTF-8")
        return None
    found = UNPRINTABLE.search(text)
    if found is not None:
        builder.remark(
            *place_of(text[: found.start()]), (), f"the character U+{ord(found[0]):04X} cannot stand in YAML"
        )
        return None
    return text


def place_of(before: str) -> tuple[int, int]:
    """Line and column of what follows a piece of text."""
    lines = re.split("\r\n|[\r\n\x85\u2028\u2029]", before)
    return len(lines), len(lines[-1]) + 1


class _Builder:
    """Takes events in order and makes the tree; every refusal is a remark."""

    def __init__(self) -> None:
        self.remarks: list[Remark] = []
        self.root: Node | None = None
        self.is_broken = False
        self.stack: list[_Frame] = []
        self.anchors: dict[str, Node] = {}
        self.open_anchors: set[str] = set()
        self.weight = 0
        self.documents = 0

    def remark(self, line: int, column: int, location: Location, message: str) -> None:
        self.remarks.append(Remark(line, column, location, message))
        if len(self.remarks) >= TREE_FINDINGS_MAX:
            self.is_broken = True
            raise _Stop

    def result(self) -> MapNode | None:
        """Return the root mapping; None, with a remark, for a file that holds none."""
        if self.is_broken or (self.root is None and self.remarks):
            return None
        root = self.root
        if root is None or (isinstance(root, Scalar) and root.is_plain and odd_kind(root.text) == "null"):
            self.remarks.append(Remark(1, 1, (), "the file is empty, expected a mapping"))
            return None
        if not isinstance(root, MapNode):
            self.remarks.append(Remark(root.line, root.column, (), f"expected a mapping, got {kind_of(root)}"))
            return None
        return root

    def run(self, text: str) -> None:
        try:
            for event in yaml.parse(text, Loader=yaml.CSafeLoader):
                self._take(event)
        except _Stop:
            self.is_broken = True
        except yaml.MarkedYAMLError as error:
            self.is_broken = True
            self._remark_syntax(error, text)
        except yaml.YAMLError as error:
            # Text that libyaml itself refuses without a mark; UNPRINTABLE is meant to leave nothing over.
            self.is_broken = True
            self.remarks.append(Remark(1, 1, (), f"cannot be read as YAML: {error}"))

    def _remark_syntax(self, error: yaml.MarkedYAMLError, text: str) -> None:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        message = error.problem or "is not YAML"
        if error.context:
            message = f"{message} {error.context}"
        if error.context_mark is not None and error.context_mark.line + 1 != line:
            message += f" that began in line {error.context_mark.line + 1}"
        lines = text.split("\n", line)
        here = lines[line - 1] if line <= len(lines) else ""
        if here[: column - 1].strip(" \t") == "" and "\t" in here[:column]:
            message = "a tab cannot indent YAML, expected spaces"
        self.remarks.append(Remark(line, column, self._location(), message))

    def _location(self) -> Location:
        if not self.stack:
            return ()
        frame = self.stack[-1]
        if isinstance(frame.node, MapNode) and frame.key is None:
            return frame.location
        return (*frame.location, frame.next_part())

    def _take(self, event: yaml.Event) -> None:
        mark = event.start_mark
        assert mark is not None, "libyaml marks every event"
        line, column = mark.line + 1, mark.column + 1
        if isinstance(event, yaml.DocumentStartEvent):
            self.documents += 1
            if self.documents > 1:
                self.remark(line, column, (), "a second document starts here, expected one configuration a file")
                raise _Stop
        elif isinstance(event, yaml.AliasEvent):
            self._take_alias(event.anchor or "", line, column)
        elif isinstance(event, yaml.ScalarEvent):
            self._refuse_tag(event.tag, line, column)
            is_plain = event.style is None or event.style == ""
            scalar = Scalar(line, column, event.value, is_plain)
            self._anchor(event.anchor, scalar)
            self._add(scalar, weight=1)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            self._refuse_tag(event.tag, line, column)
            self._open(event, line, column)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self._close()

    def _refuse_tag(self, tag: object, line: int, column: int) -> None:
        if tag is not None:
            self.remark(line, column, self._location(), f"a tag ({str(tag)[:60]}) has no meaning here")

    def _anchor(self, anchor: str | None, node: Node) -> None:
        if anchor is not None:
            self.anchors[anchor] = node

    def _take_alias(self, anchor: str, line: int, column: int) -> None:
        node = self.anchors.get(anchor)
        if node is None:
            what = "stands for itself" if anchor in self.open_anchors else "has no anchor before it"
            self.remark(line, column, self._location(), f"the alias *{anchor[:60]} {what}")
            raise _Stop
        self._add(node, weight=node.weight, place=(line, column))

    def _open(self, event: yaml.MappingStartEvent | yaml.SequenceStartEvent, line: int, column: int) -> None:
        is_map = isinstance(event, yaml.MappingStartEvent)
        node = MapNode(line, column) if is_map else ListNode(line, column)
        if len(self.stack) >= DEPTH_MAX:
            self.remark(line, column, self._location(), f"nested deeper than {DEPTH_MAX} levels")
            raise _Stop
        if event.anchor is not None:
            self.open_anchors.add(event.anchor)
            self.anchors.pop(event.anchor, None)
        self._count(1, line, column)
        self.stack.append(_Frame(node, self._location(), event.anchor))

    def _close(self) -> None:
        frame = self.stack.pop()
        node = frame.node
        if isinstance(node, MapNode):
            self._merge(frame, node)
        if frame.anchor is not None:
            self.open_anchors.discard(frame.anchor)
            self.anchors[frame.anchor] = node
        self._attach(node, (node.line, node.column))

    def _count(self, weight: int, line: int, column: int) -> None:
        self.weight += weight
        if self.weight > NODES_MAX:
            self.remark(line, column, self._location(), f"more than {NODES_MAX} values, those behind aliases included")
            raise _Stop

    def _add(self, node: Node, weight: int, place: tuple[int, int] | None = None) -> None:
        line, column = place or (node.line, node.column)
        self._count(weight, line, column)
        if len(self.stack) + node.height > DEPTH_MAX + 1:
            self.remark(line, column, self._location(), f"nested deeper than {DEPTH_MAX} levels")
            raise _Stop
        self._attach(node, (line, column))

    def _attach(self, node: Node, place: tuple[int, int]) -> None:
        """Put a finished node where it belongs: the root, a list's end, a mapping's key or the value of one."""
        if not self.stack:
            self.root = node
            return
        frame = self.stack[-1]
        parent = frame.node
        parent.weight += node.weight
        parent.height = max(parent.height, node.height + 1)
        if isinstance(parent, ListNode):
            parent.items.append(node)
        elif frame.is_key_due:
            frame.is_key_due = False
            frame.key = self._read_key(node, place)
        else:
            frame.is_key_due = True
            key, frame.key = frame.key, None
            if key is not None:
                self._set(frame, parent, key, node)

    def _read_key(self, node: Node, place: tuple[int, int]) -> Scalar | None:
        line, column = place
        if not isinstance(node, Scalar):
            self.remark(line, column, self.stack[-1].location, f"{kind_of(node)} cannot be a key, expected a name")
            return None
        kind = odd_kind(node.text) if node.is_plain else None
        if kind is not None and node.text != "<<":
            shown = node.text or "(nothing)"
            message = f"the key {shown} is no text to every YAML reader, expected it in quotes"
            self.remark(line, column, self.stack[-1].location, message)
            return None
        return Scalar(line, column, node.text, node.is_plain)

    def _set(self, frame: _Frame, parent: MapNode, key: Scalar, value: Node) -> None:
        if key.text == "<<" and key.is_plain:
            frame.merges.append((key, value))
            return
        first = parent.entries.get(key.text)
        if first is not None:
            location = (*frame.location, key.text)
            self.remark(key.line, key.column, location, f"given twice, first in line {first.line}")
            return
        parent.entries[key.text] = Entry(key.line, key.column, value)

    def _merge(self, frame: _Frame, node: MapNode) -> None:
        """Add what `<<` brings. A key that is there already is a duplicate like any other."""
        for key, value in frame.merges:
            sources = value.items if isinstance(value, ListNode) else [value]
            for source in sources:
                if not isinstance(source, MapNode):
                    message = f"{kind_of(source)} cannot be merged, expected a mapping or a list of mappings"
                    self.remark(key.line, key.column, frame.location, message)
                    continue
                self._merge_one(frame, node, key, source)

    def _merge_one(self, frame: _Frame, node: MapNode, key: Scalar, source: MapNode) -> None:
        for name, entry in source.entries.items():
            first = node.entries.get(name)
            if first is not None:
                message = f"given twice, in line {first.line} and by the merge in line {key.line}"
                self.remark(first.line, first.column, (*frame.location, name), message)
                continue
            node.entries[name] = Entry(entry.line, entry.column, entry.value, is_merged=True)


def kind_of(node: Node) -> str:
    """Say what a node is, without repeating its value."""
    if isinstance(node, MapNode):
        return "a mapping"
    if isinstance(node, ListNode):
        return "a list"
    if not node.is_plain:
        return "a text"
    return {"null": "nothing", "truth": "a truth value", "number": "a number", "date": "a date", "sign": "a sign"}.get(
        odd_kind(node.text) or "", "a text"
    )
