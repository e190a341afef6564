"""Why a request is refused for what it is: the checks between a whole body and admission, and their words. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from iop_fast._core.multipart import FormScan
from iop_fast._core.scan import BodyScan, ScanError
from iop_fast.edge.body import Body, BodyTooLarge, BudgetExhausted
from iop_fast.edge.needs import NORMALIZED, missing_names
from iop_fast.edge.normalized.limits import tunnel_needs
from iop_fast.edge.outcomes import RequestRefused, Verdict
from iop_fast.edge.routes import Surface
from iop_fast.edge.runtime import Runtime
from iop_fast.edge.settings import ModelEntry
from iop_fast.errors import Failure

# What the steps between a request's first byte and its run raise when it is not served for what it is.
REFUSED_FOR = (RequestRefused, ScanError, BodyTooLarge, BudgetExhausted)

# Of a model's name that a client made up, this much is said back to it; of a Node's words, this much is logged.
SHOWN_CHARACTERS = 128


def find_model(runtime: Runtime, model: str | None) -> ModelEntry:
    """Return the model that a body asks for; raise RequestRefused."""
    if model is None:
        raise RequestRefused(Verdict(Failure.INVALID_REQUEST, 'expected a top-level "model"'), "model")
    settings = runtime.settings
    entry = settings.models.get(model)
    if entry is None:
        raise RequestRefused(unknown_model(runtime, model), "model")
    return entry


def needs_of(entry: ModelEntry, surface: Surface, scan: BodyScan | FormScan, body: Body) -> int:
    """Return what a provider must be able to do for a request; raise RequestRefused when none of the model can."""
    needs = surface.bit | scan.features
    if entry.has_normalized and isinstance(scan, BodyScan) and surface.bit & NORMALIZED:
        needs |= tunnel_needs(scan, body, surface.path)
    if not is_supported(entry.abilities, needs):
        missing = ", ".join(missing_names(entry.abilities, needs))
        words = f"no provider of the model {entry.id!r} supports {missing}"
        raise RequestRefused(Verdict(Failure.UNSUPPORTED_BY_MODEL, words))
    return needs


def is_supported(abilities: Iterable[int], needs: int) -> bool:
    """True when at least one provider can everything that is needed."""
    for can in abilities:  # noqa: SIM110 - a loop of C integers; any() makes a generator
        if can & needs == needs:
            return True
    return False


def unknown_model(runtime: Runtime, model: str) -> Verdict:
    """Say that there is no such model, and which ones have a name like it."""
    shown = model[:SHOWN_CHARACTERS]
    near = runtime.near_names(shown)
    hint = f", did you mean {' or '.join(map(repr, near))}?" if near else ""
    return Verdict(Failure.MODEL_NOT_FOUND, f"the model {shown!r} does not exist{hint}")


def refusal_of(error: Exception, body_limit: int) -> tuple[Verdict, str | None]:
    """Say why a request is not served, and for which field; `error` is one of REFUSED_FOR."""
    if isinstance(error, RequestRefused):
        return error.verdict, error.param
    if isinstance(error, ScanError):
        return Verdict(Failure.INVALID_REQUEST, str(error)), error.param
    if isinstance(error, BodyTooLarge):
        return Verdict(Failure.REQUEST_TOO_LARGE, f"the body is larger than {body_limit} bytes"), None
    return Verdict(Failure.OVERLOADED, "the gateway holds as many request bodies as it may"), None
