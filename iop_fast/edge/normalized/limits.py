"""What a normalized run cannot carry, found in a request before anybody is asked to serve it.

Each is a bit of `needs` (edge/needs.py) that only tunnels can, so a model with both kinds of providers serves such a
request by a tunnel, and a model without one refuses it by name before it waits.

Size is one of them. A normalized request is read into objects in one call that nothing can interrupt, so what is read
so is bounded: READ_BYTES_MAX bytes and VALUES_MAX values. Media in base64 is not read but decoded piece by piece as it
is sent on (`media`), and does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from iop_fast._core.scan import BodyScan
from iop_fast.edge import needs
from iop_fast.edge.body import Body
from iop_fast.edge.normalized.media import find_media

# Measured: 0.6 to 1.4 ms a MiB of text, 110 to 140 ns a value and 1.5 us a message, of at least three values.
READ_BYTES_MAX = 4 * 1024 * 1024
VALUES_MAX = 8192

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
    },
    COMPLETIONS: {
        "n": (is_not_one, needs.SEVERAL_CHOICES),
        "best_of": (is_not_one, needs.SEVERAL_CHOICES),
        "logprobs": (is_given, needs.LOGPROBS),
        "echo": (is_given, needs.ECHO),
        "prompt": (is_numbers, needs.TOKEN_ARRAYS),
    },
    EMBEDDINGS: {"input": (is_numbers, needs.TOKEN_ARRAYS)},
}


def tunnel_needs(scan: BodyScan, body: Body, path: bytes) -> int:
    """Return the bits of what a request asks for that no normalized run carries."""
    looks = LOOKS.get(path)
    if looks is None:
        return 0
    found = 0
    for name, (look, bit) in looks.items():
        span = scan.value_span(name)
        if span is not None and look(body.slice(span[0], min(span[1], span[0] + LOOK_BYTES))):
            found |= bit
    if scan.value_count > VALUES_MAX or is_bulky(body):
        found |= needs.BULK
    return found


def is_bulky(body: Body) -> bool:
    """True for a body of which more has to be read than may be."""
    if body.size <= READ_BYTES_MAX:
        return False
    media = sum(span.end - span.start for span in find_media(body, 0, body.size, READ_BYTES_MAX))
    return body.size - media > READ_BYTES_MAX
