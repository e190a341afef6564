"""What a request's head alone decides."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from hashlib import sha256
from typing import Any

import pytest

from iop_fast.edge.exchange import Exchange
from iop_fast.edge.service import ANSWERED
from iop_fast.errors import Failure
from iop_fast.seams import HeadMemo, RequestHead
from tests.unit.edge.exchange_world import OK, SSE_HEAD, Call, ExchangeWorld, FakeDownstream, Fields, provider_spec
from tests.unit.edge.test_auth import BAD_TOKENS, TOKEN

TOKENS = [{"token_ref": "laptop", "token_hash_sha256": sha256(TOKEN).hexdigest(), "principal_ref": "alice"}]
GUARDED = {"openai": {"principal_tokens": TOKENS, "require_principal": True}}
OPEN = {"openai": {"principal_tokens": TOKENS}}
FORWARDING = {"openai": {"provider_auth": {"enabled": True}}}


def test_every_configured_model_is_listed() -> None:
    """B11: also one with no live candidate."""
    with ExchangeWorld(models={"a": {"p1": "x"}, "org/b:1": {"p1": "y"}}, ready=False) as world:
        answer = world.get(b"/v1/models")
        assert answer.status == 200
        assert [entry["id"] for entry in json.loads(answer.body)["data"]] == ["a", "org/b:1"]
        assert answer.field(b"content-length") == b"%d" % len(answer.body)
        assert answer.field(b"content-type") == b"application/json"
        for path in (b"/v1/models/org/b:1", b"/v1/models/org%2Fb%3A1"):
            assert json.loads(world.get(path).body)["id"] == "org/b:1"
        assert world.get(b"/v1/models", b"HEAD").status == 200
        assert world.edge.counters["ok"] == 4


def test_an_unknown_model_page_names_its_neighbours() -> None:
    with ExchangeWorld(models={"llama-8b": {"p1": "x"}}) as world:
        for path in (b"/v1/models/lama-8b", b"/v1/models/%ff"):
            answer = world.get(path)
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
        assert "'llama-8b'" in world.get(b"/v1/models/lama-8b").error["message"]


def test_a_path_that_does_not_exist_is_a_404() -> None:
    with ExchangeWorld() as world:
        for path in (b"/", b"/v1/nothing", b"/refresh", b"/v1/chat/completions/"):
            answer = world.get(path)
            assert (answer.status, answer.error["code"]) == (404, "not_found")
            assert answer.field(b"x-iop-reason") == b"not_found"


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        (b"GET", b"/v1/chat/completions", b"POST"),
        (b"HEAD", b"/v1/embeddings", b"POST"),
        (b"DELETE", b"/v1/models/m", b"GET, HEAD"),
        (b"POST", b"/v1/models", b"GET, HEAD"),
    ],
)
def test_a_wrong_method_is_a_405_that_says_which_are_right(method: bytes, path: bytes, allow: bytes) -> None:
    with ExchangeWorld() as world:
        answer = world.get(path, method)
        assert (answer.status, answer.error["code"]) == (405, "method_not_allowed")
        assert answer.field(b"allow") == allow


def test_every_answer_has_a_request_id_of_ours() -> None:
    with ExchangeWorld() as world:
        headers: Fields = [(b"x-request-id", b"mine")]
        answers = [world.get(path, headers=headers) for path in (b"/v1/models", b"/v1/models/x", b"/x", b"/v1/models")]
        ids = [answer.field(b"x-request-id") for answer in answers]
        assert len(set(ids)) == len(ids)
        assert all(value is not None and len(value) == 32 and value != b"mine" for value in ids)


def test_what_was_answered_from_its_head_takes_no_notice_of_the_rest() -> None:
    with ExchangeWorld() as world:
        call = world.open(path=b"/x", method=b"POST", length=5)
        assert call.receiver is ANSWERED
        call.receiver.on_body(b"12345")
        call.receiver.on_body_complete()
        call.receiver.on_writable()
        call.leave()
        assert len(call.downstream.sends) == 1
        world.assert_idle()


@pytest.mark.parametrize("headers", BAD_TOKENS)
@pytest.mark.parametrize("path", [b"/v1/chat/completions", b"/v1/models", b"/v1/models/m", b"/v1/nothing"])
def test_a_bad_token_gets_one_fixed_answer(path: bytes, headers: Fields, caplog: pytest.LogCaptureFixture) -> None:
    """B18: on every path of the API the same 401, and nothing of the token in body or log."""
    with caplog.at_level(logging.DEBUG), ExchangeWorld(**GUARDED) as world:
        answer = world.get(path, b"POST", headers)
        assert answer.status == 401
        assert answer.error == {
            "message": "missing or invalid API key",
            "type": "authentication_error",
            "param": None,
            "code": "invalid_api_key",
        }
        assert [name for name, _ in answer.heads[0].headers] == [
            b"content-type",
            b"content-length",
            b"x-request-id",
            b"x-iop-reason",
        ]
        assert "alice" not in caplog.text
        assert TOKEN.decode() not in caplog.text


def test_a_good_token_passes_where_one_is_required() -> None:
    with ExchangeWorld(**GUARDED) as world:
        for headers in ([(b"authorization", b"Bearer " + TOKEN)], [(b"x-api-key", TOKEN)]):
            assert world.get(b"/v1/models", headers=headers).status == 200
        call = world.post(headers=[(b"authorization", b"Bearer " + TOKEN)])
        assert call.exchange.request.principal == ("alice", "laptop")
        world.link.answer(world.link.last, SSE_HEAD, end=OK)
        # What is not of the API has no tokens.
        assert world.get(b"/nowhere").status == 404
        world.assert_idle()


def test_without_the_requirement_a_bad_token_books_to_nobody() -> None:
    """B18."""
    with ExchangeWorld(**OPEN) as world:
        for headers in BAD_TOKENS:
            call = world.post(headers=headers)
            assert call.exchange.request.principal == ("anonymous", "")
            call.leave()
            world.link.answer(world.link.last, status=1)
        world.assert_idle()


def test_two_different_tokens_are_refused_in_any_case() -> None:
    with ExchangeWorld(**OPEN) as world:
        answer = world.get(b"/v1/models", headers=[(b"authorization", b"Bearer " + TOKEN), (b"x-api-key", b"other")])
        assert (answer.status, answer.error["code"]) == (401, "invalid_api_key")


@pytest.mark.parametrize("coding", [b"gzip", b"br", b"x-unknown", b"gzip, identity"])
def test_an_encoded_body_is_a_415_before_it_is_read(coding: bytes) -> None:
    with ExchangeWorld() as world:
        call = world.open(headers=[(b"content-encoding", coding)], length=10)
        assert (call.downstream.status, call.downstream.error["code"]) == (415, "unsupported_content_encoding")
        assert call.receiver is ANSWERED
        world.assert_idle()


def test_identity_is_no_encoding() -> None:
    with ExchangeWorld() as world:
        assert isinstance(world.open(headers=[(b"content-encoding", b"Identity")]).receiver, Exchange)


@pytest.mark.parametrize("values", [[], [b""], [b" "], [b"Bearer"], [b"a", b"b"]])
def test_a_missing_provider_token_is_a_401_before_admission(values: list[bytes]) -> None:
    with ExchangeWorld(**FORWARDING) as world:
        headers = [(b"x-iop-provider-authorization", value) for value in values]
        answer = world.open(headers=headers, length=10).downstream
        assert (answer.status, answer.error["code"]) == (401, "missing_provider_authorization")
        assert world.gate.counters()["submitted"] == 0
        assert world.get(b"/v1/models").status == 200


def test_a_provider_token_goes_into_the_selected_tunnel_alone() -> None:
    """B17: the token that was brought for the provider, once and with its scheme; nothing of the gateway's."""
    with ExchangeWorld(**FORWARDING) as world:
        for value in (b"tok", b"Bearer tok"):
            call = world.post(
                headers=[
                    (b"authorization", b"Bearer gateway"),
                    (b"x-api-key", b"gateway"),
                    (b"cookie", b"c=1"),
                    (b"x-iop-provider-authorization", value),
                    (b"accept", b"*/*"),
                ]
            )
            fields = list(world.link.openings[world.link.last].headers)
            assert fields == [
                (b"accept", b"*/*"),
                (b"x-request-id", call.exchange.request.id),
                (b"authorization", b"Bearer tok"),
            ]
            world.link.answer(world.link.last, SSE_HEAD, end=OK)
        world.assert_idle()


