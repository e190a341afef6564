"""native_models: models that run in the Node itself, and the options of the adapters that are part of this build.

The options of an adapter that an installed package offers are that package's own: they are handed over as they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema

from iop_fast.config.schema.fields import DAY_MS, Id, Section, Text, setting

# Each prompt that is read and each answer that is made at one time has a slot in the model's memory.
SLOTS_MAX = 256


def check_option(value: object) -> object:
    """Accept a text, a number, true or false."""
    if not isinstance(value, (str, int, float)):
        raise ValueError("expected a text, a number, true or false")
    return value


# One union would be four findings about one wrong value.
Option = Annotated[object, AfterValidator(check_option), WithJsonSchema({"type": ["string", "number", "boolean"]})]


def check_path(value: str) -> str:
    """Accept an absolute path."""
    if not value.startswith("/"):
        raise ValueError("expected an absolute path")
    return value


class EchoOptions(Section):
    """Options of the adapter `echo`, which answers with the last user message, word by word."""

    delay_ms: int = setting("Time before the first piece.", apply="restart", unit="ms", default=0, ge=0, le=DAY_MS)
    chunk_ms: int = setting("Time between pieces.", apply="restart", unit="ms", default=0, ge=0, le=DAY_MS)
    chunk_words: int = setting("Words in a piece.", apply="restart", default=1, ge=1, le=1_000_000)


class LlamaCppOptions(Section):
    """Options of the adapter `llama_cpp`, which runs a GGUF model in a process of the Node's (the extra `llm` of the
    package). Should that process die, its requests end and another one is started; the Node and its other providers
    serve on.
    """

    path: Annotated[Text, AfterValidator(check_path)] = setting(
        "The model's GGUF file, an absolute path.", apply="restart"
    )
    slots: int = setting(
        "Requests that the model works on at one time; further ones wait in the Node. The provider's capacity in the "
        "Edge's file is best the same.",
        apply="restart",
        default=4,
        ge=1,
        le=SLOTS_MAX,
    )
    context_tokens: int = setting(
        "Context of each slot; memory is set aside for slots x this.",
        apply="restart",
        unit="tokens",
        default=4_096,
        ge=64,
        le=16_777_216,
        at_limit="a longer prompt is refused, status 400; an answer that reaches it ends with the finish reason length",
    )
    threads: int = setting(
        "Threads that compute; 0 leaves it to llama.cpp.", apply="restart", default=0, ge=0, le=4_096
    )
    gpu_layers: int = setting(
        "Layers that are put on the GPU; -1 leaves it to llama.cpp.", apply="restart", default=-1, ge=-1, le=100_000
    )
    batch_tokens: int = setting(
        "Tokens of a prompt that are read in one step. A cancelled request frees its slot behind the running step.",
        apply="restart",
        unit="tokens",
        default=256,
        ge=32,
        le=65_536,
    )
    embeddings: bool = setting(
        "The model makes embeddings and nothing else; without it, answers and no embeddings.",
        apply="restart",
        default=False,
    )


# The adapters that are part of this build, with their options.
BUILT_IN_OPTIONS: Mapping[str, type[Section]] = {"echo": EchoOptions, "llama_cpp": LlamaCppOptions}


class NativeModel(Section):
    """A model that runs in the Node itself."""

    id: Id = setting("Name that the Edge's file refers to by `profile`, unique.", apply="restart")
    adapter: Id = setting(
        "What computes: echo, llama_cpp, or an adapter that an installed package offers (docs/adapters.md).",
        apply="restart",
    )
    options: dict[str, Option] = setting(
        "Options of the adapter, texts, numbers, true or false; those of echo and llama_cpp stand below.",
        apply="restart",
        factory=dict,
    )


def echo_models() -> tuple[NativeModel, ...]:
    """One echo model, so that a first try needs no model server."""
    return (NativeModel(id="echo", adapter="echo"),)
