"""Audio uploads: a form goes to the provider as it came, but for the model's name; and what is no form is refused."""

from __future__ import annotations

import random
from typing import Any

import pytest

from iop_fast._core.scan import AUDIO_TOKENS
from iop_fast.edge.media import BadMedia, is_json, read_boundary
from iop_fast.wire.options import PIECE_BYTES
from iop_fast.wire.runtime_pb2 import RunEnd
from tests.unit.edge.exchange_world import JSON_HEAD, OK, ExchangeWorld, provider_spec

PATH = b"/v1/audio/transcriptions"
PATHS = [PATH, b"/v1/audio/translations"]
BOUNDARY = b"----WebKitFormBoundary7MA4YWxkTrZu0gW"
FORM = (b"content-type", b"multipart/form-data; boundary=" + BOUNDARY)
WINDOW = 256 * 1024


def form(audio: bytes = b"RIFF....WAVE", model: bytes = b"m", *more: tuple[bytes, bytes]) -> bytes:
    """The form of a client that puts the file first and the model behind it."""
    line = b"--" + BOUNDARY
    body = (
        line + b'\r\nContent-Disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n'
    )
    body += audio + b"\r\n"
    for name, value in ((b"model", model), *more):
        body += line + b'\r\nContent-Disposition: form-data; name="%b"\r\n\r\n%b\r\n' % (name, value)
    return body + line + b"--\r\n"


@pytest.mark.parametrize("path", PATHS)
def test_a_form_reaches_the_provider_with_its_own_name_of_the_model(path: bytes) -> None:
    with ExchangeWorld() as world:
        body = form(bytes(range(256)), b"m", (b"stream", b"true"), (b"prompt", b"x" * 7))
        call = world.post(body, path=path, headers=[FORM])
        opening = world.link.openings[world.link.last]
        assert opening.body == body.replace(b"\r\n\r\nm\r\n", b"\r\n\r\nserved-m\r\n")
        assert (opening.body_length, opening.body_complete) == (len(opening.body), True)
        assert (opening.path, opening.model, opening.stream) == (path, "served-m", True)
        assert FORM in opening.headers
        assert call.exchange.estimated_tokens == AUDIO_TOKENS + 2
        world.link.answer(world.link.last, JSON_HEAD, b'{"text":"hi"}', end=OK)
        assert call.downstream.body == b'{"text":"hi"}'
        world.assert_idle()


def test_a_large_file_goes_on_piece_by_piece_byte_for_byte() -> None:
    audio = random.Random(3).randbytes(3 * WINDOW)
    body = form(audio)
    with ExchangeWorld() as world:
        call = world.open(path=PATH, headers=[FORM], length=len(body))
        for at in range(0, len(body), 100_001):
            call.receiver.on_body(body[at : at + 100_001])
        call.receiver.on_body_complete()
        world.loop.settle()
        run = world.link.last
        while run not in world.link.complete:
            before = len(world.link.bodies[run])
            world.link.runs[run].on_window(PIECE_BYTES)
            assert len(world.link.bodies[run]) > before
        assert bytes(world.link.bodies[run]) == body.replace(b"\r\n\r\nm\r\n", b"\r\n\r\nserved-m\r\n")
        world.link.answer(run, JSON_HEAD, b"{}", end=OK, taken=True)
        world.assert_idle()


def test_a_generation_policy_has_no_part_in_a_form() -> None:
    policy = {"m": {"defaults": {"temperature": 0.5, "max_tokens": 5}, "max_tokens_ceiling": 9}}
    with ExchangeWorld(policies=policy) as world:
        body = form(b"x", b"m", (b"temperature", b"1"), (b"max_tokens", b"99"))
        world.post(body, path=PATH, headers=[FORM])
        assert world.link.openings[world.link.last].body == body.replace(b"\r\nm\r\n", b"\r\nserved-m\r\n")
        world.link.answer(world.link.last, JSON_HEAD, b"{}", end=OK)
        world.assert_idle()


def test_a_provider_that_cannot_is_told_apart() -> None:
    with ExchangeWorld([provider_spec("n1", "p1", adapter_type="native", type="native")]) as world:
        answer = world.post(form(), path=PATH, headers=[FORM]).downstream
        assert (answer.status, answer.error["code"]) == (400, "unsupported_by_model")
        assert "/v1/audio/transcriptions" in answer.error["message"]
        world.assert_idle()


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        (form(b"x", b"nothing"), "model", "does not exist"),
        (form().replace(b'name="model"', b'name="Model"'), None, "another spelling"),
        (form(b"x", b"m", (b"model", b"other")), "model", "stands twice"),
        (form().replace(b'name="model"', b'name="mode"'), "model", "expected a field model"),
        (form()[:-6], None, "before its closing boundary"),
        (form().replace(b"\r\n", b"\n"), None, "behind a boundary"),
        (b"", None, "the body is empty"),
        (b'{"model":"m"}', None, "expected the boundary"),
    ],
)
def test_what_is_refused_says_why_and_reaches_nobody(body: bytes, param: str | None, words: str) -> None:
    with ExchangeWorld() as world:
        answer = world.post(body, path=PATH, headers=[FORM]).downstream
        assert answer.status in (400, 404)
        assert answer.error["param"] == param
        assert words in answer.error["message"]
        assert not world.link.openings
        world.assert_idle()


