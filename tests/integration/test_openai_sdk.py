"""The official OpenAI SDK against real processes: whole, streamed, async, errors as its own classes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, OpenAI

from tests.fakes.openai_backend import Exchange, FakeBackend, OpenAIScript, answer
from tests.integration.edge_harness import provider, run, until
from tests.integration.fleet import Fleet, fleet

MESSAGES: Any = [{"role": "user", "content": "hi"}]
WORDS = "w0 w1 w2 w3 w4 "


class Served:
    """A fleet on a loop of its own thread, so that the synchronous client can block this one."""

    def __init__(self, folder: Path) -> None:
        self.backend: FakeBackend
        self.fleet: Fleet
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(folder,))

    def _run(self, folder: Path) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            pool = {"max_queue": 1, "queue_timeout_ms": 2000}
            nodes = {"n1": [provider("p1", 1)]}
            async with FakeBackend(OpenAIScript()) as self.backend:
                nodes["n1"][0]["endpoint"] = self.backend.url
                models = [
                    {"id": "m", "providers": {"p1": "served"}},
                    {"id": "team/m:8b", "providers": {"p1": "served"}},
                ]
                async with fleet(folder, nodes, ["n1"], models=models, provider_pool=pool) as self.fleet:
                    self._up.set()
                    await self._stop.wait()
                    await self.fleet.idle()

        try:
            run(serve())
        except BaseException as failure:  # noqa: BLE001 - raised again in the test's thread
            self._failure = failure
            self._up.set()

    def __enter__(self) -> Served:
        self._thread.start()
        self._up.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def wait(self, condition: Any, what: str) -> None:
        """Wait on the fleet's loop."""
        asyncio.run_coroutine_threadsafe(until(condition, what), self._loop).result()


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


def test_the_model_list(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["m", "team/m:8b"]
    assert client.models.retrieve("team/m:8b").id == "team/m:8b"


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
        running = pool.submit(lambda: client.chat.completions.create(model="m", messages=MESSAGES, timeout=8))
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
