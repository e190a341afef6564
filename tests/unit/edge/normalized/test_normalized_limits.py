"""What no normalized run carries is found in a request before anybody is asked."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from iop_fast.edge import needs
from iop_fast.edge.normalized.limits import INPUT_VALUES_MAX, READ_BYTES_MAX, VALUES_MAX, tunnel_needs
from tests.unit.edge.exchange_world import ExchangeWorld, provider_spec
from tests.unit.edge.normalized.bodies import CHAT, COMPLETIONS, EMBEDDINGS, body_of


def found(path: bytes, **fields: Any) -> int:
    body, scan = body_of(json.dumps({"model": "m", **fields}).encode())
    return tunnel_needs(scan, body, path)


@pytest.mark.parametrize(
    ("path", "name", "value", "bit"),
    [
        (CHAT, "n", 2, needs.SEVERAL_CHOICES),
        (CHAT, "n", "2", needs.SEVERAL_CHOICES),
        (CHAT, "n", 1, 0),
        (CHAT, "n", None, 0),
        (CHAT, "logprobs", True, needs.LOGPROBS),
        (CHAT, "logprobs", False, 0),
        (CHAT, "top_logprobs", 3, needs.LOGPROBS),
        (CHAT, "functions", [{"name": "f"}], needs.FUNCTIONS),
        (CHAT, "functions", [], 0),
        (CHAT, "function_call", "auto", needs.FUNCTIONS),
        (CHAT, "modalities", ["text"], 0),
        (CHAT, "modalities", [], 0),
        (CHAT, "modalities", ["text", "audio"], needs.SPOKEN_ANSWERS),
        (CHAT, "audio", {"voice": "a"}, needs.SPOKEN_ANSWERS),
        (CHAT, "web_search_options", {}, needs.WEB_SEARCH),
        (CHAT, "web_search_options", None, 0),
        (CHAT, "best_of", 3, 0),
        (COMPLETIONS, "best_of", 3, needs.SEVERAL_CHOICES),
        (COMPLETIONS, "n", 3, needs.SEVERAL_CHOICES),
        (COMPLETIONS, "logprobs", 0, needs.LOGPROBS),
        (COMPLETIONS, "echo", True, needs.ECHO),
        (COMPLETIONS, "echo", False, 0),
        (COMPLETIONS, "prompt", [1, 2], needs.TOKEN_ARRAYS),
        (COMPLETIONS, "prompt", [[1], [2]], needs.TOKEN_ARRAYS),
        (COMPLETIONS, "prompt", ["1"], 0),
        (COMPLETIONS, "prompt", ["1", "2"], needs.SEVERAL_PROMPTS),
        (COMPLETIONS, "prompt", [], 0),
        (EMBEDDINGS, "input", ["1", "2"], 0),
        (CHAT, "response_format", {"type": "json_object"}, needs.JSON_OBJECT),
        (CHAT, "response_format", {"type": "text"}, 0),
        (CHAT, "response_format", "json_object", needs.JSON_OBJECT),
        (COMPLETIONS, "response_format", {"type": "json_object"}, needs.JSON_OBJECT),
        (COMPLETIONS, "prompt", "[1]", 0),
        (EMBEDDINGS, "input", [-1], needs.TOKEN_ARRAYS),
        (EMBEDDINGS, "input", [], 0),
        (b"/v1/responses", "n", 2, 0),
    ],
)
def test_a_field(path: bytes, name: str, value: Any, bit: int) -> None:
    assert found(path, **{name: value}) == bit


def test_space_before_a_number_is_no_text() -> None:
    body, scan = body_of(b'{"model":"m","input":[ \n [ 1 ] ]}')
    assert tunnel_needs(scan, body, EMBEDDINGS) == needs.TOKEN_ARRAYS


def test_a_suffix_is_no_prompt() -> None:
    assert found(COMPLETIONS, prompt=["a"], suffix="b") == 0
    assert found(COMPLETIONS, prompt=["a", "b"], suffix="b") == needs.SEVERAL_PROMPTS
    assert found(COMPLETIONS, prompt="a", suffix="b") == 0


def test_a_body_of_too_much_to_read() -> None:
    text = "x" * READ_BYTES_MAX
    assert found(CHAT, messages=[{"role": "user", "content": text}]) == needs.BULK
    assert found(CHAT, messages=[{"role": "user", "content": text[:-200]}]) == 0
    assert found(CHAT, messages=[{"role": "user", "content": "x"}] * (INPUT_VALUES_MAX // 3)) == needs.BULK
    assert found(CHAT, messages=[{"role": "user", "content": "x"}] * (INPUT_VALUES_MAX // 3 - 1)) == 0
    assert found(CHAT, tools=[0] * VALUES_MAX) == needs.BULK
    assert found(CHAT, tools=[0] * (VALUES_MAX - 3)) == 0


def test_media_is_not_read_and_counts_for_nothing() -> None:
    url = "data:image/png;base64," + base64.b64encode(bytes(2 * READ_BYTES_MAX)).decode()
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    assert found(CHAT, messages=[{"role": "user", "content": parts}]) == 0
    parts.append({"type": "text", "text": "x" * READ_BYTES_MAX})
    assert found(CHAT, messages=[{"role": "user", "content": parts}]) == needs.BULK


REMOTE: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://a/b.png"}}]}]
VIDEO: Any = [{"role": "user", "content": [{"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AA=="}}]}]
FILE: Any = [{"role": "user", "content": [{"type": "file", "file": {"file_data": "AA=="}}]}]


@pytest.mark.parametrize(
    ("path", "fields", "who", "words"),
    [
        (CHAT, {"messages": REMOTE}, {"tunnel"}, "images and sound by URL (data: URLs may be)"),
        (CHAT, {"messages": VIDEO}, {"tunnel"}, "video and files"),
        (CHAT, {"messages": FILE}, {"tunnel"}, "video and files"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, {"tunnel", "native"}, "several prompts"),
        (CHAT, {"response_format": {"type": "json_object"}}, {"tunnel", "native", "ollama"}, "json_object"),
    ],
)
def test_of_every_kind_those_that_can_are_asked(path: bytes, fields: dict[str, Any], who: set[str], words: str) -> None:
    """Whoever is free, the answer is the same: it goes to who can, and is refused by name where nobody can."""
    kinds = {"tunnel": "openai_compat", "ollama": "ollama", "cli": "cli", "native": "native"}
    providers = [provider_spec("n1", name, type=kind, adapter_type=kind, capacity=9) for name, kind in kinds.items()]
    alone = {f"only-{name}": {name: "a"} for name in kinds}
    fields = {"messages": [{"role": "user", "content": "x"}], **fields} if path == CHAT else fields
    with ExchangeWorld(providers, {"all": dict.fromkeys(kinds, "a"), **alone}) as world:
        asked = [world.post({"model": "all", **fields}, path=path) for _ in range(4)]
        assert {call.exchange.provider_id for call in asked} == who
        for name in kinds:
            call = world.post({"model": f"only-{name}", **fields}, path=path)
            if name in who:
                assert call.exchange.provider_id == name
            else:
                assert call.downstream.error["code"] == "unsupported_by_model"
                assert words in call.downstream.error["message"]


def test_it_goes_to_who_can() -> None:
    providers = [
        provider_spec("n1", "plain", type="ollama", adapter_type="ollama", priority=-1),
        provider_spec("n1", "whole"),
    ]
    models = {"both": {"plain": "a", "whole": "b"}, "plain": {"plain": "a"}}
    with ExchangeWorld(providers, models) as world:
        call = world.post({"model": "both", "messages": [{"role": "user", "content": "x"}], "n": 2})
        assert call.exchange.provider_id == "whole"
        call = world.post({"model": "plain", "messages": [{"role": "user", "content": "x"}], "n": 2, "logprobs": True})
        assert call.downstream.error["code"] == "unsupported_by_model"
        assert "several choices (n, best_of), logprobs" in call.downstream.error["message"]
        call = world.post({"model": "plain", "input": "x"}, path=b"/v1/responses")
        assert "/v1/responses" in call.downstream.error["message"]
        call = world.post({"model": "both", "messages": [{"role": "user", "content": "x"}]})
        assert call.exchange.provider_id == "plain"
