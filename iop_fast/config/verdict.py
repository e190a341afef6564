"""Pydantic's errors and the rules' remarks as findings for people: where it stands, what is wrong, what was expected.

No finding repeats a value that may be a secret: those of `secret` and `quiet` keys, those under unknown keys, and what
stands where a section is due.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from itertools import islice
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from iop_fast.config.places import find, position, render
from iop_fast.config.scalars import WHOLE, odd_kind
from iop_fast.config.schema.fields import PATTERN_WORDS, child, field_at, is_map, is_section, mark, unwrap
from iop_fast.config.tree import Known, Location, MapNode, Node, Remark, Scalar, kind_of
from iop_fast.errors import Finding

# How much of a hopeless file is written out. Looking for a near name is slow, so it is done for the first few only.
FINDINGS_MAX = 1_000
HINTS_MAX = 100
NAMES_MAX = 1_000
SHOWN_MAX = 40

# Keys that people write when they mean to put a secret into the file.
SECRET_KEYS = {
    "token": "a raw token never stands in the file, expected token_hash_sha256 (Edge) or token_env, token_file (Node)",
    "token_hash": "expected token_hash_sha256",
    "api_key": "a key never stands in the file, expected api_key_env with the name of a variable on the Node",
    "raw_token": "a raw token never stands in the file, expected token_hash_sha256",
    "password": "a password never stands in the file",
    "bearer_token": "a raw token never stands in the file, expected token_hash_sha256",
}
WANTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
}
CONTAINERS = frozenset({"tuple_type", "list_type", "dict_type", "model_type", "model_attributes_type"})


def to_findings(file: str, model: Any, root: Node, remarks: Iterable[Remark]) -> list[Finding]:
    """Write remarks out as findings: sorted by place, each once, errors before warnings where there are too many."""
    ordered = sorted(remarks, key=lambda r: (r.line, r.column, r.severity, r.message))
    if len(ordered) > FINDINGS_MAX:
        ordered = sorted(ordered, key=lambda r: r.severity)[:FINDINGS_MAX]
        first, last = ordered[0], ordered[-1]
        message = f"more than {FINDINGS_MAX} findings, the others are not shown"
        # As bad as the worst of them: too many warnings do not refuse a file.
        ordered.append(Remark(last.line, last.column, (), message, first.severity))
    findings: dict[Finding, None] = {}
    hints_left = HINTS_MAX
    for remark in ordered:
        message = remark.message
        if remark.known is not None:
            message += _hint_of(remark.known, hints_left > 0)
            hints_left -= 1
        path = render(model, root, remark.location)
        findings[Finding(file, remark.line, remark.column, remark.severity, path, message)] = None
    return sorted(findings)


def _hint_of(known: Known, is_searched: bool) -> str:
    """Name the nearest known name, or the first few."""
    names = list(islice(known.names, NAMES_MAX))
    near = difflib.get_close_matches(known.name[:128], names, n=1, cutoff=0.6) if is_searched else []
    if near:
        return f", did you mean {near[0]}?"
    if not names:
        return ", there are none"
    more = " ..." if len(names) > SHOWN_MAX else ""
    return f", expected one of {', '.join(name[:128] for name in names[:SHOWN_MAX])}{more}"


def remarks_of(model: Any, root: MapNode, error: ValidationError) -> list[Remark]:
    """Turn what pydantic found into remarks: everything, or one more than is written out of a hopeless file."""
    found = error.errors(include_url=False, include_input=False)
    remarks = [_remark(model, root, details) for details in found[: FINDINGS_MAX + 1]]
    return [remark for remark in remarks if remark is not None]


def _remark(model: Any, root: MapNode, details: ErrorDetails) -> Remark | None:
    """Turn one of pydantic's errors into a remark; None for one that repeats another."""
    location: Location = tuple(details["loc"])
    is_key = location[-1:] == ("[key]",) and is_map(_annotation_at(model, location[:-2]))
    if is_key:
        location = location[:-1]
    kind = details["type"]
    if kind == "extra_forbidden":
        line, column = position(root, location, at_key=True)
        return _unknown_key(model, line, column, location)
    if kind == "missing":
        line, column = position(root, location[:-1])
        return Remark(line, column, location, "is missing, " + _expected_of(model, location))
    line, column = position(root, location, at_key=is_key)
    node, _ = find(root, location)
    if is_key:
        return Remark(line, column, location, f"the key {_reason(details)}")
    if kind == "too_short" and node is not None and node.weight > 1:
        return None  # it has entries, each of which was refused and is reported
    field = field_at(model, location)
    is_quiet = kind in CONTAINERS or (field is not None and bool(mark(field, "quiet")))
    if kind == "literal_error" and isinstance(node, Scalar) and not is_quiet:
        names = re.findall("'([^']*)'", details.get("ctx", {})["expected"])
        return Remark(line, column, location, f"{node.text[:60]!r} is unknown", known=Known(node.text, names))
    message = _message(details, node, is_quiet)
    if is_null(node) and _has_default(model, location):
        message += " (leave the key out for the default)"
    return Remark(line, column, location, message)


