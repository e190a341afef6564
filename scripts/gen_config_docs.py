"""Write configs/REFERENCE.md from the schema; with --check only say whether it is fresh (exit code 1 if not)."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from inspect import cleandoc
from typing import Annotated, Any, get_args, get_origin

from pydantic import AfterValidator
from pydantic.fields import FieldInfo

from iop_fast.config.schema import EdgeConfig, NodeConfig
from iop_fast.config.schema.fields import (
    ID_PATTERN,
    PATTERN_WORDS,
    Section,
    check_address,
    check_endpoint,
    check_local_address,
    child,
    field_at,
    is_list,
    is_map,
    is_section,
    mark,
    unwrap,
)
from iop_fast.config.schema.native import BUILT_IN_OPTIONS, NativeModel
from scripts.generated import ROOT, write_or_check

TARGET = ROOT / "configs" / "REFERENCE.md"
INTRO = ROOT / "scripts" / "config_docs_intro.md"
SYNTAX = {
    check_address: "host:port, IPv6 as [::1]:port",
    check_local_address: "loopback host:port, or unix:/path",
    check_endpoint: "http(s) URL without credentials, query and fragment",
}
TYPES = {"integer": "whole number", "number": "number", "boolean": "true or false", "string": "text"}


def sections(model: type[Section], path: str) -> Iterator[tuple[str, type[Section]]]:
    """Every section below a model with its path, in file order."""
    yield path, model
    for key in model.model_fields:
        _, annotation = child(model, key)
        place = f"{path}.{key}" if path else key
        if is_section(annotation):
            yield from sections(annotation, place)
        elif is_list(annotation) and is_section(child(annotation, 0)[1]):
            yield from sections(child(annotation, 0)[1], f"{place}[]")


def card(path: str, key: str, field: FieldInfo, schema: dict[str, Any]) -> str:
    """Everything about one key."""
    entries = is_list(unwrap(field.annotation)) and "adding and removing: " * is_section(child(field.annotation, 0)[1])
    facts = [
        kind_of(field, schema),
        default_of(field),
        *bounds_of(schema),
        f"{entries or ''}**{mark(field, 'apply')}**",
    ]
    if mark(field, "secret"):
        facts.append("secret")
    text = f"#### `{path}.{key}`\n\n" if path else f"#### `{key}`\n\n"
    text += f"{field.description}\n\n"
    text += " · ".join(fact for fact in facts if fact) + "\n"
    at_limit = mark(field, "at_limit")
    if at_limit:
        text += f"\nAt the limit: {at_limit}.\n"
    return text


def kind_of(field: FieldInfo, schema: dict[str, Any]) -> str:
    """What may stand there, with its unit."""
    annotation = unwrap(field.annotation)
    if is_list(annotation):
        inner = child(annotation, 0)[1]
        return "list of mappings" if is_section(inner) else "list of texts"
    if is_map(annotation):
        inner = schema.get("additionalProperties", {}).get("type")
        return "mapping of names to values" if isinstance(inner, list) else "mapping of names to texts"
    for rule in [*field.metadata, *rules_in(field.annotation)]:
        if isinstance(rule, AfterValidator) and rule.func in SYNTAX:
            return SYNTAX[rule.func]
    schema = plain(schema)
    if "enum" in schema or "const" in schema:
        return "one of " + ", ".join(f"`{word}`" for word in schema.get("enum", [schema.get("const")]))
    if schema.get("pattern") == ID_PATTERN:
        return "id"
    if "pattern" in schema:
        return PATTERN_WORDS.get(schema["pattern"], "text").removeprefix("expected ").removeprefix("the ")
    kind = TYPES[schema["type"]]
    unit = mark(field, "unit")
    return f"{kind}, {unit}" if unit else kind


def rules_in(annotation: Any) -> Iterator[Any]:
    """What stands in the Annotated parts of an annotation."""
    if get_origin(annotation) is Annotated:
        yield from get_args(annotation)[1:]
    for inner in get_args(annotation):
        yield from rules_in(inner)


def plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A key's schema without "or null"."""
    for choice in schema.get("anyOf", []):
        if choice != {"type": "null"}:
            return {**schema, **choice}
    return schema


def default_of(field: FieldInfo) -> str:
    """The default, or that there is none."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or isinstance(value, (Section, dict)):
        return ""
    if isinstance(value, tuple):
        return ""
    shown = str(value).lower() if isinstance(value, bool) else str(value)
    return f"default `{shown}`"


def bounds_of(schema: dict[str, Any]) -> list[str]:
    """The least and the most."""
    schema = plain(schema)
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and high is not None:
        return [f"{low} to {high}"]
    if schema.get("minItems") or schema.get("minProperties"):
        return ["at least one entry"]
    return []


def heading(path: str, section: type[Section], model: type[Section]) -> str:
    """The head of a section, which says what its own coming and going takes where it may be left out."""
    text = f"### `{path}`\n\n{section.__doc__}\n"
    field = field_at(model, tuple(part.removesuffix("[]") for part in path.split(".")))
    if field is not None and field.default is None:
        text += f"\nMay be left out. Giving it and leaving it out: **{mark(field, 'apply')}**.\n"
    return text


def reference(title: str, model: type[Section]) -> str:
    """The cards of one file. Sections have a head of their own, so the keys that hold them have no card."""
    whole = model.model_json_schema()
    text = f"## {title}\n\n{model.__doc__}\n"
    for path, section in sections(model, ""):
        properties = (whole if section is model else whole["$defs"][section.__name__])["properties"]
        if path:
            text += "\n" + heading(path, section, model)
        for key, field in section.model_fields.items():
            if not is_section(unwrap(field.annotation)):
                text += "\n" + card(path, key, field, properties[key])
        if section is NativeModel:
            text += "".join(native_options(f"{path}.options", name) for name in BUILT_IN_OPTIONS)
    return text


def native_options(path: str, adapter: str) -> str:
    """The cards of the options of an adapter that is part of this build."""
    options = BUILT_IN_OPTIONS[adapter]
    properties = options.model_json_schema()["properties"]
    text = f"\n### `{path}` of `{adapter}`\n\n{cleandoc(options.__doc__ or '')}\n"
    return text + "".join("\n" + card(path, key, field, properties[key]) for key, field in options.model_fields.items())


def render() -> str:
    """The whole page."""
    note = "<!-- Written by scripts/gen_config_docs.py from the schema and scripts/config_docs_intro.md. -->\n"
    pages = [reference("The Edge's file", EdgeConfig), reference("The Node's file", NodeConfig)]
    return note + INTRO.read_text(encoding="utf-8") + "\n".join(pages)


def main(arguments: list[str]) -> int:
    """Write or check the page."""
    return write_or_check({TARGET: render()}, arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
