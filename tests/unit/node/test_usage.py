"""Usage is read from what passes, whatever the cuts (B20, B22)."""

from __future__ import annotations

import itertools
import json
import tracemalloc
from collections.abc import Iterable

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from iop_fast._hot.usage_scan import USAGE_BYTES_MAX
from iop_fast.node.usage import DocumentUsage, StreamUsage, numbers_of_document, usage_of, usage_reader
from iop_fast.seams import Head, Usage


def head(*headers: tuple[bytes, bytes]) -> Head:
    return Head(200, b"OK", list(headers))


def read(content_type: bytes, pieces: Iterable[bytes]) -> Usage | None:
    reader = usage_reader(head((b"Content-Type", content_type)))
    assert reader is not None
    for piece in pieces:
        reader.feed(piece)
    return reader.result()


CHAT = json.dumps(
    {
        "id": "chatcmpl-1",
        "choices": [
            {"message": {"content": 'say "usage": {"prompt_tokens": 1} \\ 안녕 😀'}, "logprobs": {"usage": {}}}
        ],
        "tools": [{"usage": {"prompt_tokens": 99}}],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 22,
            "total_tokens": 33,
            "prompt_tokens_details": {"cached_tokens": 4},
        },
        "end": {"of": "it"},
    },
    ensure_ascii=False,
).encode()

RESPONSE = json.dumps(
    {
        "object": "response",
        "tools": [{"parameters": {"properties": {"usage": {"input_tokens": 9}}}}],
        "usage": {"input_tokens": 5, "output_tokens": 6, "input_tokens_details": {"cached_tokens": 1}},
    }
).encode()

MESSAGE = json.dumps(
    {
        "type": "message",
        "content": [{"type": "text", "text": "hi"}],
        "usage": {
            "input_tokens": 10,
            "cache_read_input_tokens": 3,
            "cache_creation_input_tokens": 2,
            "output_tokens": 7,
        },
    },
    indent=1,
).encode()

EMBEDDING = b'{"object":"list","data":[{"embedding":[0.1,-2e-3]}],"usage":{"prompt_tokens":8,"total_tokens":8}}'

DOCUMENTS = [
    (CHAT, Usage(11, 22, 4)),
    (RESPONSE, Usage(5, 6, 1)),
    (MESSAGE, Usage(15, 7, 3)),
    (EMBEDDING, Usage(8, 0, 0)),
    (b'{"usage":null,"a":[1]}', None),
    (b'{"a":{"b":{"usage":{"prompt_tokens":1}}}}', None),
    (b'[{"usage":{"prompt_tokens":1}}]', None),
    (b'{"choices":[]}', None),
    (b'{"usage":{"prompt_tokens":"7","completion_tokens":true,"x":-1}}', None),
    (b'{"usage":{"prompt_tokens":-7,"completion_tokens":3}}', Usage(0, 3, 0)),
    (b'{"x":"usage","y":{"prompt_tokens":1},"usage" : \n {"prompt_tokens":2}}', Usage(2, 0, 0)),
]

CHAT_STREAM = (
    'data: {"choices":[{"delta":{"content":"안녕하세요 😀"}}],"usage":null}\n\n'
    ": keep-alive\n\n"
    'data:{"choices":[{"delta":{"tool_calls":[{"function":{"arguments":"{\\"usage\\":{\\"prompt_tokens\\":1}}"}}]}}]}'
    "\r\n\r\n"
    'event: x\rdata: {"choices":[],\rdata: "usage":{"prompt_tokens":3,\rdata: "completion_tokens":4}}\r\r'
    "data: [DONE]\n\n"
).encode()

RESPONSE_STREAM = (
    b'event: response.created\ndata: {"type":"response.created","response":{"id":"r","usage":null}}\n\n'
    b'event: response.output_text.delta\ndata: {"type":"response.output_text.delta","delta":"hi"}\n\n'
    b'event: response.completed\ndata: {"type":"response.completed","response":{"output":[{"usage":{"input_tokens":1}}'
    b'],"usage":{"input_tokens":21,"input_tokens_details":{"cached_tokens":20},"output_tokens":2}}}\n\n'
)

MESSAGE_STREAM = (
    b'event: message_start\ndata: {"type":"message_start","message":{"content":[],"usage":{"input_tokens":25,'
    b'"cache_read_input_tokens":100,"output_tokens":1}}}\n\n'
    b'event: ping\ndata: {"type": "ping"}\n\n'
    b'event: message_delta\ndata: {"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"output_tokens":15}}\n\n'
    b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
)

STREAMS = [
    (CHAT_STREAM, Usage(3, 4, 0)),
    (RESPONSE_STREAM, Usage(21, 2, 20)),
    (MESSAGE_STREAM, Usage(125, 15, 100)),
    (
        b'data: {"usage":{"prompt_tokens":1}}\n\ndata: {"usage":{"prompt_tokens":2,"completion_tokens":1}}',
        Usage(2, 1, 0),
    ),
    (b'datax: {"usage":{"prompt_tokens":1}}\n\nid: 1\ndata\n\n', None),
    (b"data: not json {{{\n\ndata: [DONE]\n\n", None),
    (b"", None),
]


