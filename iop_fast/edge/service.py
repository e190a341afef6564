"""What stands behind the HTTP front: a request's head comes in, an exchange or an immediate answer goes out.

What a head alone decides is decided here, in this order: the Edge is draining (503), the caller is known (401, on every
path of the API), path and method exist (404, 405), the body is not encoded and of the path's kind (415, 400), the
provider token that the configuration demands is there (401). Whatever is refused here has cost no memory, no place and
no slot.

Request ids are ours: `x-request-id` of the answer, of the provider's request and of the log are one value, made here. A
client's own field of that name is not taken over, so two requests never share an id.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from iop_fast import logs
from iop_fast._core.admission import Outcome
from iop_fast._hot.records import item
from iop_fast.edge import answers
from iop_fast.edge.auth import (
    ANONYMOUS,
    CallerFields,
    Field,
    MissingProviderToken,
    Principal,
    identify,
    is_encoded,
    read_forwarded,
)
from iop_fast.edge.cors import Cors
from iop_fast.edge.exchange import Exchange
from iop_fast.edge.live_models import LiveModels
from iop_fast.edge.media import BadMedia, read_media
from iop_fast.edge.outcomes import INTERNAL_ERROR, REFUSALS, SUCCESS, Verdict
from iop_fast.edge.refusals import unknown_model
from iop_fast.edge.reply import Reply
from iop_fast.edge.routes import (
    MODELS_PATH,
    ModelList,
    ModelPage,
    Surface,
    WrongMethod,
    dialect_of,
    find_route,
    is_api,
    served_path,
)
from iop_fast.edge.state import EdgeState
from iop_fast.edge.tunnel import Request
from iop_fast.errors import Failure
from iop_fast.seams import Downstream, Head, HeadMemo, Receiver, RequestHead

log = logs.get(__name__)

BAD_TOKEN = Verdict(Failure.INVALID_API_KEY, "missing or invalid API key")
NO_PATH = Verdict(Failure.NOT_FOUND, "no such path")
NO_METHOD = Verdict(Failure.METHOD_NOT_ALLOWED, "the method is not allowed on this path")
ENCODED = Verdict(Failure.UNSUPPORTED_ENCODING, "expected a request body without content-encoding")
NO_PROVIDER_TOKEN = Verdict(
    Failure.MISSING_PROVIDER_AUTHORIZATION, "expected the provider's token, once, in the header set up for it"
)


class Answered:
    """Receiver of a request that was answered from its head alone: its body and its client's fate are of no interest.

    One instance serves all: it has no state.
    """

    __slots__ = ()

    def on_body(self, piece: bytes) -> None:
        """Drop it."""

    def on_body_complete(self) -> None:
        """Nothing waits for it."""

    def on_refused(self, failure: Failure, message: str) -> None:
        """The answer is out already."""

    def on_client_gone(self) -> None:
        """Nothing is out on the client's behalf."""

    def on_writable(self) -> None:
        """Nothing more is to be written."""


ANSWERED = Answered()


class Page(NamedTuple):
    """An answer that needs no provider."""

    body: bytes


class Preflight(NamedTuple):
    """The answer to a browser that asks whether a page may send a request."""

    fields: Sequence[Field]


class Refusal(NamedTuple):
    """An error answer to a head."""

    verdict: Verdict
    extra: tuple[Field, ...] = ()


