"""The official OpenAI SDK against real processes: whole, streamed, async, errors as its own classes."""

from __future__ import annotations

import asyncio
import io
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.fakes.all_apis import AllApis
from tests.fakes.openai_backend import Exchange, OpenAIScript, answer
from tests.integration.served import Served

MESSAGES: Any = [{"role": "user", "content": "hi"}]
WORDS = "w0 w1 w2 w3 w4 "


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with Served(tmp_path_factory.mktemp("sdk")) as made:
        yield made


@pytest.fixture
def client(served: Served) -> Iterator[OpenAI]:
    served.backend.script = OpenAIScript()
    with OpenAI(base_url=served.fleet.base_url, api_key="any", max_retries=0, timeout=20) as made:
        yield made


def test_a_whole_answer(client: OpenAI) -> None:
    answered = client.chat.completions.create(model="m", messages=MESSAGES)
    assert answered.choices[0].message.content == WORDS
    assert answered.usage is not None
    assert answered.usage.completion_tokens == 5
    assert answered._request_id


def test_a_stream(client: OpenAI) -> None:
    chunks = client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == WORDS


def test_usage_in_a_stream_only_where_asked(client: OpenAI) -> None:
    options: Any = {"include_usage": True}
    chunks = list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True, stream_options=options))
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == 12
    assert all(chunk.choices for chunk in client.chat.completions.create(model="m", messages=MESSAGES, stream=True))


def test_completions_and_embeddings(client: OpenAI) -> None:
    assert client.completions.create(model="m", prompt="hi").choices[0].text == WORDS
    assert client.embeddings.create(model="m", input=["a", "b"], encoding_format="float").data[1].embedding == [
        0.0,
        1.0,
    ]


def test_responses_whole_and_streamed(served: Served, client: OpenAI) -> None:
    served.backend.script = AllApis()
    whole = client.responses.create(model="m", input="hi", instructions="be brief")
    assert whole.output_text == WORDS
    assert whole.usage is not None
    assert (whole.usage.input_tokens, whole.usage.output_tokens) == (7, 5)
    events = list(client.responses.create(model="m", input="hi", stream=True))
    assert events[0].type == "response.created"
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == WORDS
    assert events[-1].type == "response.completed"
    with client.responses.stream(model="m", input="hi") as stream:
        assert stream.get_final_response().output_text == WORDS


def test_audio_is_transcribed_from_the_bytes_that_were_sent(served: Served, client: OpenAI) -> None:
    served.backend.script = AllApis()
    audio = random.Random(11).randbytes(700_000)
    said = f"talk \ud55c.wav {sha256(audio).hexdigest()} as served"
    file = ("talk \ud55c.wav", audio, "audio/wav")
    create: Any = client.audio.transcriptions.create
    whole = create(file=file, model="m", prompt="names", timestamp_granularities=["word"], language="en")
    assert (whole.text, whole.usage.input_tokens) == (said, 7)
    assert create(file=file, model="m", response_format="text") == said
    assert create(file=file, model="m", response_format="verbose_json").usage.seconds == 9
    events = list(create(file=file, model="m", stream=True))
    assert [event.type for event in events] == ["transcript.text.delta", "transcript.text.done"]
    assert events[-1].text == said
    with pytest.warns(DeprecationWarning, match="deprecated"):
        translated: Any = client.audio.translations.create(file=io.BytesIO(audio), model="m")
    assert translated.text == f"upload {sha256(audio).hexdigest()} as served"
    sent = bytes(served.backend.requests[-1].body)
    assert sent.count(audio) == 1
    assert served.backend.requests[-1].values(b"content-length") == [b"%d" % len(sent)]


def test_an_upload_that_names_no_model_of_ours_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.audio.transcriptions.create(file=("a.wav", b"RIFF"), model="mm")
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")


def test_a_response_that_breaks_off_is_an_error_and_no_answer(served: Served, client: OpenAI) -> None:
    served.backend.script = AllApis(breaks_after=3)
    with pytest.raises(openai.APIError) as caught:
        list(client.responses.create(model="m", input="hi", stream=True))
    assert "broke off" in str(caught.value)


