"""What was used, by whom, where: each request that a provider may have seen is booked once, at its end.

Three states, and none of them is a guess:

    complete   the answer is whole and the provider reported its tokens
    partial    the answer was cut (by its client, its provider or a lost Node); its counts are what had been reported
    unknown    the answer is whole and says nothing about tokens that could be read; never counted as 0

Beside the counters of a row stand the tokens that the Edge had estimated for those of its requests whose prompt was
reported. The ratio of the two sums per model says how far the estimate, which decides what is `long`, can be trusted.

Memory is bounded: names come from the configuration alone, and a book that has met ROWS_MAX of their combinations (over
many refreshes) books new ones under OTHER.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from iop_fast._hot.records import item
from iop_fast.edge.auth import Principal
from iop_fast.seams import Usage

ROWS_MAX = 8_192
TOKENS_MAX = 2**40

COMPLETE, PARTIAL, UNKNOWN = "complete", "partial", "unknown"


class UsageKey(NamedTuple):
    """What a row is booked under."""

    principal: str
    token_ref: str
    model: str
    node_id: str
    provider_id: str


OTHER = UsageKey("other", "", "other", "other", "other")


class UsageRow:
    """Counters of one key since the start. Token counts hold what was reported, partial answers included; they have 63
    bits, which eight million requests of TOKENS_MAX tokens fill."""

    __slots__ = (
        "cached_tokens",
        "complete",
        "completion_tokens",
        "estimated_tokens",
        "measured_tokens",
        "partial",
        "prompt_tokens",
        "unknown",
    )

    def __init__(self) -> None:
        self.complete = self.partial = self.unknown = 0  # requests
        self.prompt_tokens = self.completion_tokens = self.cached_tokens = 0
        # Of the requests whose prompt was reported: what was estimated before, what it came to.
        self.estimated_tokens = self.measured_tokens = 0

    def merge(self, row: UsageRow) -> None:
        """Add what another row counts."""
        self.complete += row.complete
        self.partial += row.partial
        self.unknown += row.unknown
        self.prompt_tokens += row.prompt_tokens
        self.completion_tokens += row.completion_tokens
        self.cached_tokens += row.cached_tokens
        self.estimated_tokens += row.estimated_tokens
        self.measured_tokens += row.measured_tokens

    def add(self, state: str, usage: Usage | None, estimated_tokens: int) -> None:
        """Book one request."""
        if state == COMPLETE:
            self.complete += 1
        elif state == PARTIAL:
            self.partial += 1
        else:
            self.unknown += 1
        if usage is None:
            return
        prompt_tokens: int = item(usage, 0)
        self.prompt_tokens += prompt_tokens
        self.completion_tokens += item(usage, 1)
        self.cached_tokens += item(usage, 2)
        if prompt_tokens:
            self.estimated_tokens += estimated_tokens
            self.measured_tokens += prompt_tokens


class Calibration(NamedTuple):
    """How the estimate compares with what providers counted: `ratio` is estimated over measured, None before any."""

    estimated_tokens: int
    measured_tokens: int
    ratio: float | None


class UsageBook:
    """Counters by principal, token, model and provider, since the start."""

    __slots__ = ("rows",)

    def __init__(self) -> None:
        self.rows: dict[UsageKey, UsageRow] = {}

    def book(
        self,
        principal: Principal,
        model: str,
        provider: tuple[str, str],
        state: str,
        usage: Usage | None,
        estimate: int,
    ) -> None:
        """Book one request on the provider (node_id, provider_id) that saw it last."""
        key = (item(principal, 0), item(principal, 1), model, provider[0], provider[1])
        row = self.rows.get(key)  # type: ignore[call-overload]  # a named tuple equals one without names
        if row is None:
            row = self.rows.setdefault(UsageKey(*key) if len(self.rows) < ROWS_MAX else OTHER, UsageRow())
        row.add(state, usage, estimate)

    def calibration(self) -> dict[str, Calibration]:
        """Compare estimates with what was reported, by model."""
        sums: dict[str, tuple[int, int]] = {}
        for key, row in self.rows.items():
            estimated, measured = sums.get(key.model, (0, 0))
            sums[key.model] = (estimated + row.estimated_tokens, measured + row.measured_tokens)
        return {model: Calibration(e, m, round(e / m, 3) if m else None) for model, (e, m) in sums.items()}

    def snapshot(self) -> dict[str, Any]:
        """Everything, as plain data for JSON."""
        return {
            "rows": [
                {**key._asdict(), "requests": row.complete + row.partial + row.unknown}
                | {name: getattr(row, name) for name in (COMPLETE, PARTIAL, UNKNOWN)}
                | {name: getattr(row, name) for name in ("prompt_tokens", "completion_tokens", "cached_tokens")}
                for key, row in self.rows.items()
            ],
            "estimates": [{"model": model, **made._asdict()} for model, made in self.calibration().items()],
        }


def believable(usage: Usage | None) -> Usage | None:
    """Return what a provider reported, None for counts that no request has: their sums would be no numbers of JSON."""
    if usage is None or max(item(usage, 0), item(usage, 1), item(usage, 2)) <= TOKENS_MAX:
        return usage
    return None


def usage_state(is_whole: bool, usage: Usage | None) -> str:
    """Name the state of a request's usage."""
    if not is_whole:
        return PARTIAL
    return UNKNOWN if usage is None else COMPLETE
