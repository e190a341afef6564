"""The official Anthropic SDK against real processes: x-api-key, whole, streamed, counted, errors as its own classes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from hashlib import sha256
from typing import Any

import anthropic
import pytest
from anthropic import Anthropic, AsyncAnthropic

from tests.fakes.all_apis import PROMPT_TOKENS, AllApis
from tests.integration.served import Served

KEY = "sk-of-a-caller"
WORDS = "w0 w1 w2 w3 w4 "
PRINCIPALS = {
    "require_principal": True,
    "principal_tokens": [
        {"token_ref": "laptop", "token_hash_sha256": sha256(KEY.encode()).hexdigest(), "principal_ref": "someone"}
    ],
}
ASK: Any = {"model": "m", "max_tokens": 16, "messages": [{"role": "user", "content": "hi"}]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("anthropic"), openai=PRINCIPALS) as made:
        yield made


@pytest.fixture
def client(served: Served) -> Iterator[Anthropic]:
    served.backend.script = AllApis()
    with Anthropic(base_url=served.fleet.base_url.removesuffix("/v1"), api_key=KEY, max_retries=0, timeout=20) as made:
        yield made


def booked(served: Served) -> dict[str, int]:
    rows = [row for row in served.status()["usage"]["rows"] if row["principal"] == "someone"]
    assert all(row["token_ref"] == "laptop" for row in rows)
    return {name: sum(row[name] for row in rows) for name in ("complete", "partial", "prompt_tokens", "cached_tokens")}


def test_a_whole_message_is_booked_to_the_key_s_principal(served: Served, client: Anthropic) -> None:
    before = booked(served)
    answered = client.messages.create(**ASK)
    assert answered.content[0].type == "text"
    assert answered.content[0].text == WORDS
    assert answered._request_id is not None
    assert len(answered._request_id) == 32
    after = booked(served)
    assert after["complete"] - before["complete"] == 1
    # Anthropic counts cached tokens beside the others; the books count them among the prompt's.
    assert after["prompt_tokens"] - before["prompt_tokens"] == PROMPT_TOKENS + 3
    assert after["cached_tokens"] - before["cached_tokens"] == 3


def test_the_key_goes_no_further(served: Served, client: Anthropic) -> None:
    client.messages.create(**ASK)
    last = served.backend.requests[-1]
    assert KEY.encode() not in last.head + bytes(last.body)
    assert len(last.values(b"anthropic-version")) == 1


def test_a_streamed_message(client: Anthropic) -> None:
    with client.messages.stream(**ASK) as stream:
        assert "".join(stream.text_stream) == WORDS
        assert stream.get_final_message().usage.output_tokens == 5


def test_async_streams_side_by_side(served: Served) -> None:
    served.backend.script = AllApis()

    async def ask(client: AsyncAnthropic) -> str:
        async with client.messages.stream(**ASK) as stream:
            return "".join([text async for text in stream.text_stream])

    async def work() -> None:
        base = served.fleet.base_url.removesuffix("/v1")
        async with AsyncAnthropic(base_url=base, api_key=KEY, max_retries=5) as client:
            assert await asyncio.gather(*(ask(client) for _ in range(3))) == [WORDS] * 3

    asyncio.run(work())


def test_tokens_are_counted_and_none_are_booked(served: Served, client: Anthropic) -> None:
    before = booked(served)
    counted = client.messages.count_tokens(model="m", messages=ASK["messages"])
    assert counted.input_tokens == PROMPT_TOKENS
    assert booked(served) == before


def test_errors_are_the_sdk_s_own(served: Served, client: Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError) as unknown:
        client.messages.create(**{**ASK, "model": "mm"})
    assert unknown.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert unknown.value.request_id == unknown.value.response.headers["x-request-id"]
    with pytest.raises(anthropic.AuthenticationError):
        client.with_options(api_key="sk-unknown").messages.create(**ASK)
    with pytest.raises(anthropic.BadRequestError):
        client.with_options(api_key=KEY).messages.create(**ASK, extra_body={"model": 5})


def test_a_stream_that_breaks_off_raises(served: Served, client: Anthropic) -> None:
    before = booked(served)
    served.backend.script = AllApis(breaks_after=4)
    with pytest.raises(anthropic.APIStatusError) as caught, client.messages.stream(**ASK) as stream:
        list(stream)
    assert caught.value.body["error"]["type"] == "api_error"  # type: ignore[index]
    assert booked(served)["partial"] - before["partial"] == 1
