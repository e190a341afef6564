"""Write docs/errors.md from the error table; with --check only say whether it is fresh (exit code 1 if not)."""

from __future__ import annotations

import sys

from iop_fast.edge.answers import anthropic_type
from iop_fast.errors import Failure
from scripts.generated import ROOT, write_or_check

TARGET = ROOT / "docs" / "errors.md"

INTRO = """<!-- Written by scripts/gen_error_docs.py from iop_fast/errors.py. -->
# Errors

An error answer of the gateway's own is OpenAI's object, `{"error": {"message", "type", "param", "code"}}`, and under
`/v1/messages` Anthropic's, `{"type": "error", "error": {"type", "message"}}`. Programs read `code`, or the field
`x-iop-reason`, which is also the `outcome` of the access log and of metrics; messages are for people and may change.
Every answer carries `x-request-id`, the id under which the log knows the request. A provider's own error answer is
passed through as it came and has no `x-iop-reason`.

Where `x-should-retry` stands, it is meant as the OpenAI clients take it: it decides over the status. `Retry-After`
stands where the gateway can tell when a new attempt has a chance. After an error marked "closes" the connection ends.

A stream that fails after its first byte ends without its proper end. Where it is a plain `text/event-stream`, an error
event of the API's own form comes last, with the same `code`: never a made-up `[DONE]`.

"""


def render() -> str:
    """The whole page."""
    ordered = sorted(Failure, key=lambda failure: (failure.value.status, failure.value.code))
    lines = ["| status | `code` | `x-iop-reason` | `type` | for Anthropic | |", "|---|---|---|---|---|---|"]
    for failure in ordered:
        row = failure.value
        notes = ["closes"] * row.closes
        if row.retry is not None:
            notes.append(f"`x-should-retry: {str(row.retry).lower()}`")
        if failure is Failure.QUEUE_FULL:
            notes.append("`Retry-After`")
        words = f"`{row.code}` | `{failure.reason}` | `{row.type}` | `{anthropic_type(failure)}`"
        lines.append(f"| {row.status} | {words} | {', '.join(notes)} |")
    cards = [f"## {failure.value.status} {failure.value.code}\n\n{failure.value.when}\n" for failure in ordered]
    return INTRO + "\n".join(lines) + "\n\n" + "\n".join(cards)


def main(arguments: list[str]) -> int:
    """Write or check the page."""
    return write_or_check({TARGET: render()}, arguments)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
