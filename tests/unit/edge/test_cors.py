"""Pages in browsers: none by default, those of the list when there is one."""

from __future__ import annotations

from tests.unit.edge.exchange_world import JSON_HEAD, OK, ExchangeWorld, FakeDownstream, Fields

PAGE = b"https://chat.example.org"
LISTED = {"openai": {"cors_origins": [PAGE.decode()], "require_principal": True}}
OPEN = {"openai": {"cors_origins": [PAGE.decode()]}}
CHAT = b"/v1/chat/completions"


def preflight(world: ExchangeWorld, origin: bytes, *more: tuple[bytes, bytes]) -> FakeDownstream:
    fields: Fields = [(b"origin", origin), (b"access-control-request-method", b"POST"), *more]
    return world.get(CHAT, b"OPTIONS", fields)


def test_a_known_page_may_ask_and_needs_no_token_for_it() -> None:
    with ExchangeWorld(**LISTED) as world:
        answer = preflight(world, PAGE, (b"access-control-request-headers", b"authorization,content-type"))
        assert (answer.status, answer.body) == (204, b"")
        assert answer.field(b"access-control-allow-origin") == PAGE
        assert answer.field(b"access-control-allow-headers") == b"authorization,content-type"
        assert answer.field(b"vary") == b"Origin"
        assert (
            preflight(world, PAGE, (b"access-control-request-headers", b"a b")).field(b"access-control-allow-headers")
            is None
        )


def test_other_pages_and_other_requests_get_no_permission() -> None:
    with ExchangeWorld(**LISTED) as world:
        for answer in (preflight(world, b"https://evil.example"), world.get(CHAT, b"OPTIONS", [(b"origin", PAGE)])):
            assert answer.status == 401
        assert preflight(world, b"https://evil.example").field(b"access-control-allow-origin") is None
        assert world.get(CHAT, b"OPTIONS", [(b"origin", PAGE), (b"origin", PAGE)]).status == 401


def test_answers_and_refusals_name_the_page_and_the_provider_does_not_hear_of_it() -> None:
    with ExchangeWorld(**OPEN) as world:
        call = world.post(headers=[(b"origin", PAGE), (b"x-a", b"1")])
        assert b"origin" not in dict(world.link.openings[1].headers)
        assert dict(world.link.openings[1].headers)[b"x-a"] == b"1"
        world.link.answer(1, JSON_HEAD, b"{}", end=OK)
        refused = world.post(b"[]", headers=[(b"origin", PAGE)])
        listed = world.get(b"/v1/models", headers=[(b"origin", PAGE)])
        for answer in (call.downstream, refused.downstream, listed):
            assert answer.field(b"access-control-allow-origin") == PAGE
            assert answer.field(b"access-control-expose-headers") is not None
        foreign = world.get(b"/v1/models", headers=[(b"origin", b"https://evil.example")])
        assert foreign.field(b"access-control-allow-origin") is None
        assert foreign.field(b"vary") == b"Origin"


def test_without_a_list_nothing_is_said_and_nothing_taken_away() -> None:
    with ExchangeWorld() as world:
        assert preflight(world, PAGE).status == 405
        call = world.post(headers=[(b"origin", PAGE)])
        assert dict(world.link.openings[1].headers)[b"origin"] == PAGE
        world.link.answer(1, JSON_HEAD, b"{}", end=OK)
        assert call.downstream.field(b"vary") is None
