"""Read a configuration file: every finding of one run, or an immutable configuration.

Four passes over one tree of nodes, whose findings are collected and not raised one by one: the text itself (`tree`),
the types and bounds of single keys (`schema`), the rules between keys (`rules`, `node_rules`), which run on the tree so
that a wrong value elsewhere does not hide them. A file with an error gives no configuration at all.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pydantic import ValidationError

from iop_fast.config.kinds import Kind, guess_kind
from iop_fast.config.legacy import promote
from iop_fast.config.node_rules import check_node
from iop_fast.config.rules import check_edge
from iop_fast.config.schema import EdgeConfig, NodeConfig
from iop_fast.config.schema.fields import Section
from iop_fast.config.tree import FILE_BYTES_MAX, MapNode, Remark, read_tree
from iop_fast.config.verdict import remarks_of, to_findings
from iop_fast.config.view import to_plain
from iop_fast.errors import ConfigError, Finding

C = TypeVar("C", bound=Section)
Rules = Callable[[MapNode], list[Remark]]


@dataclass(frozen=True, slots=True)
class Loaded(Generic[C]):
    """An accepted file. `sha256` is that of its bytes; `warnings` are sorted by place."""

    config: C
    sha256: str
    warnings: tuple[Finding, ...]
    path: str


def load_edge(path: str | os.PathLike[str]) -> Loaded[EdgeConfig]:
    """Read an Edge's file; raise ConfigError with every finding."""
    return load_edge_text(read_file(path), os.fspath(path))


def load_edge_text(text: str | bytes, name: str) -> Loaded[EdgeConfig]:
    """Read the content of an Edge's file that findings call `name`; raise ConfigError with every finding."""
    return _load_edge(Source.of(text, name))


def load_node(path: str | os.PathLike[str]) -> Loaded[NodeConfig]:
    """Read a Node's file; raise ConfigError with every finding."""
    return load_node_text(read_file(path), os.fspath(path))


def load_node_text(text: str | bytes, name: str) -> Loaded[NodeConfig]:
    """Read the content of a Node's file that findings call `name`; raise ConfigError with every finding."""
    return _load_node(Source.of(text, name))


@dataclass(slots=True)
class Source:
    """The content of a file, read into a tree. For callers that need both the tree and what it loads to."""

    name: str
    sha256: str
    root: MapNode | None
    remarks: list[Remark]

    @classmethod
    def of(cls, text: str | bytes, name: str) -> Source:
        """Read a text that findings call `name`."""
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        root, remarks = read_tree(raw)
        return cls(name, hashlib.sha256(raw).hexdigest(), root, remarks)

    @property
    def kind(self) -> Kind:
        """Which file it looks like; an Edge's where nothing can be told."""
        return "edge" if self.root is None else guess_kind(self.root)

    def load(self, kind: Kind) -> Loaded[EdgeConfig] | Loaded[NodeConfig]:
        """Load it as one kind of file; raise ConfigError with every finding."""
        return _load_edge(self) if kind == "edge" else _load_node(self)


def _load_edge(source: Source) -> Loaded[EdgeConfig]:
    return _load(source, EdgeConfig, check_edge, promote)


def _load_node(source: Source) -> Loaded[NodeConfig]:
    return _load(source, NodeConfig, check_node, None)


def _load(source: Source, model: type[C], rules: Rules, finish: Callable[[C, MapNode], C] | None) -> Loaded[C]:
    name, root, remarks = source.name, source.root, list(source.remarks)
    if root is None:
        raise ConfigError(to_findings(name, model, MapNode(1, 1), remarks))
    config: C | None = None
    try:
        config = model.model_validate(to_plain(root))
    except ValidationError as error:
        remarks += remarks_of(model, root, error)
    remarks += rules(root)
    findings = to_findings(name, model, root, remarks)
    if config is None or any(finding.severity == "error" for finding in findings):
        raise ConfigError(findings)
    if finish is not None:
        config = finish(config, root)
    return Loaded(config, source.sha256, tuple(findings), name)


def read_file(path: str | os.PathLike[str]) -> bytes:
    """Read a whole regular file, one byte more than may be at most; raise ConfigError when it cannot be read."""
    name = os.fspath(path)
    try:
        # Opened without blocking: a pipe in the file's place must not hold the caller for ever.
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:
        raise _unreadable(name, error) from None
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise ConfigError([Finding(name, 1, 1, "error", "", "is not a regular file, expected a YAML file")])
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(name, error) from None
    finally:
        os.close(descriptor)


def _unreadable(name: str, error: OSError | ValueError) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return ConfigError([Finding(name, 1, 1, "error", "", f"cannot be read: {reason.lower()}")])
