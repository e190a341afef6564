"""What is changed in a body: the served model's name, a policy's parameters, and no other byte."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from iop_fast._core.scan import BodyScan
from iop_fast.config.schema import Generation
from iop_fast.edge.body import Body, ByteBudget, EditedBody, apply_edits
from iop_fast.edge.edits import PARAMETERS, is_above, plan_edits
from iop_fast.edge.routes import SURFACES

CHAT = b"/v1/chat/completions"


def edited(
    content: bytes, served: str = "s", path: bytes = CHAT, policy: Generation | None = None
) -> tuple[bytes, list[str]]:
    scan = BodyScan()
    scan.feed(content)
    scan.finish()
    body = Body(ByteBudget(1 << 30), 1 << 30, None)
    body.append(content)
    edits, clamped = plan_edits(scan, body, orjson.dumps(served), path, policy)
    result = EditedBody(body, edits)
    text = result.piece(0, result.size)
    assert text == apply_edits(content, edits)
    return text, list(clamped)


def policy_of(**values: Any) -> Generation:
    return Generation.model_validate(values)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b'{"model":"a"}', b'{"model":"s"}'),
        (b'{ "model" : "a" , "x":1 }\n', b'{ "model" : "s" , "x":1 }\n'),
        (b'{"x":{"model":"a"},"model":"a","y":["model","a"]}', b'{"x":{"model":"a"},"model":"s","y":["model","a"]}'),
        (b'{"\\u006dodel":"a"}', b'{"\\u006dodel":"s"}'),
        (b'{"model":"\\u0061"}', b'{"model":"s"}'),
        (b'{"model":"s","n": 1.50e2}', b'{"model":"s","n": 1.50e2}'),
        (b'{"model":"\\u0073"}', b'{"model":"s"}'),
        ('{"text":"모델 \\ud55c","model":"a"}'.encode(), '{"text":"모델 \\ud55c","model":"s"}'.encode()),
    ],
)
def test_only_the_model_s_text_is_replaced(content: bytes, wanted: bytes) -> None:
    """B23: the top-level model alone, wherever it stands; every other byte arrives as it was sent."""
    assert edited(content) == (wanted, [])


def test_a_served_name_is_written_as_json() -> None:
    assert edited(b'{"model":"a"}', 'say "hi" \\ 모델')[0] == '{"model":"say \\"hi\\" \\\\ 모델"}'.encode()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(
    st.dictionaries(st.text(max_size=6).filter(lambda key: key.lower() not in ("model", "stream")), JSON, max_size=5),
    st.text(min_size=1, max_size=20, alphabet=st.characters(codec="utf-8")),
    st.booleans(),
)
def test_the_edited_body_says_the_same_but_for_the_model(rest: dict[str, Any], model: str, is_first: bool) -> None:
    members = {"model": model, **rest} if is_first else {**rest, "model": model}
    text, _ = edited(json.dumps(members).encode(), "served")
    assert json.loads(text) == {**members, "model": "served"}
    assert list(json.loads(text)) == list(members)


def test_defaults_fill_in_what_the_request_leaves_out() -> None:
    policy = policy_of(defaults={"temperature": 0.5, "seed": 7, "max_tokens": 100})
    text, clamped = edited(b'{"model":"a","seed":null}', policy=policy)
    assert text == b'{"temperature":0.5,"max_tokens":100,"model":"s","seed":null}'
    assert clamped == []
    text, _ = edited(b'{"model":"a","max_completion_tokens":5}', policy=policy)
    assert text == b'{"temperature":0.5,"seed":7,"model":"s","max_completion_tokens":5}'


def test_a_default_is_never_above_the_ceiling() -> None:
    policy = policy_of(defaults={"max_tokens": 100}, max_tokens_ceiling=60)
    assert edited(b'{"model":"a"}', policy=policy) == (b'{"max_tokens":60,"model":"s"}', [])


@pytest.mark.parametrize(
    ("field", "clamped"),
    [
        (b"1000", True),
        (b"101", True),
        (b"1e9", True),
        (b"1e400", True),
        (b"100.5", True),
        (b"9" * 40, True),
        (b"100", False),
        (b"1", False),
        (b"1e2", False),
        (b"-5", False),
        (b"null", False),
        (b'"1000"', False),
        (b"[1000]", False),
        (b"true", False),
    ],
)
def test_a_limit_above_the_ceiling_is_lowered_and_named(field: bytes, clamped: bool) -> None:
    policy = policy_of(max_tokens_ceiling=100)
    text, names = edited(b'{"max_tokens": ' + field + b' ,"model":"a"}', policy=policy)
    assert text == b'{"max_tokens": ' + (b"100" if clamped else field) + b' ,"model":"s"}'
    assert names == (["max_tokens"] if clamped else [])


def test_both_spellings_of_the_limit_are_held_to_the_ceiling() -> None:
    policy = policy_of(max_tokens_ceiling=10)
    text, names = edited(b'{"max_completion_tokens":20,"model":"a","max_tokens":30}', policy=policy)
    assert text == b'{"max_completion_tokens":10,"model":"s","max_tokens":10}'
    assert names == ["max_tokens", "max_completion_tokens"]


def test_a_surface_gets_parameters_that_it_knows() -> None:
    policy = policy_of(defaults={"temperature": 1.0, "min_p": 0.1, "top_k": 5, "max_tokens": 50}, max_tokens_ceiling=50)
    assert edited(b'{"model":"a"}', path=b"/v1/responses", policy=policy)[0] == (
        b'{"temperature":1.0,"max_output_tokens":50,"model":"s"}'
    )
    assert edited(b'{"model":"a","max_tokens":99}', path=b"/v1/messages", policy=policy) == (
        b'{"temperature":1.0,"top_k":5,"model":"s","max_tokens":50}',
        ["max_tokens"],
    )
    for path in (b"/v1/embeddings", b"/v1/messages/count_tokens"):
        assert edited(b'{"model":"a","max_tokens":99}', path=path, policy=policy) == (
            b'{"model":"s","max_tokens":99}',
            [],
        )


def test_parameters_are_known_for_surfaces_and_defaults_that_exist() -> None:
    assert set(PARAMETERS) <= set(SURFACES)
    known = set(policy_of().defaults.model_dump())
    for parameters in PARAMETERS.values():
        assert set(parameters.defaults) <= known - {"max_tokens"}


def test_numbers_are_compared_as_numbers() -> None:
    assert is_above(b"11", 10)
    assert not is_above(b"9", 10)
    assert not is_above(b"10", 10)
