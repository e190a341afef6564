"""The options of adapters: which there are for a type, and what their values are.

Options are texts in the file and on the link. They are read here for both ends: a rule of the Edge's file finds a wrong
one when it is loaded, and the Node's adapter reads the values.

What Ollama's own documentation calls them is kept: the options of the runner, which a model is loaded with
(`docs/api.md` of ollama/ollama, "Generate request (With options)"), and the request fields `keep_alive`, `think`,
`truncate` and `shift`. Sampling is the generation policy's business.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping

THINK_LEVELS = ("low", "medium", "high", "max")
DURATION = re.compile(r"-?(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|ms|s|m|h))+")

OptionValue = int | bool | str


def read_count(text: str) -> int:
    """Read a whole number of at least 1."""
    return _read_number(text, 1)


def read_index(text: str) -> int:
    """Read a whole number of at least 0."""
    return _read_number(text, 0)


def read_layers(text: str) -> int:
    """Read a number of layers; -1 leaves it to Ollama."""
    return _read_number(text, -1)


def _read_number(text: str, least: int) -> int:
    if re.fullmatch(r"-?[0-9]{1,9}", text) is None or int(text) < least:
        raise ValueError(f"expected a whole number of at least {least}, got {text[:128]!r}")
    return int(text)


def read_switch(text: str) -> bool:
    """Read true or false."""
    if text not in ("true", "false"):
        raise ValueError(f"expected true or false, got {text[:128]!r}")
    return text == "true"


def read_think(text: str) -> bool | str:
    """Read whether and how hard a model thinks."""
    if text in THINK_LEVELS:
        return text
    if text not in ("true", "false"):
        raise ValueError(f"expected true, false or one of {', '.join(THINK_LEVELS)}, got {text[:128]!r}")
    return text == "true"


def read_keep_alive(text: str) -> int | str:
    """Read how long a model stays loaded: seconds, or a duration with its unit; below 0 for ever."""
    if re.fullmatch(r"-?[0-9]{1,9}", text) is not None:
        return int(text)
    if DURATION.fullmatch(text) is None:
        raise ValueError(f"expected seconds or a duration as 5m or 1h30m, got {text[:128]!r}")
    return text


# Go into Ollama's `options`.
OLLAMA_RUNNER: Mapping[str, Callable[[str], OptionValue]] = {
    "num_ctx": read_count,
    "num_batch": read_count,
    "num_thread": read_count,
    "num_gpu": read_layers,
    "main_gpu": read_index,
    "num_keep": read_layers,
    "use_mmap": read_switch,
}
# Stand beside them in a request.
OLLAMA_FIELDS: Mapping[str, Callable[[str], OptionValue]] = {
    "keep_alive": read_keep_alive,
    "think": read_think,
    "truncate": read_switch,
    "shift": read_switch,
}

# By adapter type. Options of a program or a native model stand in the Node's own file.
READERS: Mapping[str, Mapping[str, Callable[[str], OptionValue]]] = {
    "ollama": {**OLLAMA_RUNNER, **OLLAMA_FIELDS},
    "openai_compat": {},
    "cli": {},
    "native": {},
}


def read_option(adapter_type: str, name: str, text: str) -> OptionValue:
    """Return an option's value; raise ValueError for an option or a value that the type does not have."""
    readers = READERS[adapter_type]
    reader = readers.get(name)
    if reader is None:
        raise ValueError(f"the type {adapter_type} has no such option, expected {listed(readers)}")
    return reader(text)


def read_options(adapter_type: str, options: Iterable[tuple[str, str]]) -> dict[str, OptionValue]:
    """Return options with their values; raise ValueError, which names the first that is wrong."""
    values: dict[str, OptionValue] = {}
    for name, text in options:
        try:
            values[name] = read_option(adapter_type, name, text)
        except ValueError as error:
            raise ValueError(f"options.{name}: {error}") from None
    return values


def listed(names: Iterable[str]) -> str:
    """Return names for a message."""
    return ", ".join(sorted(names)) or "none"