class EdgeService:
    """The Edge's `Service`."""

    __slots__ = ("_cors", "_edge", "_models")

    def __init__(self, edge: EdgeState) -> None:
        self._edge = edge
        self._cors = Cors(edge.runtime.config.openai.cors_origins)
        self._models = LiveModels(edge)

    def open(self, head: RequestHead, downstream: Downstream) -> Receiver:
        """Take a request whose head is complete; what comes back takes its body."""
        request_id = self._edge.new_request_id()
        try:
            decision = self._decide(head, request_id)
            if isinstance(decision, Request):
                exchange = Exchange(self._edge, decision, downstream)
                exchange.begin()
                return exchange
        except Exception as error:  # noqa: BLE001 - a bug of ours ends this request, not its connection's others
            log.failure("open_failed", error, request=request_id.decode())
            decision = Refusal(INTERNAL_ERROR)
        self._answer(decision, head, request_id, downstream)
        return ANSWERED

    def render(self, failure: Failure, message: str, path: bytes = b"") -> tuple[Head, bytes]:
        """Build the answer to a request that the front refuses before anybody was asked; and note it."""
        request_id = self._edge.new_request_id()
        self._edge.books.note(request_id, failure.reason, failure.value.status)
        return answers.error_answer(failure, message, request_id, dialect=dialect_of(path))

    def _decide(self, head: RequestHead, request_id: bytes) -> Request | Page | Preflight | Refusal:
        edge = self._edge
        if edge.is_draining:
            return Refusal(REFUSALS[Outcome.EVICTED_DRAINING])
        before = self._before(head)
        if before is not None:
            return before.again(request_id, head)
        preflight = self._cors.preflight_fields(head)
        if preflight is not None:
            return Preflight(preflight)
        runtime = edge.runtime
        fields = runtime.fields.sort(head.headers)
        principal: Principal | None = ANONYMOUS
        if is_api(head.path):
            principal = identify(fields.marked, runtime.principals, runtime.requires_principal)
        if principal is None:
            return Refusal(BAD_TOKEN)
        route = find_route(head.method, head.path)
        if isinstance(route, Surface):
            decision = self._decide_tunnel(route, head, fields, request_id, principal)
            if head.memo is not None and isinstance(decision, Request):
                # Without the memo, which would refer to itself.
                head.memo.made = (runtime.revision, decision.again(b"", head._replace(memo=None)))
            return decision
        if isinstance(route, ModelList):
            return Page(self._models.list_page())
        if isinstance(route, ModelPage):
            return self._model_page(route.model)
        if isinstance(route, WrongMethod):
            return Refusal(NO_METHOD, ((b"allow", route.allow),))
        return Refusal(NO_PATH)

    def _before(self, head: RequestHead) -> Request | None:
        """Return a request of the same head, decided under the configuration of now; None where there was none."""
        memo: HeadMemo | None = item(head, 5)
        made: Any = None if memo is None else memo.made
        if made is None or made[0] != self._edge.runtime.revision:
            return None
        before: Request = made[1]
        return before

    def _decide_tunnel(
        self, surface: Surface, head: RequestHead, fields: CallerFields, request_id: bytes, principal: Principal
    ) -> Request | Refusal:
        if is_encoded(fields.marked):
            return Refusal(ENCODED)
        rule = self._edge.runtime.forward_rule
        try:
            boundary = read_media(fields.marked, surface.is_form)
            forwarded = None if rule is None else read_forwarded(fields.marked, rule)
        except BadMedia as error:
            return Refusal(error.verdict)
        except MissingProviderToken:
            return Refusal(NO_PROVIDER_TOKEN)
        passed, cors = self._cors.without_origin(fields.passed), self._cors.answer_fields(head)
        return Request(request_id, surface, head, passed, principal, forwarded, cors, boundary)

    def _model_page(self, model: str | None) -> Page | Refusal:
        page = self._models.page(model) if model is not None else None
        if page is not None:
            return Page(page)
        return Refusal(unknown_model(self._edge.runtime, model or ""))

    def _answer(
        self, decision: Page | Preflight | Refusal, head: RequestHead, request_id: bytes, downstream: Downstream
    ) -> None:
        outcome, path = SUCCESS, MODELS_PATH
        if isinstance(decision, Preflight):
            reply = Reply(downstream)
            reply.begin(answers.empty_answer(decision.fields, request_id), False, [], True)
            path = b""
        elif isinstance(decision, Page):
            reply = Reply(downstream, self._cors.answer_fields(head))
            reply.begin(answers.json_answer(decision.body, request_id), False, [decision.body], True)
        else:
            reply = Reply(downstream, self._cors.answer_fields(head))
            reply.refuse(decision.verdict, request_id, dialect_of(head.path), extra=decision.extra)
            outcome, path = decision.verdict.failure.reason, served_path(head.path)
        self._edge.count(outcome)
        self._edge.books.note(request_id, outcome, reply.status, path)
