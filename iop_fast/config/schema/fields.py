"""How a configuration key is declared, and how the declarations are read back.

A key is declared once, by `setting(...)`: what it is for, its unit, default, bounds, what a client meets at the limit
and whether a change of it is taken over live. Validation, the JSON Schema, the reference page and the classification
of a refresh all read that one declaration; `child` finds it again for a place in a file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from ipaddress import ip_address
from types import NoneType
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, Strict, StringConstraints
from pydantic.fields import FieldInfo

Apply = Literal["live", "restart"]
T = TypeVar("T")

MIB = 1024 * 1024
DAY_MS = 86_400_000

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:/@+-]{0,127}$"
ENV_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
SHA256_PATTERN = r"^[0-9a-fA-F]{64}$"
# RFC 9110, section 5.6.2: the characters of a token.
HEADER_PATTERN = r"^[!#$%&'*+.^_`|~0-9A-Za-z-]{1,128}$"
# RFC 6454, section 6.2: scheme, host and a port that is not the scheme's own, as a browser writes them.
ORIGIN_PATTERN = r"^https?://(?:[a-z0-9._-]{1,253}|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?$"
# Printable: no control characters and no line ends of any script.
TEXT_PATTERN = r"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{1,256}$"
# Any text that a program can be given; longer ones are files.
TEMPLATE_PATTERN = r"^[^\x00]+$"
ARGUMENT_PATTERN = r"^[^\x00]*$"
# Names and list indexes on the way to a value of a JSON document.
JSON_PATH_PATTERN = r"^[^.\s]{1,64}(?:\.[^.\s]{1,64}){0,15}$"

# What each pattern asks for, as a finding says it.
PATTERN_WORDS = {
    ID_PATTERN: "expected 1 to 128 characters A-Z a-z 0-9 . _ : / @ + -, the first a letter or a digit",
    ENV_PATTERN: "expected the name of an environment variable (letters, digits, _), never the value itself",
    SHA256_PATTERN: "expected the sha256 of the token as 64 hex characters, never the token itself",
    HEADER_PATTERN: "expected the name of an HTTP header",
    ORIGIN_PATTERN: "expected scheme, host and maybe port in lower case and without a path, as https://example.org",
    TEXT_PATTERN: "expected 1 to 256 printable characters",
    TEMPLATE_PATTERN: "expected a text without NUL, not empty",
    ARGUMENT_PATTERN: "expected a text without NUL",
    JSON_PATH_PATTERN: "expected names and list indexes with dots between them, as choices.0.delta.text",
}


class Section(BaseModel):
    """A mapping of the file: strict types, no unknown keys, immutable."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


def setting(
    description: str,
    *,
    apply: Apply,
    default: Any = ...,
    factory: Any = None,
    unit: str = "",
    secret: bool = False,
    quiet: bool = False,
    ordered: bool = False,
    at_limit: str = "",
    **bounds: Any,
) -> Any:
    """Declare a key.

    `apply` says whether a refresh takes a change over ("live") or refuses it ("restart"). A `secret` value is shown by
    no report, only that it changed; a `quiet` one is not repeated in findings, because what stands there by mistake is
    often a secret. `ordered` marks a list whose order breaks ties and is that of listings; a refresh keeps the running
    one. `at_limit` is what a client sees when the limit is reached.
    """
    extra: dict[str, Any] = {"apply": apply}
    if unit:
        extra["unit"] = unit
    if secret:
        extra["secret"] = True
    if quiet or secret:
        extra["quiet"] = True
    if ordered:
        extra["ordered"] = True
    if at_limit:
        extra["at_limit"] = at_limit
    if factory is not None:
        return Field(default_factory=factory, description=description, json_schema_extra=extra, **bounds)
    return Field(default, description=description, json_schema_extra=extra, **bounds)


def mark(field: FieldInfo, name: str) -> Any:
    """Return a mark that `setting` left on a field (apply, unit, secret, quiet, ordered, at_limit), or None."""
    extra = field.json_schema_extra
    return extra.get(name) if isinstance(extra, Mapping) else None


# A list that the loader and hand-written tests may give as a list or a tuple; its items stay strict.
Entries = Annotated[tuple[T, ...], Strict(False)]

