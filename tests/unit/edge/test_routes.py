"""The URL space, and what surfaces and providers can."""

from __future__ import annotations

from typing import get_args

import pytest

from iop_fast._core import scan
from iop_fast.config.schema import ADAPTER_OF_TYPE
from iop_fast.config.schema.fleet import ABILITIES_OF_ADAPTER, NORMALIZED_ABILITIES, Ability
from iop_fast.edge import needs
from iop_fast.edge.refusals import is_supported
from iop_fast.edge.routes import (
    SURFACES,
    Dialect,
    ModelList,
    ModelPage,
    NotFound,
    Surface,
    WrongMethod,
    dialect_of,
    find_route,
    is_api,
)


@pytest.mark.parametrize("path", list(SURFACES))
def test_a_surface_takes_posts_alone(path: bytes) -> None:
    assert find_route(b"POST", path) is SURFACES[path]
    for method in (b"GET", b"HEAD", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"):
        assert find_route(method, path) == WrongMethod(b"POST")


def test_models_are_read_alone() -> None:
    for method in (b"GET", b"HEAD"):
        assert find_route(method, b"/v1/models") == ModelList()
        assert find_route(method, b"/v1/models/m") == ModelPage("m")
    for path in (b"/v1/models", b"/v1/models/m"):
        assert find_route(b"POST", path) == WrongMethod(b"GET, HEAD")
        assert find_route(b"DELETE", path) == WrongMethod(b"GET, HEAD")


@pytest.mark.parametrize(
    ("raw", "model"),
    [
        (b"org/model:8b", "org/model:8b"),
        (b"org%2Fmodel%3a8b", "org/model:8b"),
        (b"org%252Fmodel", "org%2Fmodel"),
        (b"%EB%AA%A8%EB%8D%B8", "모델"),
        (b"a+b", "a+b"),
        (b"m/", "m/"),
        (b"%", None),
        (b"%2", None),
        (b"%zz", None),
        (b"%+1", None),
        (b"%ff", None),
    ],
)
def test_a_model_id_is_percent_decoded_once(raw: bytes, model: str | None) -> None:
    assert find_route(b"GET", b"/v1/models/" + raw) == ModelPage(model)


@pytest.mark.parametrize(
    "path",
    [
        b"/",
        b"/v1",
        b"/v1/",
        b"/v1/chat",
        b"/v1/chat/completions/",
        b"/v1//chat/completions",
        b"/v1/chat%2Fcompletions",
        b"/v1/models/",
        b"/V1/models",
        b"/refresh",
        b"/metrics",
        b"/v1/messages/count_tokens/x",
    ],
)
def test_other_paths_do_not_exist(path: bytes) -> None:
    for method in (b"GET", b"POST"):
        assert find_route(method, path) == NotFound()


def test_the_dialect_of_an_error_is_the_path_s() -> None:
    assert dialect_of(b"/v1/messages") is Dialect.ANTHROPIC
    assert dialect_of(b"/v1/messages/count_tokens") is Dialect.ANTHROPIC
    assert dialect_of(b"/v1/responses") is Dialect.RESPONSES
    assert dialect_of(b"/v1/chat/completions") is Dialect.OPENAI
    assert dialect_of(b"/nowhere") is Dialect.OPENAI
    assert is_api(b"/v1/nowhere")
    assert not is_api(b"/v1")


def test_every_bit_is_its_own() -> None:
    bits = list(needs.NAMES)
    assert len({bit.bit_length() for bit in bits}) == len(bits)
    assert all(bit.bit_count() == 1 for bit in bits)
    assert sum(bits) == needs.EVERYTHING
    features = scan.FEATURE_TOOLS | scan.FEATURE_IMAGES | scan.FEATURE_AUDIO | scan.FEATURE_JSON_SCHEMA
    assert features < needs.SURFACE_CHAT
    assert all(isinstance(surface, Surface) and surface.bit in needs.NAMES for surface in SURFACES.values())


def test_every_adapter_type_of_the_schema_has_its_abilities() -> None:
    assert set(needs.CAN_OF_ADAPTER) == set(ADAPTER_OF_TYPE.values())
    assert needs.can_of("openai_compat") == needs.EVERYTHING
    with pytest.raises(KeyError):
        needs.can_of("unheard_of")


def test_what_the_file_says_a_provider_can() -> None:
    assert set(needs.ABILITIES) == set(get_args(Ability))
    assert sum(needs.ABILITIES[word] for word in NORMALIZED_ABILITIES) == needs.NORMALIZED
    for kind in ("ollama", "cli"):
        words = sum(needs.ABILITIES[word] for word in ABILITIES_OF_ADAPTER[kind])
        assert words == needs.CAN_OF_ADAPTER[kind] & needs.NORMALIZED
    assert needs.can_of("native", ["embeddings"]) & needs.NORMALIZED == needs.SURFACE_EMBEDDINGS
    assert needs.can_of("native", ["chat", "audio"]) & needs.NORMALIZED == needs.SURFACE_CHAT | scan.FEATURE_AUDIO
    assert needs.can_of("cli", ["chat"]) == needs.SURFACE_CHAT
    narrowed = needs.can_of("openai_compat", ["chat"])
    assert narrowed & needs.LOGPROBS
    assert narrowed & sum(needs.ABILITIES.values()) == needs.SURFACE_CHAT
    with pytest.raises(KeyError):
        needs.can_of("native", ["dance"])


def test_what_is_missing_is_named() -> None:
    chat_tools = needs.SURFACE_CHAT | scan.FEATURE_TOOLS
    assert is_supported([needs.SURFACE_CHAT, chat_tools], chat_tools)
    assert not is_supported([needs.SURFACE_CHAT], chat_tools)
    assert not is_supported([], needs.SURFACE_CHAT)
    assert needs.missing_names([needs.SURFACE_CHAT], chat_tools) == ["tools"]
    assert needs.missing_names([0], needs.SURFACE_CHAT) == ["/v1/chat/completions"]
    # Each is there, but no provider has both.
    apart = [needs.SURFACE_CHAT, needs.SURFACE_EMBEDDINGS | scan.FEATURE_TOOLS]
    assert not is_supported(apart, chat_tools)
    assert needs.missing_names(apart, chat_tools) == ["/v1/chat/completions", "tools"]
