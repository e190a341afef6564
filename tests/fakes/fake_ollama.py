"""An Ollama server, as far as its public API documentation describes one: chats, completions, embeddings, the list.

It is an `openai_backend.FakeBackend` (raw sockets, scripts, records) whose default script speaks Ollama's native API.
Every field that it reads or writes stands in one of these, all of github.com/ollama/ollama, and is cited where it is
used:

    [api]     docs/api.md                     endpoints, parameters, examples of answers
    [openapi] docs/openapi.yaml               schemas ChatRequest, ChatStreamEvent, GenerateRequest, EmbedRequest ...
    [errors]  docs/api/errors.mdx             status codes, `{"error": ...}`, errors in the middle of a stream
    [stream]  docs/api/streaming.mdx          application/x-ndjson, one object a line
    [usage]   docs/api/usage.mdx              prompt_eval_count, eval_count
    [types]   api/types.go                    Go types: what is left out when it is 0, what is an object
    [routes]  server/routes.go                which error has which status; ids of tool calls

What it "generates" follows from the request alone: it says the last message back, calls the first tool that it is
offered, reports images by their sizes, thinks when it is told to. So a test sees what arrived in what comes back.

In a test:

    async with FakeOllama(["qwen3:8b"]) as ollama:
        ollama.scripts = [lines([{"message": {"role": "assistant", "content": "hi"}, "done": False}])]

As a process: `python -m tests.fakes.fake_ollama --port 0 --model qwen3:8b` prints `port N`.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import contextlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.fakes.openai_backend import Exchange, FakeBackend, Script

# [api], "Generate a chat completion": times are ISO 8601, durations nanoseconds.
CREATED_AT = "2026-01-02T03:04:05.678901Z"
# [stream]: the content type of streams; [errors]: that of errors.
NDJSON = b"application/x-ndjson"
JSON = b"application/json; charset=utf-8"

Fields = dict[str, Any]


class Refused(Exception):
    """Answered with a status and `{"error": ...}` ([errors], "Error messages")."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def lines(
    objects: Iterable[Fields | bytes], delay_s: float = 0.0, then: str = "end", cuts: Sequence[int] = ()
) -> Script:
    """A script: a stream of lines, each in a write of its own; bytes go out as they are. Then "end" properly, or
    "close", "reset" or "hold" the connection. `cuts` are offsets into the whole stream at which writes end instead."""

    async def script(exchange: Exchange) -> None:
        pieces = [line if isinstance(line, bytes) else encoded(line) for line in objects]
        if cuts:
            whole = b"".join(pieces)
            bounds = [0, *cuts, len(whole)]
            pieces = [whole[start:end] for start, end in pairwise(bounds)]
        await exchange.head(200, [(b"Content-Type", NDJSON), (b"Transfer-Encoding", b"chunked")])
        for number, piece in enumerate(pieces):
            if number:
                await asyncio.sleep(delay_s)
            if piece:
                await exchange.chunk(piece)
        if then == "end":
            await exchange.chunk(b"")
        elif then == "close":
            exchange.close()
        elif then == "reset":
            exchange.reset()
        else:
            await exchange.until_gone()

    return script


def error(status: int, message: str) -> Script:
    """A script: an error before anything else ([errors])."""

    async def script(exchange: Exchange) -> None:
        await exchange.respond(json.dumps({"error": message}).encode(), status, JSON)

    return script


def encoded(line: Fields) -> bytes:
    """One line, as Go writes it: no spaces, UTF-8, and `<`, `>`, `&` escaped ([types]; encoding/json)."""
    text = json.dumps(line, ensure_ascii=False, separators=(",", ":"))
    for char in "<>&":
        text = text.replace(char, f"\\u{ord(char):04x}")
    return text.encode() + b"\n"


def chat_line(content: str = "", done: bool = False, **fields: Any) -> Fields:
    """A line of a chat ([openapi], ChatStreamEvent); `thinking` and `tool_calls` belong into the message."""
    message: Fields = {"role": "assistant", "content": content}
    for name in ("thinking", "tool_calls"):
        if name in fields:
            message[name] = fields.pop(name)
    return {"model": "qwen3:8b", "created_at": CREATED_AT, "message": message, "done": done, **fields}


def last_line(content: str = "", reason: str = "stop", prompt: int = 26, answer: int = 259, **fields: Any) -> Fields:
    """The last line of a chat ([api], "Chat request (Streaming)", final response; [usage])."""
    counts = {"prompt_eval_count": prompt, "eval_count": answer}
    return chat_line(
        content,
        done=True,
        done_reason=reason,
        total_duration=4883583458,
        load_duration=1334875,
        prompt_eval_duration=342546000,
        eval_duration=4535599000,
        **{name: value for name, value in counts.items() if value},  # [types], Metrics: omitempty
        **fields,
    )


def tool_call(name: str, arguments: Any, call_id: str = "") -> Fields:
    """A tool call: its arguments are an object ([openapi], ToolCall). Newer servers give ids ([routes], toolCallId)."""
    call: Fields = {"function": {"name": name, "arguments": arguments}}
    return {"id": call_id, **call} if call_id else call