@pytest.mark.parametrize(("body", "wanted"), DOCUMENTS)
def test_a_document_gives_the_same_usage_for_every_cut(body: bytes, wanted: Usage | None) -> None:
    """B20: cut at every offset into two pieces, and byte by byte."""
    assert read(b"application/json; charset=utf-8", [body]) == wanted
    for cut in range(len(body) + 1):
        assert read(b"application/json", [body[:cut], body[cut:]]) == wanted, cut
    assert read(b"application/json", [body[at : at + 1] for at in range(len(body))]) == wanted


@pytest.mark.parametrize(("body", "wanted"), STREAMS)
def test_a_stream_gives_the_same_usage_for_every_cut(body: bytes, wanted: Usage | None) -> None:
    """B20: CJK, emoji, tool-call JSON, CRLF, LF and CR, comments, several data lines, no space after the colon."""
    assert read(b"text/event-stream", [body]) == wanted
    for cut in range(len(body) + 1):
        assert read(b"text/event-stream;charset=utf-8", [body[:cut], body[cut:]]) == wanted, cut
    assert read(b"text/event-stream", [body[at : at + 1] for at in range(len(body))]) == wanted
    events = [event + b"\n\n" for event in body.split(b"\n\n")]
    assert read(b"text/event-stream", events) == wanted


KEYS = st.sampled_from(["usage", "response", "message", "prompt_tokens", "input_tokens", "x", 'a"b', "\\", "한"])
VALUES = st.recursive(
    st.none() | st.integers(-5, 2**70) | st.booleans() | st.text(max_size=6) | st.sampled_from(["usage", '"usage":{']),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    document=st.dictionaries(KEYS, VALUES, max_size=5),
    cuts=st.lists(st.integers(0, 400), max_size=6),
    spaced=st.booleans(),
)
def test_any_document_gives_the_same_usage_for_any_cuts(document: object, cuts: list[int], spaced: bool) -> None:
    body = json.dumps(document, indent=2 if spaced else None, ensure_ascii=False).encode()
    whole = usage_of(numbers_of_document(orjson.loads(body)))
    assert read(b"application/json", [body]) == whole
    places = [0, *sorted(cuts), len(body)]
    pieces = [body[start:end] for start, end in itertools.pairwise(places)]
    assert read(b"application/json", pieces) == whole
    event = b"data: " + b"\ndata: ".join(body.split(b"\n")) + b"\n\n"
    assert read(b"text/event-stream", [event]) == whole
    assert read(b"text/event-stream", [event[:3], event[3:]]) == whole
    assert read(b"text/event-stream", [event[at : at + 1] for at in range(len(event))]) == whole


@settings(deadline=None)
@given(data=st.binary(max_size=200), cut=st.integers(0, 200))
def test_any_bytes_are_taken_without_failing(data: bytes, cut: int) -> None:
    for reader in (DocumentUsage(), StreamUsage()):
        reader.feed(data[:cut])
        reader.feed(data[cut:])
        assert reader.result() is None or isinstance(reader.result(), Usage)


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-type", b"application/json"), (b"Content-Encoding", b"gzip")],
        [(b"Content-Type", b"text/plain")],
        [(b"Content-Type", b"audio/mpeg")],
        [],
    ],
)
def test_usage_of_other_answers_is_unknown(headers: list[tuple[bytes, bytes]]) -> None:
    assert usage_reader(head(*headers)) is None


def test_identity_coded_problem_json_is_read() -> None:
    reader = usage_reader(head((b"Content-Encoding", b"Identity"), (b"content-type", b"application/vnd.x+json")))
    assert isinstance(reader, DocumentUsage)


def test_memory_is_bounded_by_the_usage_object_and_not_by_the_answer() -> None:
    """An 8 MiB event, and a usage object that never ends, are walked without being kept."""
    text = b"x\\n\\u0041y" * 6000
    document, stream = DocumentUsage(), StreamUsage()
    tracemalloc.start()
    try:
        for reader, prefix in ((document, b'{"c":"'), (stream, b'data: {"c":"')):
            reader.feed(prefix)
            for _ in range(128):
                reader.feed(text)
        document.feed(b'","usage":{"prompt_tokens":1}}')
        stream.feed(b'","usage":{"a":"')
        for _ in range(128):
            stream.feed(text)
        kept = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert kept < 8 * USAGE_BYTES_MAX
    assert document.result() == Usage(1, 0, 0)
    stream.feed(b'"}}\n\ndata: {"usage":{"prompt_tokens":2}}\n\n')
    assert stream.result() == Usage(2, 0, 0)