def test_an_optional_provider_token_may_be_absent() -> None:
    with ExchangeWorld(openai={"provider_auth": {"enabled": True, "required": False}}) as world:
        world.post(headers=[(b"authorization", b"Bearer gateway"), (b"x-iop-provider-authorization", b"")])
        assert [name for name, _ in world.link.openings[world.link.last].headers] == [b"x-request-id"]
        world.link.answer(world.link.last, SSE_HEAD, end=OK)


def test_draining_refuses_everything_new() -> None:
    with ExchangeWorld() as world:
        world.edge.start_draining()
        for call in (world.open(), world.open(path=b"/v1/models", method=b"GET")):
            answer = call.downstream
            assert (answer.status, answer.error["code"]) == (503, "draining")
            assert answer.field(b"connection") == b"close"
        world.assert_idle()


def test_a_bug_in_the_decision_is_a_500(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError

    with ExchangeWorld() as world:
        monkeypatch.setattr("iop_fast.edge.service.find_route", fail)
        answer = world.get(b"/v1/models")
        assert (answer.status, answer.error["code"]) == (500, "internal")
        assert "open_failed" in caplog.text


def test_the_front_s_own_refusals_look_like_the_others() -> None:
    with ExchangeWorld() as world:
        head, body = world.service.render(Failure.HEAD_TOO_LARGE, "the head is too large")
        assert head.status == 431
        assert dict(head.headers)[b"x-iop-reason"] == b"head_too_large"
        assert len(dict(head.headers)[b"x-request-id"]) == 32
        assert json.loads(body)["error"]["code"] == "head_too_large"


def test_anthropic_s_paths_refuse_in_anthropic_s_words() -> None:
    with ExchangeWorld(**GUARDED) as world:
        body = json.loads(world.get(b"/v1/messages", b"POST").body)
        assert body == {
            "type": "error",
            "error": {"type": "authentication_error", "message": "missing or invalid API key"},
        }


def test_a_body_that_cannot_fit_is_refused_from_its_length() -> None:
    with ExchangeWorld([provider_spec("n1", "p1")], openai={"limits": {"body_bytes": 2048}}) as world:
        call = world.open(length=2049)
        assert (call.downstream.status, call.downstream.error["code"]) == (413, "request_too_large")
        assert call.downstream.field(b"connection") == b"close"
        assert call.exchange.is_done
        world.assert_idle()


def test_a_head_that_comes_again_is_decided_as_before_until_the_configuration_changes() -> None:
    with ExchangeWorld() as world:
        memo = HeadMemo()
        headers = [(b"host", b"a"), (b"x-a", b"1"), (b"authorization", b"Bearer t")]
        calls = [
            Call(world.service.open(RequestHead(b"POST", b"/v1/chat/completions", b"", headers, 2, memo), call), call)
            for call in (FakeDownstream(), FakeDownstream(), FakeDownstream())
        ]
        first, second, third = (call.exchange.request for call in calls)
        assert second.passed is first.passed
        assert (second.surface, second.principal, second.boundary) == (first.surface, first.principal, first.boundary)
        assert len({first.id, second.id, third.id}) == 3
        world.edge.runtime = replace(world.edge.runtime, revision=world.edge.runtime.revision + 1)
        downstream = FakeDownstream()
        head = RequestHead(b"POST", b"/v1/chat/completions", b"", headers, 2, memo)
        fresh = Call(world.service.open(head, downstream), downstream)
        assert fresh.exchange.request.passed == first.passed
        assert fresh.exchange.request.passed is not first.passed
        for call in (*calls, fresh):
            call.leave()
        world.assert_idle()


def test_what_a_head_is_refused_for_is_not_remembered() -> None:
    with ExchangeWorld() as world:
        memo = HeadMemo()
        for _ in range(2):
            downstream = FakeDownstream()
            world.service.open(RequestHead(b"GET", b"/nowhere", b"", [], 0, memo), downstream)
            assert downstream.status == 404
        assert memo.made is None
