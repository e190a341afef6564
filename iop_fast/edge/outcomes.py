"""What a request's end means: admission's outcomes and the ends of runs, as rows of the error table and words.

Messages are for people and the same for every request of a kind; what a Node said beyond that (an address, a path)
stays in the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from iop_fast._core.admission import Outcome
from iop_fast.errors import Failure
from iop_fast.wire.runtime_pb2 import RunEnd


class Verdict(NamedTuple):
    """A failure and what is said about it."""

    failure: Failure
    message: str


class RequestRefused(Exception):
    """A request is answered with an error, for what its body says. `param` names the field at fault, if one is."""

    def __init__(self, verdict: Verdict, param: str | None = None) -> None:
        super().__init__(verdict.message)
        self.verdict = verdict
        self.param = param


# Outcomes of a request that did not fail; a failed one's is its failure's reason.
SUCCESS = "ok"
CLIENT_GONE = "client_gone"

# How admission's refusals and evictions read. A cancelled waiter is nobody's to answer.
REFUSALS: Mapping[Outcome, Verdict] = {
    Outcome.REJECTED_QUEUE_FULL: Verdict(Failure.QUEUE_FULL, "all slots are taken and the queue is full"),
    Outcome.REJECTED_UNAVAILABLE: Verdict(Failure.UNAVAILABLE, "no provider of this model is available"),
    Outcome.EVICTED_TIMEOUT: Verdict(Failure.QUEUE_TIMEOUT, "no slot became free within the queue timeout"),
    Outcome.EVICTED_UNAVAILABLE: Verdict(Failure.UNAVAILABLE, "the last available provider of this model went away"),
    Outcome.EVICTED_DRAINING: Verdict(Failure.DRAINING, "the gateway is shutting down"),
}

# What a run's end means to a client whose answer it leaves unfinished; OK does so when it comes before the head.
ENDS: Mapping[int, Verdict] = {
    RunEnd.OK: Verdict(Failure.UPSTREAM_ERROR, "the provider ended its answer before it began"),
    RunEnd.CANCELLED: Verdict(Failure.UPSTREAM_ERROR, "the provider's node stopped the request"),
    RunEnd.CONNECT_FAILED: Verdict(Failure.UPSTREAM_ERROR, "the provider could not be reached"),
    RunEnd.UPSTREAM_ERROR: Verdict(Failure.UPSTREAM_ERROR, "the provider broke off or sent an invalid answer"),
    RunEnd.UPSTREAM_TIMEOUT: Verdict(Failure.UPSTREAM_TIMEOUT, "the provider ran past its limit of time"),
    RunEnd.UNKNOWN_PROVIDER: Verdict(Failure.UPSTREAM_ERROR, "the provider is not usable on its node"),
    RunEnd.NODE_DRAINING: Verdict(Failure.UPSTREAM_ERROR, "the provider's node is shutting down"),
    RunEnd.INTERNAL: Verdict(Failure.INTERNAL, "internal error"),
    # Before anything of the answer was sent, a refusal is an answer (edge/normalized/run.py).
    RunEnd.REFUSED: Verdict(Failure.UPSTREAM_ERROR, "the provider broke off with an error of its own"),
}

# Ends after which the provider cannot have seen the request: it may be sent to another one.
UNSEEN_ENDS = frozenset({RunEnd.CONNECT_FAILED, RunEnd.UNKNOWN_PROVIDER, RunEnd.NODE_DRAINING})

NODE_LOST = Verdict(Failure.UPSTREAM_ERROR, "the connection to the provider's node was lost")
LINK_FULL = Verdict(Failure.OVERLOADED, "the gateway holds as much for the provider's node as it may")
INVALID_ANSWER = Verdict(Failure.UPSTREAM_ERROR, "the provider sent an invalid answer")
INTERNAL_ERROR = Verdict(Failure.INTERNAL, "internal error")


def verdict_on_end(status: int) -> Verdict:
    """Return what a run's end means; a status that this version does not know is an invalid answer."""
    return ENDS.get(status, INVALID_ANSWER)