def _has_default(model: Any, location: Location) -> bool:
    """True for a key that may be left out."""
    field, _ = child(_annotation_at(model, location[:-1]), location[-1]) if location else (None, None)
    return field is not None and not field.is_required()


def _annotation_at(model: Any, location: Location) -> Any:
    annotation = model
    for part in location:
        _, annotation = child(annotation, part)
    return annotation


def _unknown_key(model: Any, line: int, column: int, location: Location) -> Remark:
    name = str(location[-1])
    if name in SECRET_KEYS:
        return Remark(line, column, location, f"unknown key: {SECRET_KEYS[name]}")
    section = unwrap(_annotation_at(model, location[:-1]))
    names = section.model_fields if is_section(section) else ()
    return Remark(line, column, location, "unknown key", known=Known(name, names))


def _expected_of(model: Any, location: Location) -> str:
    field = field_at(model, location)
    description = (field.description or "") if field is not None else ""
    return "expected: " + description[:1].lower() + description[1:].rstrip(".")


def _message(details: ErrorDetails, node: Node | None, is_quiet: bool) -> str:
    kind = details["type"]
    if kind in WANTED:
        return _wrong_type(kind, node, is_quiet)
    shown = ""
    if isinstance(node, Scalar) and not is_quiet:
        shown = f"{node.text[:60]!r}: "
    return shown + _reason(details)


def _wrong_type(kind: str, node: Node | None, is_quiet: bool) -> str:
    wanted = WANTED[kind]
    if node is None:
        return f"expected {wanted}"
    if not isinstance(node, Scalar):
        return f"expected {wanted}, got {kind_of(node)}"
    odd = odd_kind(node.text) if node.is_plain else None
    if is_null(node):
        return f"has no value, expected {wanted}"
    got = kind_of(node)
    if not is_quiet:
        got += f" {node.text[:60]!r}"
    return f"expected {wanted}, got {got}{_hint(kind, node, odd)}"


def is_null(node: Node | None) -> bool:
    """True for a plain value that stands for nothing."""
    return isinstance(node, Scalar) and node.is_plain and odd_kind(node.text) == "null"


def _hint(kind: str, node: Scalar, odd: str | None) -> str:
    if kind == "string_type" and odd is not None:
        return "; put it in quotes"
    if kind == "bool_type" and odd == "truth":
        return "; YAML readers disagree about it"
    if kind == "int_type" and not node.is_plain and WHOLE.fullmatch(node.text):
        return "; leave the quotes out"
    if kind in ("int_type", "float_type") and odd == "number":
        return "; write decimal digits without leading zero, underscore or exponent"
    return ""


def _number(value: float) -> str:
    """Write a bound as a file would: 10 for 10.0."""
    return str(int(value) if value == int(value) else value)


def _reason(details: ErrorDetails) -> str:
    """Say what was expected, from the limits that pydantic names."""
    kind, context = details["type"], details.get("ctx", {})
    match kind:
        case "greater_than_equal":
            return f"expected at least {_number(context['ge'])}"
        case "less_than_equal":
            return f"expected at most {_number(context['le'])}"
        case "string_pattern_mismatch":
            return PATTERN_WORDS.get(context["pattern"], f"expected text of the form {context['pattern']}")
        case "too_short":
            return "is empty, expected at least one entry"
        case "value_error":
            return str(context["error"])
    return details["msg"][:1].lower() + details["msg"][1:]
