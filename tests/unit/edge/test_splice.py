"""The splice: only the model's text is replaced, and the body is not copied."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_fast._core.scan import BodyScan
from iop_fast.edge.splice import splice_model

names = st.text(st.characters(codec="utf-8"), max_size=40)


def span_of(body: bytes | bytearray) -> tuple[int, int]:
    machine = BodyScan()
    machine.feed(body)
    machine.finish()
    return machine.model_span


@pytest.mark.parametrize("kind", [bytes, bytearray])
@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"alias","messages":[]}',
        b'{"messages":[{"content":"\\"model\\":\\"alias\\""}], "model" : "alias" }\r\n',
        b'{"\\u006dodel":"al\\u0069as","x":{"model":"alias"}}',
        b'{"model":""}',
    ],
)
def test_only_the_models_text_is_replaced(kind: type[bytes] | type[bytearray], body: bytes) -> None:
    """B23: all other bytes arrive as they were sent."""
    start, end = span_of(body)
    pieces, length = splice_model(kind(body), (start, end), "served/name:1")
    joined = b"".join(pieces)
    assert joined == body[:start] + b'"served/name:1"' + body[end:]
    assert length == len(joined)
    assert json.loads(joined)["model"] == "served/name:1"


def test_the_body_is_not_copied() -> None:
    body = bytearray(b'{"model":"a","prompt":"' + b"x" * 1000 + b'"}')
    pieces, _ = splice_model(body, span_of(body), "b")
    body[-3:-2] = b"y"
    assert bytes(pieces[-1]).endswith(b'xy"}')
    assert all(len(piece) for piece in pieces)


def test_a_body_that_names_the_served_model_is_one_piece() -> None:
    body = b'{"model":"same","messages":[]}'
    pieces, length = splice_model(body, span_of(body), "same")
    assert pieces == [body]
    assert length == len(body)


@pytest.mark.parametrize("span", [(0, 0), (0, 3), (5, 5), (6, 5), (5, 12), (5, 40), (-1, 3)])
def test_a_span_that_is_no_models_is_refused(span: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="span: expected"):
        splice_model(b'{"mode":1}  '[:12], span, "x")


@given(alias=names, served=names, before=names, after=names)
def test_any_names_are_written_as_json(alias: str, served: str, before: str, after: str) -> None:
    sent = {"before": before, "model": alias, "after": {"model": after}}
    for ascii_only in (True, False):
        body = json.dumps(sent, ensure_ascii=ascii_only).encode()
        pieces, length = splice_model(body, span_of(body), served)
        joined = b"".join(pieces)
        assert json.loads(joined) == {**sent, "model": served}
        assert length == len(joined)
