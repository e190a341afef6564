"""What is changed in a request's body on its way to a provider, and nothing else is.

The served model's name takes the place of the one that the client asked for. A model with a generation policy also
gets the parameters that the request leaves out, behind the opening brace, and a limit on the answer's length lowered to
the ceiling where the request asks for more. Every edit replaces the JSON text of one top-level value or inserts members
before the first one; no other byte is touched, and a body that needs no edit has none. In a form (audio uploads) the
value of its field `model` is replaced, as it is; a generation policy has no part in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

import orjson

from iop_fast._hot.records import new_record
from iop_fast.config.schema import Generation
from iop_fast.edge.body import Body, Edit

# A JSON number longer than this is a limit that no model has; it is replaced unread.
NUMBER_BYTES_MAX = 32

PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", *PENALTIES, "seed")


class Parameters(NamedTuple):
    """The generation parameters of a surface: those that a default may be put in for, and the fields that limit the
    answer's length, the first being the one to put a default in."""

    defaults: Sequence[str]
    limits: Sequence[str]


PARAMETERS: Mapping[bytes, Parameters] = {
    b"/v1/chat/completions": Parameters(SAMPLING, ("max_tokens", "max_completion_tokens")),
    b"/v1/completions": Parameters(SAMPLING, ("max_tokens",)),
    b"/v1/responses": Parameters(("temperature", "top_p"), ("max_output_tokens",)),
    b"/v1/messages": Parameters(("temperature", "top_p", "top_k"), ("max_tokens",)),
}
NO_PARAMETERS = Parameters((), ())


class Spans(Protocol):
    """What is read of a finished scan (`iop_fast._core.scan.BodyScan`, `iop_fast._core.multipart.FormScan`)."""

    @property
    def model_span(self) -> tuple[int, int]:
        """Where the model's JSON text stands."""
        ...

    @property
    def insert_at(self) -> int:
        """Where members can be inserted."""
        ...

    def value_span(self, key: str) -> tuple[int, int] | None:
        """Where a top-level value stands; None for a key that is not there."""
        ...


def plan_edits(
    spans: Spans, body: Body, served: bytes, path: bytes, policy: Generation | None
) -> tuple[Sequence[Edit], Sequence[str]]:
    """Return what must change for a provider that calls the model `served`, which is JSON text, or the name itself for
    a form: edits in order of their place, and the names of the fields that were lowered to a ceiling."""
    edits = model_edits(spans, body, served)
    if policy is None:
        return edits, ()
    parameters = PARAMETERS.get(path, NO_PARAMETERS)
    clamps = clamp_edits(spans, body, policy, parameters)
    edits += clamps.values()
    inserted = default_members(spans, policy, parameters)
    if inserted:
        # The body has a member (its model), so a comma may follow.
        edits.append(Edit(spans.insert_at, spans.insert_at, b"".join([member + b"," for member in inserted])))
    return sorted(edits), tuple(clamps)


def model_edits(spans: Spans, body: Body, served: bytes) -> list[Edit]:
    """Return the edit that names the served model, none when the body says exactly that."""
    start, end = spans.model_span
    is_there = end - start == len(served) and body.slice(start, end) == served
    return [] if is_there else [new_record(Edit, (start, end, served))]


def clamp_edits(spans: Spans, body: Body, policy: Generation, parameters: Parameters) -> dict[str, Edit]:
    """Return by field the edits that lower a limit to the ceiling. What is no number is the provider's to refuse."""
    ceiling = policy.max_tokens_ceiling
    found: dict[str, Edit] = {}
    if ceiling is None:
        return found
    for name in parameters.limits:
        span = spans.value_span(name)
        if span is not None and is_above(body.slice(span[0], min(span[1], span[0] + NUMBER_BYTES_MAX + 1)), ceiling):
            found[name] = Edit(span[0], span[1], b"%d" % ceiling)
    return found


def is_above(text: bytes, ceiling: int) -> bool:
    """True for the JSON text of a number above `ceiling`."""
    if not text[:1].isdigit():
        return False
    return len(text) > NUMBER_BYTES_MAX or float(text) > ceiling


def default_members(spans: Spans, policy: Generation, parameters: Parameters) -> list[bytes]:
    """Return the members that put in what the request leaves out."""
    members: list[bytes] = []
    for name in parameters.defaults:
        value = getattr(policy.defaults, name)
        if value is not None and spans.value_span(name) is None:
            members.append(orjson.dumps({name: value})[1:-1])
    limit = policy.defaults.max_tokens
    if limit is not None and parameters.limits and all(spans.value_span(name) is None for name in parameters.limits):
        ceiling = policy.max_tokens_ceiling
        members.append(orjson.dumps({parameters.limits[0]: limit if ceiling is None else min(limit, ceiling)})[1:-1])
    return members