@dataclass
class FakeOllama(FakeBackend):
    """The server. `models` are those that were pulled; `thinkers` of them can think, `plain` ones take no tools."""

    models: Sequence[str] = ("qwen3:8b",)
    thinkers: Sequence[str] = ("qwen3:8b",)
    plain: Sequence[str] = ()
    chunk_delay_s: float = 0.0
    load_delay_s: float = 0.0
    gives_call_ids: bool = True
    bodies: list[Fields] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__(self._answer)

    async def _answer(self, exchange: Exchange) -> None:
        path = exchange.request.target.split(b"?")[0]
        handlers = {b"/api/chat": self._chat, b"/api/generate": self._generate, b"/api/embed": self._embed}
        if path == b"/api/tags":  # [api], "List Local Models"
            await exchange.respond(json.dumps({"models": [{"name": name} for name in self.models]}).encode())
        elif path == b"/":
            await exchange.respond(b"Ollama is running", content_type=b"text/plain; charset=utf-8")
        elif path in handlers and exchange.request.method == b"POST":
            try:
                body = self._read(exchange)
                await asyncio.sleep(self.load_delay_s)
                await handlers[path](exchange, body)
            except Refused as refused:
                await error(refused.status, str(refused))(exchange)
        else:
            await exchange.respond(b"404 page not found", 404, b"text/plain")

    def _read(self, exchange: Exchange) -> Fields:
        """Take the body: JSON, and a model that was pulled ([routes]: 400, 404)."""
        try:
            body = exchange.json
        except ValueError:
            raise Refused(400, "invalid character in request body") from None
        self.bodies.append(body)
        model = body.get("model")
        if not isinstance(model, str) or not model:
            raise Refused(400, "model is required")
        if model not in self.models:
            raise Refused(404, f"model '{model}' not found")
        of_type(body, "options", dict, "api.ChatRequest.options", "map[string]interface {}")
        think = body.get("think")
        # [openapi], ChatRequest.think: boolean or high, medium, low; later releases also know max.
        if not (think is None or isinstance(think, bool) or think in ("high", "medium", "low", "max")):
            message = f'invalid think value: "{think}" (must be "high", "medium", "low", "max", true, or false)'
            raise Refused(400, message)
        if think and model not in self.thinkers:
            raise Refused(400, f'"{model}" does not support thinking')
        return body

    # Chats.

    async def _chat(self, exchange: Exchange, body: Fields) -> None:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise Refused(400, "messages is required")
        for message in messages:
            check_message(message)
        for tool in body.get("tools") or []:
            of_type(tool["function"], "parameters", dict, "ChatRequest.tools.function.parameters", "api.ToolFunction")
        if body.get("tools") and body["model"] in self.plain:
            raise Refused(400, f"registry.ollama.ai/library/{body['model']} does not support tools")
        prompt = sum(len(message["content"].split()) for message in messages) + 4
        said = list(self._said(messages, body))
        await self._send(exchange, body, said, prompt)

    def _said(self, messages: Sequence[Fields], body: Fields) -> Iterator[Fields]:
        """What the model says: messages without a role, in order."""
        last = messages[-1]
        if body.get("think"):
            yield {"content": "", "thinking": "Let me "}
            yield {"content": "", "thinking": f"think ({body['think']})."}
        tools = body.get("tools") or []
        if tools and last["role"] != "tool":
            for number, tool in enumerate(tools):  # [api], "Chat request (Streaming with tools)": each one whole
                function = tool["function"]
                call_id = f"call_{number:08d}" if self.gives_call_ids else ""
                schema = function.get("parameters") or {}
                arguments = {name: f"some {name}" for name in schema.get("properties") or {}}
                yield {"content": "", "tool_calls": [tool_call(function["name"], arguments, call_id)]}
            return
        for word in words_of(answer_to(last, body)):
            yield {"content": word}

    # Completions.

    async def _generate(self, exchange: Exchange, body: Fields) -> None:
        prompt = body.get("prompt", "")
        if not isinstance(prompt, str):
            raise Refused(400, unmarshal(prompt, "GenerateRequest.prompt", "string"))
        words = words_of(f"{prompt} and so on" + body.get("suffix", ""))
        said = [{"response": word} for word in words] if prompt else []
        await self._send(exchange, body, said, len(prompt.split()), "load" if not prompt else "stop")

    async def _send(
        self, exchange: Exchange, body: Fields, said: list[Fields], prompt: int, reason: str = "stop"
    ) -> None:
        """Send what is said, cut at num_predict tokens ([openapi], ModelOptions), as a stream or as one object."""
        limit = (body.get("options") or {}).get("num_predict", -1)
        if 0 <= limit < len(said):
            said, reason = said[:limit], "length"
        base = {"model": body["model"], "created_at": CREATED_AT}
        is_chat = "messages" in body
        empty: Fields = {"message": {"role": "assistant", "content": ""}} if is_chat else {"response": ""}
        end = {"done": True, "done_reason": reason, "total_duration": 5, "load_duration": 1}
        counts = {"prompt_eval_count": prompt, "prompt_eval_duration": 2, "eval_count": len(said), "eval_duration": 2}
        end |= {name: value for name, value in counts.items() if value}
        if body.get("stream") is False:  # [stream], "Disabling streaming"
            raise Refused(400, "this fake streams only")
        objects: list[Fields | bytes] = [
            {**base, **({"message": {"role": "assistant", **piece}} if is_chat else piece), "done": False}
            for piece in said
        ]
        await lines([*objects, {**base, **empty, **end}], self.chunk_delay_s)(exchange)

    # Embeddings.

    async def _embed(self, exchange: Exchange, body: Fields) -> None:
        inputs = body.get("input")
        inputs = [inputs] if isinstance(inputs, str) else inputs
        if not isinstance(inputs, list) or not all(isinstance(text, str) for text in inputs):
            raise Refused(400, "invalid input type")
        limit = (body.get("options") or {}).get("num_ctx", 2048)
        if body.get("truncate") is False and any(len(text.split()) > limit for text in inputs):
            raise Refused(400, "the input length exceeds the context length")
        size = body.get("dimensions", 4)
        vectors = [[len(text) / 8, *[at / 16 for at in range(1, size)]] for text in inputs]
        tokens = sum(len(text.split()) for text in inputs)
        # [openapi], EmbedResponse.
        answer = {"model": body["model"], "embeddings": vectors, "total_duration": 14143917, "load_duration": 1019500}
        if tokens:
            answer["prompt_eval_count"] = tokens
        await exchange.respond(json.dumps(answer, separators=(",", ":")).encode(), 200, JSON)