@pytest.mark.parametrize(
    ("path", "types", "status"),
    [
        (PATH, [], 415),
        (PATH, [b"application/json"], 415),
        (PATH, [b"multipart/mixed; boundary=b"], 415),
        (PATH, [b"application/x-www-form-urlencoded"], 415),
        (PATH, [FORM[1], FORM[1]], 415),
        (PATH, [b"multipart/form-data"], 400),
        (b"/v1/chat/completions", [b"text/plain"], 415),
        (b"/v1/chat/completions", [b"application/x-www-form-urlencoded"], 415),
        (b"/v1/chat/completions", [FORM[1]], 415),
        (b"/v1/chat/completions", [b"application/json; charset=utf-16"], 415),
        (b"/v1/chat/completions", [b"application/json", b"application/json"], 415),
        (b"/v1/chat/completions", [b""], 415),
    ],
)
def test_a_body_of_another_kind_than_the_path_s_is_refused(path: bytes, types: list[bytes], status: int) -> None:
    """A provider would read it in another way than the scan does; a page could send it without being asked."""
    with ExchangeWorld() as world:
        headers = [(b"content-type", value) for value in types]
        answer = world.open(path=path, headers=headers).downstream
        codes = {415: "unsupported_media_type", 400: "invalid_request"}
        assert (answer.status, answer.error["code"]) == (status, codes[status])
        assert "content-type" in answer.error["message"]
        world.assert_idle()


@pytest.mark.parametrize(
    "value",
    [
        b"application/json",
        b"Application/JSON",
        b"application/json;",
        b"application/json; charset=utf-8",
        b'application/json;charset="UTF-8"',
        b"application/json ; odata=verbose",
        b"application/vnd.api+json",
    ],
)
def test_types_of_json(value: bytes) -> None:
    assert is_json(value)
    with ExchangeWorld() as world:
        world.post(headers=[(b"content-type", value)])
        assert (b"content-type", value) in world.link.openings[world.link.last].headers
        world.link.answer(world.link.last, JSON_HEAD, b"{}", end=OK)


@pytest.mark.parametrize(
    ("value", "boundary"),
    [
        (b"multipart/form-data; boundary=b", b"b"),
        (b"Multipart/Form-Data;BOUNDARY=Ab", b"Ab"),
        (b'multipart/form-data; boundary="a:b/(c)=?"', b"a:b/(c)=?"),
        (b"multipart/form-data; charset=utf-8; boundary=b;", b"b"),
        (b"multipart/form-data; boundary=" + b"b" * 70, b"b" * 70),
    ],
)
def test_boundaries_that_are_read_one_way(value: bytes, boundary: bytes) -> None:
    assert read_boundary(value) == boundary


@pytest.mark.parametrize(
    "parameters",
    [
        b"",
        b"; boundary=",
        b'; boundary=""',
        b"; boundary=a; boundary=b",
        b"; boundary=a; Boundary=a",
        b"; boundary=a b",
        b"; boundary=a:b",
        b"; boundary=----=_Part_1",
        b'; boundary="a',
        b'; boundary="a\\"b"',
        b'; boundary="a;b"',
        b'; boundary="a b"',
        b"; boundary=a,b",
        b"; boundary = a",
        b"; boundary*=utf-8''a",
        b"; boundary=a; charset=utf-16",
        b"; boundary=a; x=y",
        b"; boundary=a; x",
        b"; boundary=" + b"b" * 71,
        b"; boundary=\xe9",
    ],
)
def test_boundaries_that_are_not(parameters: bytes) -> None:
    with pytest.raises(BadMedia, match="one boundary"):
        read_boundary(b"multipart/form-data" + parameters)


def test_a_form_is_admitted_again_where_its_provider_never_saw_it() -> None:
    providers = [provider_spec("n1", "p1"), provider_spec("n2", "p2")]
    models: dict[str, Any] = {"m": {"p1": "one", "p2": "the-other"}}
    with ExchangeWorld(providers, models) as world:
        body = form()
        world.post(body, path=PATH, headers=[FORM])
        first, second = world.links["n1"], world.links["n2"]
        first.answer(1, status=RunEnd.CONNECT_FAILED)
        world.loop.settle()
        assert first.openings[1].body == body.replace(b"\r\nm\r\n", b"\r\none\r\n")
        assert second.openings[2].body == body.replace(b"\r\nm\r\n", b"\r\nthe-other\r\n")
        second.answer(2, JSON_HEAD, b"{}", end=OK)
        world.assert_idle()
