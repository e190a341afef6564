"""The requests that clients send, and what they ask of the upstream.

What the upstream shall do stands in the text of the first message, the only part that every gateway passes on as it is:
`do:wait=20;n=7;` waits 20 ms and says 7 in its answer. The header fields are those of the openai SDK (openai-python 3.x
on Linux), because each of them costs every gateway something.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

TOKEN = "sk-benchmark-0123456789abcdef0123456789abcdef"

SDK_HEADERS = (
    b"Host: 127.0.0.1\r\n"
    b"Accept-Encoding: gzip, deflate, zstd\r\n"
    b"Connection: %b\r\n"
    b"Accept: application/json\r\n"
    b"Content-Type: application/json\r\n"
    b"User-Agent: OpenAI/Python 3.57.0\r\n"
    b"X-Stainless-Lang: python\r\n"
    b"X-Stainless-Package-Version: 3.57.0\r\n"
    b"X-Stainless-OS: Linux\r\n"
    b"X-Stainless-Arch: x64\r\n"
    b"X-Stainless-Runtime: CPython\r\n"
    b"X-Stainless-Runtime-Version: 3.11.7\r\n"
    b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
    b"X-Stainless-Async: false\r\n"
    b"x-stainless-retry-count: 0\r\n"
    b"x-stainless-read-timeout: 600\r\n"
)

BODY = (
    b'{"model":"%b","stream":%b,"messages":[{"role":"system","content":"do:%b You answer briefly."},'
    b'{"role":"user","content":"%b"}]}'
)
TEXT = b"Say something about foxes. " * 20
ORDER = re.compile(rb"do:((?:[a-z]+=\d+;)*)")
ANSWER_NUMBER = re.compile(rb"served:(\d+);")

PATH = "/v1/chat/completions"


def chat(
    model: str,
    *,
    streamed: bool = False,
    headers: Sequence[tuple[str, str]] = (),
    keep_alive: bool = True,
    size: int = 0,
    **order: int,
) -> bytes:
    """One whole chat request; `size` is how many bytes the user's message has instead of 540."""
    words = b"".join(b"%b=%d;" % (name.encode(), value) for name, value in order.items())
    text = (TEXT * (size // len(TEXT) + 1))[:size] if size else TEXT
    body = BODY % (model.encode(), b"true" if streamed else b"false", words, text)
    fields = SDK_HEADERS % (b"keep-alive" if keep_alive else b"close")
    fields += b"".join(f"{name}: {value}\r\n".encode() for name, value in headers)
    return b"POST %b HTTP/1.1\r\n%bContent-Length: %d\r\n\r\n%b" % (PATH.encode(), fields, len(body), body)


def order_of(body: bytes) -> dict[bytes, int]:
    """What a request asks of the upstream, by word."""
    found = ORDER.search(body)
    pairs = found[1].split(b";")[:-1] if found else []
    return {name: int(value) for name, _, value in (pair.partition(b"=") for pair in pairs)}