def answer_to(message: Fields, body: Fields) -> str:
    """The text that answers a message."""
    if body.get("format") == "json":
        return json.dumps({"said": message["content"]})
    if isinstance(body.get("format"), dict):
        return json.dumps(dict.fromkeys(body["format"].get("properties", {}), "x"))
    if message["role"] == "tool":
        return f"{message.get('tool_name', 'a tool')} said {message['content']}"
    if message.get("images"):
        sizes = ", ".join(str(len(base64.b64decode(image))) for image in message["images"])
        return f"images of {sizes} bytes"
    return str(message["content"])


def words_of(text: str) -> list[str]:
    """Text in pieces as tokens are: each word with the space before it."""
    first, *rest = text.split(" ")
    return [first, *[f" {word}" for word in rest]]


def check_message(message: Any) -> None:
    """Refuse what Go cannot decode into a Message ([types])."""
    if not isinstance(message, dict):
        raise Refused(400, unmarshal(message, "ChatRequest.messages", "api.Message"))
    if message.get("role") not in ("system", "user", "assistant", "tool"):  # [openapi], ChatMessage.role
        raise Refused(400, f"invalid role: {message.get('role')}, must be one of [user assistant system tool]")
    if not isinstance(message.get("content"), str):
        raise Refused(400, unmarshal(message.get("content"), "ChatRequest.messages.content", "string"))
    for image in message.get("images", []):
        try:
            base64.b64decode(image, validate=True)
        except binascii.Error:
            raise Refused(400, "illegal base64 data at input byte 4") from None
    for call in message.get("tool_calls", []):
        arguments = call["function"]["arguments"]
        if not isinstance(arguments, dict):
            place = "ChatRequest.messages.tool_calls.function.arguments"
            raise Refused(400, unmarshal(arguments, place, "api.ToolCallFunctionArguments"))


def of_type(body: Fields, name: str, kind: type, place: str, go_type: str) -> None:
    """Refuse a field of another type."""
    if body.get(name) is not None and not isinstance(body[name], kind):
        raise Refused(400, unmarshal(body[name], place, go_type))


def unmarshal(value: Any, place: str, go_type: str) -> str:
    """What Go says of a value of the wrong type."""
    kinds = {str: "string", list: "array", dict: "object", bool: "bool", int: "number", float: "number"}
    return f"json: cannot unmarshal {kinds.get(type(value), 'null')} into Go struct field {place} of type {go_type}"


async def run(port: int, models: Sequence[str], chunk_delay_s: float) -> None:
    """Serve until the process is stopped."""
    ollama = FakeOllama(models=models, thinkers=models, chunk_delay_s=chunk_delay_s)
    await ollama.start(port)
    print(f"port {ollama.port}", flush=True)
    await asyncio.get_running_loop().create_future()


def main() -> None:
    """Run the server as a process."""
    parser = argparse.ArgumentParser(description="A fake Ollama server.")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--model", action="append", help="a model that was pulled; may be repeated")
    parser.add_argument("--chunk-delay-ms", type=int, default=0)
    options = parser.parse_args()
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(run(options.port, options.model or ["qwen3:8b"], options.chunk_delay_ms / 1000))


if __name__ == "__main__":
    main()
