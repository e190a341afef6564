"""Configuration files for tests, and what the loader says about them."""

from __future__ import annotations

from iop_fast.config.loader import Loaded, load_edge_text, load_node_text
from iop_fast.config.schema import EdgeConfig
from iop_fast.errors import ConfigError, Finding

HASH_A = "a" * 64
HASH_B = "b" * 64

FLEET = f"""\
models:
  - id: chat
    providers: {{p1: served-1, p2: served-2}}
nodes:
  - id: n1
    token_hash_sha256: {HASH_A}
    providers:
      - id: p1
        type: vllm
        endpoint: http://127.0.0.1:8000
        models: [served-1]
        capacity: 4
  - id: n2
    token_hash_sha256: {HASH_B}
    providers:
      - id: p2
        type: ollama
        endpoint: http://127.0.0.1:11434
        models: [served-2]
        capacity: 1
"""

NODE = "id: n1\nedge: {address: '127.0.0.1:8081'}\ntoken_env: TOKEN\n"


def accepted(text: str) -> Loaded[EdgeConfig]:
    """Load an Edge's file that must be accepted."""
    return load_edge_text(text, "f")


def provider(extra: str, *, base: str = "type: vllm, endpoint: 'http://h:1'", capacity: str = "4") -> str:
    """An Edge's file with one provider, which has `extra` keys in flow style."""
    tail = f", {extra}" if extra else ""
    own = f"{base}, " if base else ""
    size = f", capacity: {capacity}" if capacity else ""
    return (
        "models: [{id: m, providers: {p: s}}]\n"
        f"nodes: [{{id: n, token_hash_sha256: {HASH_A}, providers: [\n"
        f"{{id: p, {own}models: [s]{size}{tail}}}\n"
        "]}]\n"
    )


def findings(text: str | bytes) -> list[Finding]:
    """Everything that the loader says about an Edge's file, accepted or not."""
    try:
        return list(load_edge_text(text, "f").warnings)
    except ConfigError as error:
        return error.findings


def node_findings(text: str) -> list[Finding]:
    """Everything that the loader says about a Node's file, accepted or not."""
    try:
        return list(load_node_text(text, "f").warnings)
    except ConfigError as error:
        return error.findings


def lines(found: list[Finding], severity: str = "error") -> list[str]:
    """Findings of one severity as "path: message"."""
    return [f"{one.path}: {one.message}" for one in found if one.severity == severity]


def errors(text: str | bytes) -> list[str]:
    """The errors in an Edge's file as "path: message"."""
    return lines(findings(text))


def warnings(text: str) -> list[str]:
    """The warnings about an Edge's file as "path: message"."""
    return lines(findings(text), "warning")


def places(text: str | bytes) -> list[tuple[int, int]]:
    """Line and column of each error in an Edge's file."""
    return [(one.line, one.column) for one in findings(text) if one.severity == "error"]
