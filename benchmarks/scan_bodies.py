"""Request bodies that the scan benchmarks share; deterministic."""

from __future__ import annotations

import json

PROSE = (
    "The night ferry left the harbour a little after eleven, with most of its lights already out. \"It isn't worth "
    'half of what he wants," the older one said, "and you know it." The crew had seen the forecast, and they moved '
    "with the careful speed of people who expect a long night.\n"
)
CODE = (
    "def take(self, count: int = 1) -> bool:\n    now = self._clock()\n    if self._level < count:\n"
    '        raise ValueError(f"expected at most {self._level}, got {count}")\n\treturn "ok"\n\n'
)
KOREAN = (
    "비가 그친 뒤의 골목은 조용했다. "
    "가게 주인은 젖은 의자를 닦으며 오늘 장사가 어떨지 혼자 중얼거렸고, 건너편 세탁소에서는 "
    "라디오 소리가 작게 흘러나왔다.\n"
)
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a given location. Use the metric system unless told otherwise.",
        "parameters": {
            "type": "object",
            "properties": {
                "location": {"type": "string", "description": "The city and state, e.g. San Francisco, CA"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "days": {"type": "integer", "minimum": 1, "maximum": 10},
            },
            "required": ["location"],
        },
    },
}


def chat(text: str, size: int, message_size: int, ascii_only: bool = False) -> bytes:
    """Build a chat body of about `size` bytes whose messages repeat `text` up to `message_size` characters each."""
    content = (text * (message_size // len(text) + 1))[:message_size]
    messages = [{"role": "system", "content": "You are a helpful assistant."}]
    length = 200
    while length < size:
        role = "user" if len(messages) % 2 else "assistant"
        messages.append({"role": role, "content": content})
        length += len(json.dumps(messages[-1], ensure_ascii=ascii_only).encode()) + 2
    body = {"model": "gpt-oss-120b", "messages": messages, "stream": True, "temperature": 0.7, "max_tokens": 1024}
    return json.dumps(body, ensure_ascii=ascii_only).encode()


def bodies() -> dict[str, bytes]:
    """Return the named bodies; those of 1 MiB first."""
    mib = 1 << 20
    image = {
        "type": "image_url",
        "image_url": {"url": "data:image/png;base64," + "iVBORw0KGgoAAAANSUhEUgAA" * (mib // 24)},
    }
    picture = [{"role": "user", "content": [{"type": "text", "text": PROSE}, image]}]
    return {
        "chat_1mib": chat(PROSE, mib, 4_000),
        "code_1mib": chat(CODE, mib, 4_000),
        "korean_1mib": chat(KOREAN, mib, 2_000),
        "korean_escaped_1mib": chat(KOREAN, mib, 2_000, ascii_only=True),
        "short_messages_1mib": chat("Sounds good, thanks!", mib, 40),
        "one_string_1mib": chat(PROSE.replace('"', "'").replace("\n", " "), mib, mib - 300),
        "image_1mib": json.dumps({"model": "m", "messages": picture}).encode(),
        "tools_1mib": json.dumps({"model": "m", "messages": [], "tools": [TOOL] * (mib // 520)}).encode(),
        "tokens_1mib": json.dumps({"model": "m", "input": list(range(100_000, 100_000 + mib // 8))}).encode(),
        "chat_1kib": chat(PROSE, 1_024, 330),
        "agent_8kib": json.dumps(
            {"model": "m", "messages": [{"role": "user", "content": CODE * 16}], "tools": [TOOL] * 8, "stream": True}
        ).encode(),
    }


def hostile_bodies(size: int) -> dict[str, bytes]:
    """Return bodies of about `size` bytes that are as much structure and as little text as JSON allows."""

    def field(key: str, piece: str) -> bytes:
        count = size // (len(piece) + 1)
        return ('{"model":"m","' + key + '":[' + ",".join([piece] * count) + "]}").encode()

    return {
        "brackets": field("messages", "[]"),
        "objects": field("messages", "{}"),
        "digits": field("input", "1"),
        "literals": field("tools", "null"),
        "empty_strings": field("messages", '""'),
        "short_keys": field("messages", '{"":""}'),
        "unknown_keys": field("messages", '{"tool_call_ix":0}'),
        "escapes": field("messages", '"\\n\\n\\n\\n"'),
        "escaped_characters": field("messages", '"\\ud83d\\ude00"'),
        "two_byte_characters": field("messages", '"' + "\u00e9" * 8 + '"'),
        "white_space": b'{"model":"m","n":' + b" " * size + b"1}",
        "long_number": b'{"model":"m","n":' + b"7" * size + b"}",
    }