def test_usage_is_booked_by_surface(served: Served, client: OpenAI) -> None:
    def booked() -> tuple[int, int]:
        rows = served.status()["usage"]["rows"]
        return sum(row["requests"] for row in rows), sum(row["completion_tokens"] for row in rows)

    served.backend.script = AllApis()
    before = booked()
    options: Any = {"include_usage": True}
    client.chat.completions.create(model="m", messages=MESSAGES)
    list(client.chat.completions.create(model="m", messages=MESSAGES, stream=True, stream_options=options))
    client.completions.create(model="m", prompt="hi")
    client.responses.create(model="m", input="hi")
    list(client.responses.create(model="m", input="hi", stream=True))
    upload: Any = {"file": ("a.wav", b"RIFF"), "model": "m"}
    client.audio.transcriptions.create(**upload)
    list(client.audio.transcriptions.create(**upload, stream=True))
    client.audio.transcriptions.create(**upload, response_format="verbose_json")  # a duration is no number of tokens
    after = booked()
    assert (after[0] - before[0], after[1] - before[1]) == (8, 35)
    assert served.status()["usage"]["estimates"][0]["ratio"] > 0


def test_the_model_list(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m", "team/m:8b"]
    found: Any = client.models.retrieve("team/m:8b")
    assert (found.id, found.iop) == ("team/m:8b", {"live_candidates": 1, "long_slots": 0})


def test_async_and_many_at_once(served: Served) -> None:
    served.backend.script = OpenAIScript()

    async def work() -> None:
        async with AsyncOpenAI(base_url=served.fleet.base_url, api_key="any", max_retries=5) as client:
            # A queue of one: the surplus gets 429 with Retry-After, and the SDK retries it through.
            texts = await asyncio.gather(*(ask(client) for _ in range(4)))
            assert texts == [WORDS] * 4

    async def ask(client: AsyncOpenAI) -> str:
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    asyncio.run(work())


def test_an_unknown_model_is_not_found(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="mm", messages=MESSAGES)
    assert caught.value.code == "model_not_found"
    assert caught.value.request_id == caught.value.response.headers["x-request-id"]
    assert caught.value.response.headers["x-iop-reason"] == "model_not_found"


def test_a_providers_own_error_is_its_own(served: Served, client: OpenAI) -> None:
    served.backend.script = answer(b'{"error":{"message":"too long","type":"x","code":"context_length_exceeded"}}', 400)
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="m", messages=MESSAGES)
    assert caught.value.code == "context_length_exceeded"


def test_full_queue_and_waiting_too_long_are_told_apart(served: Served, client: OpenAI) -> None:
    async def hold(exchange: Exchange) -> None:
        await exchange.until_gone()

    def ask() -> openai.APIStatusError:
        with pytest.raises(openai.APIStatusError) as caught:
            client.chat.completions.create(model="m", messages=MESSAGES)
        return caught.value

    served.backend.script = hold
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(lambda: client.chat.completions.create(model="m", messages=MESSAGES, timeout=4))
        served.wait(lambda: served.backend.running == 1, "one runs")
        waits = pool.submit(ask)
        served.wait(lambda: served.fleet.has_waiting(1), "one waits")
        full = ask()
        late = waits.result()
        with pytest.raises(openai.APITimeoutError):
            running.result()
    assert (full.status_code, full.code, type(full)) == (429, "queue_full", openai.RateLimitError)
    assert 1 <= int(full.response.headers["retry-after"]) <= 30
    assert (late.status_code, late.code, type(late)) == (504, "queue_timeout", openai.InternalServerError)
    assert late.response.headers["x-should-retry"] == "false"


def test_a_clients_own_timeout_frees_the_slot(served: Served, client: OpenAI) -> None:
    async def hold(exchange: Exchange) -> None:
        await exchange.until_gone()

    served.backend.script = hold
    with pytest.raises(openai.APITimeoutError):
        client.chat.completions.create(model="m", messages=MESSAGES, timeout=0.2)
    served.wait(served.fleet.is_idle, "the slot is free again")
    served.backend.script = OpenAIScript()
    assert client.chat.completions.create(model="m", messages=MESSAGES).choices[0].message.content == WORDS


def test_a_cancelled_stream_frees_the_slot(served: Served, client: OpenAI) -> None:
    served.backend.script = OpenAIScript(words=200, chunk_delay_s=0.02)
    with client.chat.completions.create(model="m", messages=MESSAGES, stream=True) as stream:
        assert next(iter(stream)).choices[0].delta.content == "w0 "
    served.wait(served.fleet.is_idle, "the slot is free again")