Id = Annotated[str, StringConstraints(pattern=ID_PATTERN)]
EnvName = Annotated[str, StringConstraints(pattern=ENV_PATTERN)]
HeaderName = Annotated[str, StringConstraints(pattern=HEADER_PATTERN)]
Origin = Annotated[str, StringConstraints(pattern=ORIGIN_PATTERN)]
Text = Annotated[str, StringConstraints(pattern=TEXT_PATTERN)]
Template = Annotated[str, StringConstraints(pattern=TEMPLATE_PATTERN, max_length=65_536)]
Argument = Annotated[str, StringConstraints(pattern=ARGUMENT_PATTERN, max_length=65_536)]
JsonPath = Annotated[str, StringConstraints(pattern=JSON_PATH_PATTERN)]
Sha256 = Annotated[str, StringConstraints(pattern=SHA256_PATTERN), AfterValidator(str.lower)]


def parse_address(value: str) -> tuple[str, int]:
    """Split "host:port" or "[v6]:port"; raise ValueError with what was expected.

    The host is a name or an address and never empty: "every address" is written out as 0.0.0.0 or [::].
    """
    match = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+(?:%[A-Za-z0-9]+)?)\]|([A-Za-z0-9._-]{1,253})):([0-9]{1,5})", value)
    if match is None:
        raise ValueError("expected host:port, an IPv6 address in brackets ([::1]:8080)")
    port = int(match[3])
    if port > 65535:
        raise ValueError("expected a port of 0 to 65535")
    return (match[1] or match[2], port)


def is_loopback(host: str) -> bool:
    """True for a host of this machine alone: localhost, 127.0.0.0/8, ::1. Other names are not looked up."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def check_address(value: str) -> str:
    """Accept what `parse_address` can read."""
    parse_address(value)
    return value


def check_local_address(value: str) -> str:
    """Accept a loopback address or "unix:/path": nothing that another machine could reach."""
    if value.startswith("unix:"):
        path = value.removeprefix("unix:")
        # sockaddr_un holds 108 bytes on Linux and 104 on macOS, the closing NUL included.
        if not path.startswith("/") or len(path.encode()) > 103 or "\0" in path:
            raise ValueError("expected unix: with an absolute path of at most 103 bytes")
        return value
    if not is_loopback(parse_address(value)[0]):
        raise ValueError("expected a loopback address (127.0.0.1, [::1], localhost) or unix:/path: it has no login")
    return value


def check_endpoint(value: str) -> str:
    """Accept an absolute http(s) URL of host, port and path; credentials, query and fragment are refused."""
    if set("?#") & set(value):
        raise ValueError("expected a URL without query and fragment")
    match = re.fullmatch(r"https?://([^/\s]*)(/[\x21-\x7e]*)?", value)
    if match is None:
        raise ValueError("expected http://host[:port][/path] or https://..., printable ASCII without spaces")
    if "@" in match[1]:
        raise ValueError("expected no user or password in the URL: name the variable with the key by api_key_env")
    has_port = re.search(r":[0-9]*$", match[1]) is not None
    _, port = parse_address(match[1] if has_port else f"{match[1]}:80")
    if port == 0:
        raise ValueError("expected a port of 1 to 65535")
    return value


Address = Annotated[str, AfterValidator(check_address)]
LocalAddress = Annotated[str, AfterValidator(check_local_address)]
Endpoint = Annotated[str, AfterValidator(check_endpoint)]


def unwrap(annotation: Any) -> Any:
    """Strip Annotated and "| None" from an annotation."""
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
            continue
        arguments = [argument for argument in get_args(annotation) if argument is not NoneType]
        if NoneType in get_args(annotation) and len(arguments) == 1:
            annotation = arguments[0]
            continue
        return annotation


def is_section(annotation: Any) -> bool:
    """True for a mapping with keys of its own."""
    return isinstance(annotation, type) and issubclass(annotation, Section)


def is_list(annotation: Any) -> bool:
    """True for a list of the file."""
    return get_origin(annotation) is tuple


def is_map(annotation: Any) -> bool:
    """True for a mapping whose keys are names that the file's author chooses."""
    return get_origin(annotation) is dict


def child(annotation: Any, part: str | int) -> tuple[FieldInfo | None, Any]:
    """Go one step down from an annotation: the field (None inside lists and maps) and the annotation of what is there.

    (None, None) where the schema has nothing.
    """
    annotation = unwrap(annotation)
    if is_section(annotation):
        field = annotation.model_fields.get(part)
        return (None, None) if field is None else (field, unwrap(field.annotation))
    if is_list(annotation) and isinstance(part, int):
        return None, unwrap(get_args(annotation)[0])
    if is_map(annotation):
        return None, unwrap(get_args(annotation)[1])
    return None, None


def field_at(model: Any, location: tuple[str | int, ...]) -> FieldInfo | None:
    """Return the innermost field that a location lies in."""
    annotation, found = model, None
    for part in location:
        field, annotation = child(annotation, part)
        found = field or found
        if annotation is None:
            break
    return found
