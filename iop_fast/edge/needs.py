"""What a request needs and what a provider can, as bit sets that admission compares: `can & needs == needs`.

The low bits are the features that the body scan sees (`iop_fast._core.scan`), the bits from 16 up are the surfaces:
the API that the request came in by. A request needs exactly one surface and any number of features. The bits from 32 up
are what a tunnel carries and a normalized run (`edge/normalized`) does not, or not to every kind of provider; they are
looked for in requests for models that have a provider of that kind (`edge/normalized/limits.py`).
"""

from __future__ import annotations

from collections.abc import Iterable

from iop_fast._core import scan

SURFACE_CHAT = 1 << 16
SURFACE_COMPLETIONS = 1 << 17
SURFACE_EMBEDDINGS = 1 << 18
SURFACE_RESPONSES = 1 << 19
SURFACE_MESSAGES = 1 << 20
SURFACE_RERANK = 1 << 21
SURFACE_SPEECH = 1 << 22
SURFACE_IMAGES = 1 << 23
SURFACE_TRANSCRIPTIONS = 1 << 24

SEVERAL_CHOICES = 1 << 32
LOGPROBS = 1 << 33
ECHO = 1 << 34
TOKEN_ARRAYS = 1 << 35
FUNCTIONS = 1 << 36
SPOKEN_ANSWERS = 1 << 37
WEB_SEARCH = 1 << 38
BULK = 1 << 39
# What some normalized providers carry.
SEVERAL_PROMPTS = 1 << 40
JSON_OBJECT = 1 << 41

# Every bit with the words an error message uses for it.
NAMES = {
    SURFACE_CHAT: "/v1/chat/completions",
    SURFACE_COMPLETIONS: "/v1/completions",
    SURFACE_EMBEDDINGS: "/v1/embeddings",
    SURFACE_RESPONSES: "/v1/responses",
    SURFACE_MESSAGES: "/v1/messages",
    SURFACE_RERANK: "/v1/rerank",
    SURFACE_SPEECH: "/v1/audio/speech",
    SURFACE_IMAGES: "/v1/images/generations",
    SURFACE_TRANSCRIPTIONS: "/v1/audio/transcriptions",
    scan.FEATURE_TOOLS: "tools",
    scan.FEATURE_IMAGES: "images",
    scan.FEATURE_AUDIO: "audio",
    scan.FEATURE_JSON_SCHEMA: "json_schema",
    scan.FEATURE_REMOTE_MEDIA: "images and sound by URL (data: URLs may be)",
    scan.FEATURE_FILES: "video and files",
    SEVERAL_CHOICES: "several choices (n, best_of)",
    LOGPROBS: "logprobs",
    ECHO: "echo",
    TOKEN_ARRAYS: "token arrays",
    FUNCTIONS: "functions (tools may be)",
    SPOKEN_ANSWERS: "spoken answers (modalities, audio)",
    WEB_SEARCH: "web_search_options",
    BULK: "a body of this size (beside media 3 MiB, and 6,144 values in the input)",
    SEVERAL_PROMPTS: "several prompts",
    JSON_OBJECT: "json_object",
}

EVERYTHING = sum(NAMES)

# What the words of the file's `can` mean.
ABILITIES = {
    "chat": SURFACE_CHAT,
    "completions": SURFACE_COMPLETIONS,
    "embeddings": SURFACE_EMBEDDINGS,
    "tools": scan.FEATURE_TOOLS,
    "images": scan.FEATURE_IMAGES,
    "audio": scan.FEATURE_AUDIO,
    "json_schema": scan.FEATURE_JSON_SCHEMA,
    "responses": SURFACE_RESPONSES,
    "messages": SURFACE_MESSAGES,
    "rerank": SURFACE_RERANK,
    "speech": SURFACE_SPEECH,
    "image_generation": SURFACE_IMAGES,
    "transcriptions": SURFACE_TRANSCRIPTIONS,
}

# What the words of a normalized run have a place for.
NORMALIZED = (
    SURFACE_CHAT
    | SURFACE_COMPLETIONS
    | SURFACE_EMBEDDINGS
    | scan.FEATURE_TOOLS
    | scan.FEATURE_IMAGES
    | scan.FEATURE_AUDIO
    | scan.FEATURE_JSON_SCHEMA
)

# What a provider can, by its adapter's type. A tunnel passes bytes on, so what the backend cannot it says itself.
CAN_OF_ADAPTER = {
    "openai_compat": EVERYTHING,
    "ollama": NORMALIZED & ~scan.FEATURE_AUDIO | JSON_OBJECT,
    "cli": SURFACE_CHAT | SURFACE_COMPLETIONS,
    "native": NORMALIZED & ~scan.FEATURE_AUDIO & ~scan.FEATURE_IMAGES | JSON_OBJECT | SEVERAL_PROMPTS,
}
# The types that take normalized runs and no tunnels.
NORMALIZED_TYPES = frozenset({"ollama", "cli", "native"})


def can_of(adapter_type: str, words: Iterable[str] | None = None) -> int:
    """Return what a provider can: what the file says, else all that its adapter's type can. Raises KeyError for a type
    or a word that the schema does not have."""
    by_type = CAN_OF_ADAPTER[adapter_type]
    if words is None:
        return by_type
    return sum(ABILITIES[word] for word in words) | by_type & ~sum(ABILITIES.values())


def is_normalized(adapter_type: str) -> bool:
    """True for an adapter type whose providers take normalized runs and no tunnels."""
    return adapter_type in NORMALIZED_TYPES


def missing_names(abilities: Iterable[int], needs: int) -> list[str]:
    """Name what makes `needs` unsupported: the bits that no provider has, or all of them when only the combination is
    too much for each."""
    together = 0
    for can in abilities:
        together |= can
    missing = needs & ~together or needs
    return [name for bit, name in NAMES.items() if bit & missing]
