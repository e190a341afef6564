"""A small server of every tunnelled API: the OpenAI ones and Anthropic's, whole and streamed, with their usage."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from typing import Any

from tests.fakes.openai_backend import Exchange, OpenAIScript, Recorded

PROMPT_TOKENS = 7
SSE = [(b"Content-Type", b"text/event-stream"), (b"Transfer-Encoding", b"chunked")]


def form_of(request: Recorded) -> dict[str, tuple[str, bytes]]:
    """Cut a form into its fields: by name the file's name ("" for none) and the bytes."""
    [media] = request.values(b"content-type")
    line = b"\r\n--" + media.partition(b"boundary=")[2]
    fields = {}
    for part in (b"\r\n" + bytes(request.body)).split(line)[1:-1]:
        head, _, data = part.partition(b"\r\n\r\n")
        named = dict(re.findall(rb'; ((?:file)?name)="?([^";\r]*)"?', head))
        fields[named[b"name"].decode()] = (named.get(b"filename", b"").decode(), data)
    return fields


class AllApis(OpenAIScript):
    """`breaks_after` events, a stream of /v1/responses or /v1/messages is reset."""

    def __init__(self, words: int = 5, breaks_after: int = 0) -> None:
        super().__init__(words)
        self.breaks_after = breaks_after

    async def __call__(self, exchange: Exchange) -> None:
        path = exchange.request.target.split(b"?")[0]
        if path.endswith(b"/responses"):
            whole = self._response(exchange.json)
            await self._give(exchange, whole, self._response_events(whole))
        elif path.endswith(b"/messages/count_tokens"):
            await exchange.respond(json.dumps({"input_tokens": PROMPT_TOKENS}).encode())
        elif path.endswith(b"/messages"):
            await self._give(exchange, self._message(exchange.json), self._message_events(exchange.json))
        elif path.endswith((b"/audio/transcriptions", b"/audio/translations")):
            await self._transcribe(exchange)
        else:
            await super().__call__(exchange)

    async def _transcribe(self, exchange: Exchange) -> None:
        """Say what file came: its name and its sha256. Usage as OpenAI's models report it: tokens, or a duration."""
        form = form_of(exchange.request)
        name, data = form["file"]
        text = f"{name} {sha256(data).hexdigest()} as {form['model'][1].decode()}"
        usage = {"type": "tokens", "input_tokens": PROMPT_TOKENS, "output_tokens": 5, "total_tokens": 12}
        if form.get("response_format", ("", b""))[1] == b"text":
            await exchange.respond(text.encode(), content_type=b"text/plain; charset=utf-8")
        elif form.get("stream", ("", b""))[1] != b"true":
            is_timed = form.get("response_format", ("", b""))[1] == b"verbose_json"
            found = {"type": "duration", "seconds": 9} if is_timed else usage
            more = {"language": "english", "duration": 9.0} if is_timed else {}
            await exchange.respond(json.dumps({"text": text, "usage": found, **more}).encode())
        else:
            await exchange.head(200, SSE)
            for event in (
                {"type": "transcript.text.delta", "delta": text},
                {"type": "transcript.text.done", "text": text, "usage": usage},
            ):
                await exchange.chunk(b"data: %s\n\n" % json.dumps(event).encode())
            await exchange.chunk(b"")

    @property
    def _texts(self) -> list[str]:
        return [f"w{number} " for number in range(self.words)]

    async def _give(self, exchange: Exchange, whole: dict[str, Any], events: list[dict[str, Any]]) -> None:
        if not exchange.json.get("stream"):
            await exchange.respond(json.dumps(whole).encode())
            return
        await exchange.head(200, SSE)
        for number, event in enumerate(events, 1):
            await exchange.chunk(b"event: %s\ndata: %s\n\n" % (event["type"].encode(), json.dumps(event).encode()))
            if number == self.breaks_after:
                exchange.reset()
                return
        await exchange.chunk(b"")

    def _response(self, request: dict[str, Any]) -> dict[str, Any]:
        content = {"type": "output_text", "text": "".join(self._texts), "annotations": [], "logprobs": []}
        item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [content]}
        usage = {
            "input_tokens": PROMPT_TOKENS,
            "output_tokens": self.words,
            "total_tokens": PROMPT_TOKENS + self.words,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens_details": {"reasoning_tokens": 0},
        }
        return {
            "id": "resp_1",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": request["model"],
            "output": [item],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }

    def _response_events(self, whole: dict[str, Any]) -> list[dict[str, Any]]:
        begun = {**whole, "status": "in_progress", "output": [], "usage": None}
        item = {**whole["output"][0], "status": "in_progress", "content": []}
        part = {"type": "output_text", "text": "", "annotations": []}
        place = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
        events = [
            {"type": "response.created", "response": begun},
            {"type": "response.output_item.added", "output_index": 0, "item": item},
            {"type": "response.content_part.added", **place, "part": part},
            *({"type": "response.output_text.delta", **place, "delta": text, "logprobs": []} for text in self._texts),
            {"type": "response.output_text.done", **place, "text": "".join(self._texts), "logprobs": []},
            {"type": "response.completed", "response": whole},
        ]
        return [{**event, "sequence_number": number} for number, event in enumerate(events)]

    def _message(self, request: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": request["model"],
            "content": [{"type": "text", "text": "".join(self._texts)}],
            "stop_reason": "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": PROMPT_TOKENS, "output_tokens": self.words, "cache_read_input_tokens": 3},
        }

    def _message_events(self, request: dict[str, Any]) -> list[dict[str, Any]]:
        begun = {**self._message(request), "content": [], "stop_reason": None}
        begun["usage"] = {**begun["usage"], "output_tokens": 1}
        return [
            {"type": "message_start", "message": begun},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "ping"},
            *(
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
                for text in self._texts
            ),
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "end_turn", "stop_sequence": None},
                "usage": {"output_tokens": self.words},
            },
            {"type": "message_stop"},
        ]
