"""What a normalized run cannot carry, or not to every provider, found in a request before anybody is asked to serve it.

Each is a bit of `needs` (edge/needs.py) that tunnels can, so a model with both kinds of providers serves such a request
by one that can, and a model without one refuses it by name before it waits.

Size is one of them. A normalized request is read into objects in calls that nothing can interrupt, and a thread would
hold the interpreter as long as the loop does. So what is read is bounded: READ_BYTES_MAX bytes, VALUES_MAX values, and
INPUT_VALUES_MAX of them in the input, where each becomes something. Media in base64 is not read but decoded piece by
piece as it is sent on (`media`), and does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iop_fast._core.scan import FEATURE_AUDIO, FEATURE_IMAGES, BodyScan
from iop_fast.edge import needs
from iop_fast.edge.body import Body
from iop_fast.edge.normalized.media import find_media

# Measured: 0.6 to 1.4 ms a MiB of text, 110 to 140 ns a value, and 1.7 us a message, which has three values at least.
READ_BYTES_MAX = 3 * 1024 * 1024
VALUES_MAX = 16384
INPUT_VALUES_MAX = 6144

MEDIA = FEATURE_IMAGES | FEATURE_AUDIO

# Of a field's JSON text, this much is looked at.
LOOK_BYTES = 64

CHAT, COMPLETIONS, EMBEDDINGS = b"/v1/chat/completions", b"/v1/completions", b"/v1/embeddings"


def is_given(text: bytes) -> bool:
    """True for a value that says something."""
    return text not in (b"null", b"false", b"[]", b"{}", b"")


def is_not_one(text: bytes) -> bool:
    """True for a number of choices other than one; what is no number is refused with it."""
    return text not in (b"null", b"1")


def holds_audio(text: bytes) -> bool:
    """True for a list of modalities that is not ["text"]; one that is longer than is looked at is another list."""
    return b"".join(text.split()) not in (b"null", b"[]", b'["text"]')


def is_numbers(text: bytes) -> bool:
    """True for an array of numbers, or one that holds arrays: tokens."""
    text = b"".join(text.split())
    return text[:1] == b"[" and (text[1:2].isdigit() or text[1:2] in (b"[", b"-"))


def is_json_object(text: bytes) -> bool:
    """True for a response_format of JSON without a schema."""
    return b'"json_object"' in text


Look = tuple[Callable[[bytes], bool], int]

LOOKS: Mapping[bytes, Mapping[str, Look]] = {
    CHAT: {
        "n": (is_not_one, needs.SEVERAL_CHOICES),
        "logprobs": (is_given, needs.LOGPROBS),
        "top_logprobs": (is_given, needs.LOGPROBS),
        "functions": (is_given, needs.FUNCTIONS),
        "function_call": (is_given, needs.FUNCTIONS),
        "modalities": (holds_audio, needs.SPOKEN_ANSWERS),
        "audio": (is_given, needs.SPOKEN_ANSWERS),
        "web_search_options": (lambda text: text != b"null", needs.WEB_SEARCH),
        "response_format": (is_json_object, needs.JSON_OBJECT),
    },
    COMPLETIONS: {
        "n": (is_not_one, needs.SEVERAL_CHOICES),
        "best_of": (is_not_one, needs.SEVERAL_CHOICES),
        "logprobs": (is_given, needs.LOGPROBS),
        "echo": (is_given, needs.ECHO),
        "prompt": (is_numbers, needs.TOKEN_ARRAYS),
        "response_format": (is_json_object, needs.JSON_OBJECT),
    },
    EMBEDDINGS: {"input": (is_numbers, needs.TOKEN_ARRAYS)},
}


def tunnel_needs(scan: BodyScan, body: Body, path: bytes) -> int:
    """Return the bits of what a request asks for that not every normalized run carries."""
    found = field_needs(scan, body, path)
    if scan.value_count > VALUES_MAX or scan.input_value_count > INPUT_VALUES_MAX or is_bulky(scan, body):
        found |= needs.BULK
    return found


def field_needs(scan: BodyScan, body: Body, path: bytes) -> int:
    """Return the bits of a request's fields."""
    found = 0
    for name, (look, bit) in LOOKS.get(path, {}).items():
        span = scan.value_span(name)
        if span is not None and look(body.slice(span[0], min(span[1], span[0] + LOOK_BYTES))):
            found |= bit
    if path == COMPLETIONS and not found & needs.TOKEN_ARRAYS and has_several_prompts(scan, body):
        found |= needs.SEVERAL_PROMPTS
    return found


def has_several_prompts(scan: BodyScan, body: Body) -> bool:
    """True for a list of prompts that is no list of one. Of the input's values, one is the list and one the suffix."""
    span = scan.value_span("prompt")
    if span is None or body.slice(span[0], span[0] + 1) != b"[":
        return False
    return scan.input_value_count - (scan.value_span("suffix") is not None) > 2


def is_bulky(scan: BodyScan, body: Body) -> bool:
    """True for a body of which more has to be read than may be."""
    if body.size <= READ_BYTES_MAX:
        return False
    if not scan.features & MEDIA:
        return True
    media = sum(span.end - span.start for span in find_media(body, 0, body.size, READ_BYTES_MAX))
    return body.size - media > READ_BYTES_MAX
