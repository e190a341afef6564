"""OpenAI's JSON as a RunInput: every shape that is taken, and every other one refused by its place."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest

from iop_fast.edge.normalized import run_input
from iop_fast.edge.normalized.media import Media, Span, find_media
from iop_fast.edge.normalized.run_input import Message, Part, RunInputPieces, input_segments
from iop_fast.edge.outcomes import RequestRefused
from iop_fast.errors import Failure
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.normalized.bodies import (
    COMPLETIONS,
    EMBEDDINGS,
    MIB,
    body_of,
    opened,
    opening_of,
    sent_by,
)

PIXEL = b"\x89PNG\r\n\x1a\n pixel"
URL = "data:image/png;base64," + base64.b64encode(PIXEL).decode()


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    return {"messages": list(messages), **fields}


def user(content: Any, **more: Any) -> dict[str, Any]:
    return {"role": "user", "content": content, **more}


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def test_a_chat() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    made = opened(
        chat(
            {"role": "system", "content": "be brief"},
            {"role": "developer", "content": [{"type": "text", "text": "rules"}]},
            user([{"type": "text", "text": "look"}, image(URL)], name="ann"),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": ""},
            stream=True,
        )
    )
    opening = opening_of(made)
    assert opening[:4] == ("p1", "served-m", pb.RunRequest.CHAT, True)
    assert (opening.body_complete, opening.body_length) == (True, len(opening.body))
    found = sent_by(made)
    assert [message.role for message in found.messages] == ["system", "developer", "user", "assistant", "tool"]
    assert [part.text for part in found.messages[1].parts] == ["rules"]
    assert found.messages[2].name == "ann"
    picture = found.messages[2].parts[1]
    assert (picture.WhichOneof("part"), picture.image, picture.media_type) == ("image", PIXEL, "image/png")
    assert json.loads(found.messages[3].tool_calls_json) == [call]
    assert not found.messages[3].parts
    assert found.messages[4].tool_call_id == "c1"
    assert found.messages[4].parts[0].WhichOneof("part") == "text"
    assert found.parameters_json == b"{}"


def test_parameters_go_on_as_they_were_written() -> None:
    body = b'{"model":"m","messages":[{"role":"user","content":"x"}],"stream":false,"stream_options":null,'
    body += b'"temperature":0.10 , "stop":["a"],"user":null,"tools":[{"type":"function"}],"max_tokens":1e2}'
    assert sent_by(opened(body)).parameters_json == (
        b'{"temperature":0.10,"stop":["a"],"tools":[{"type":"function"}],"max_tokens":1e2}'
    )


def test_the_generation_policy_holds_as_for_a_tunnel() -> None:
    policy = {"defaults": {"temperature": 0.5, "top_k": 7, "max_tokens": 50}, "max_tokens_ceiling": 100}
    made = opened(chat(user("x"), max_completion_tokens=1000, temperature=1), policy=policy)
    assert json.loads(sent_by(made).parameters_json) == {"top_k": 7, "max_completion_tokens": 100, "temperature": 1}
    assert made.clamped == ("max_completion_tokens",)
    made = opened({"prompt": "x"}, COMPLETIONS, policy)
    assert json.loads(sent_by(made).parameters_json) == {"temperature": 0.5, "top_k": 7, "max_tokens": 50}
    assert made.clamped == ()
    assert json.loads(sent_by(opened({"input": "x"}, EMBEDDINGS, policy)).parameters_json) == {}


def test_completions_and_embeddings() -> None:
    made = opened({"prompt": "once", "stream": True}, COMPLETIONS)
    assert opening_of(made)[2:4] == (pb.RunRequest.COMPLETION, True)
    assert list(sent_by(made).inputs) == ["once"]
    assert list(sent_by(opened({"prompt": ["a", "b"]}, COMPLETIONS)).inputs) == ["a", "b"]
    made = opened({"input": ["a", ""], "dimensions": 3, "encoding_format": "base64", "stream": True}, EMBEDDINGS)
    assert opening_of(made)[2:4] == (pb.RunRequest.EMBEDDING, False)
    assert list(sent_by(made).inputs) == ["a", ""]
    assert sent_by(made).parameters_json == b'{"dimensions":3}'


def test_other_parts_of_messages() -> None:
    made = opened(
        chat(
            user([{"type": "image_url", "image_url": URL}]),
            user([{"type": "input_audio", "input_audio": {"data": "AAEC", "format": "mp3"}}]),
            user([{"type": "input_audio", "input_audio": {"data": "AAE"}}]),
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": None},
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": {"a": [1]}}}]},
            {"role": "assistant", "tool_calls": [], "content": "x"},
            user([]),
        )
    )
    found = sent_by(made).messages
    assert found[0].parts[0].image == PIXEL
    assert (found[1].parts[0].audio, found[1].parts[0].media_type) == (b"\0\1\2", "audio/mpeg")
    assert (found[2].parts[0].audio, found[2].parts[0].media_type) == (b"\0\1", "audio/wav")
    assert found[3].parts[0].text == "no"
    assert json.loads(found[4].tool_calls_json)[0]["function"]["arguments"] == '{"a":[1]}'
    assert found[5].tool_calls_json == b""
    assert not found[6].parts


REFUSED: list[tuple[dict[str, Any], bytes, str, str]] = [
    ({}, b"", "messages", "this field"),
    (chat(), b"", "messages", "at least one"),
    (chat(1), b"", "messages[0]", "an object, got a number"),
    (chat({"role": "wizard", "content": ""}), b"", "messages[0].role", "one of system"),
    (chat({"role": ["user"], "content": ""}), b"", "messages[0].role", "one of system"),
    (chat(user("x"), {"role": "user"}), b"", "messages[1].content", "got null"),
    (chat(user(True)), b"", "messages[0].content", "a boolean"),
    (chat(user(["x"])), b"", "messages[0].content[0]", "a string"),
    (chat(user([{"type": "text"}])), b"", "messages[0].content[0].text", "a string"),
    (chat(user([{"type": "file"}])), b"", "messages[0].content[0].type", "'file'"),
    (chat(user([{}])), b"", "messages[0].content[0].type", "null"),
    (chat(user([image("https://a/b.png")])), b"", "messages[0].content[0].image_url.url", "not fetched"),
    (chat(user([image("data:image/png,%20")])), b"", "messages[0].content[0].image_url.url", "in base64"),
    (chat(user([image("data:a b;base64,AAAA")])), b"", "messages[0].content[0].image_url.url", "media type"),
    (chat(user([image("data:;base64,A")])), b"", "messages[0].content[0].image_url.url", "expected base64"),
    (chat(user([image("data:;base64,A?==")])), b"", "messages[0].content[0].image_url.url", "expected base64"),
    (chat(user([image("data:;base64,ÄÄÄÄ")])), b"", "messages[0].content[0].image_url.url", "expected base64"),
    (chat(user([image("data:;base64,\x000")])), b"", "messages[0].content[0].image_url.url", "expected base64"),
    (chat(user([{"type": "image_url"}])), b"", "messages[0].content[0].image_url", "an object"),
    (chat(user([{"type": "image_url", "image_url": {}}])), b"", "messages[0].content[0].image_url.url", "a string"),
    (chat(user([{"type": "input_audio"}])), b"", "messages[0].content[0].input_audio", "an object"),
    (chat(user([{"type": "input_audio", "input_audio": {}}])), b"", "messages[0].content[0].input_audio.data", "null"),
    (
        chat(user([{"type": "input_audio", "input_audio": {"data": "AAAA", "format": "a/b"}}])),
        b"",
        "messages[0].content[0].input_audio.format",
        "wav",
    ),
    (chat(user("x", name=1)), b"", "messages[0].name", "a string"),
    (chat(user("x", tool_call_id=1)), b"", "messages[0].tool_call_id", "a string"),
    (chat(user("x", function_call={})), b"", "messages[0].function_call", "tool_calls"),
    (chat(user("x", tool_calls={})), b"", "messages[0].tool_calls", "an array"),
    (chat(user("x", tool_calls=[1])), b"", "messages[0].tool_calls[0]", "an object"),
    (chat(user("x", tool_calls=[{}])), b"", "messages[0].tool_calls[0].function", "an object"),
    (chat(user("x", tool_calls=[{"function": {}}])), b"", "messages[0].tool_calls[0].function.name", "a string"),
    (
        chat(user("x", tool_calls=[{"id": 1, "function": {"name": "f"}}])),
        b"",
        "messages[0].tool_calls[0].id",
        "a string",
    ),
    (
        chat(user("x", tool_calls=[{"function": {"name": "f", "arguments": 1}}])),
        b"",
        "messages[0].tool_calls[0].function.arguments",
        "a string",
    ),
    (chat(user("x"), stream=True, stream_options=[]), b"", "stream_options", "an object"),
    (chat(user("x"), stream=True, stream_options={"a": "x" * 5000}), b"", "stream_options", "at most"),
    ({}, COMPLETIONS, "prompt", "this field"),
    ({"prompt": None}, COMPLETIONS, "prompt", "null"),
    ({"prompt": []}, COMPLETIONS, "prompt", "none"),
    ({"prompt": ["a", 1]}, COMPLETIONS, "prompt[1]", "a number"),
    ({"input": {}}, EMBEDDINGS, "input", "an object"),
    ({"input": ["a"] * 2049}, EMBEDDINGS, "input", "at most 2048"),
    ({"input": "a", "encoding_format": "hex"}, EMBEDDINGS, "encoding_format", "float or base64"),
]


@pytest.mark.parametrize(("given", "path", "param", "words"), REFUSED, ids=[f"{p}-{w}" for _, _, p, w in REFUSED])
def test_another_shape_is_refused_by_its_place(given: dict[str, Any], path: bytes, param: str, words: str) -> None:
    with pytest.raises(RequestRefused) as caught:
        opened(given, path or b"/v1/chat/completions")
    assert caught.value.verdict.failure is Failure.INVALID_REQUEST
    assert caught.value.param == param
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}', "messages"),
        (b'{"model":"m","messages":[{"role":"user","content":"x"}],"stop":"\\udc00"}', None),
        (b'{"model":"m","messages":[{"role":"user","content":"x"}],"seed":1e999}', None),
    ],
)
def test_what_a_node_could_not_read_is_refused(body: bytes, param: str | None) -> None:
    with pytest.raises(RequestRefused, match="Unicode") as caught:
        opened(body)
    assert caught.value.param == param


def test_what_came_to_need_a_tunnel_while_it_waited_is_refused() -> None:
    with pytest.raises(RequestRefused, match="several choices") as caught:
        opened(chat(user("x"), n=2))
    assert caught.value.verdict.failure is Failure.UNSUPPORTED_BY_MODEL


# ---------------------------------------------------------------------------------------------------------------------
# Long media


@pytest.mark.parametrize("size", [0, 1, 2, 3, 2047, 49_152, 100_001, MIB + 1, 3 * MIB + 2])
@pytest.mark.parametrize("padded", [True, False])
def test_an_image_of_any_size_arrives(size: int, padded: bool) -> None:
    raw = random.Random(size).randbytes(size)
    text = base64.b64encode(raw).decode()
    text = text if padded else text.rstrip("=")
    parts = [{"type": "text", "text": "a"}, image(f"data:image/jpeg;base64,{text}"), {"type": "text", "text": "b"}]
    found = sent_by(opened(chat(user(parts), user([image(URL)]))))
    assert [part.text for part in found.messages[0].parts] == ["a", "", "b"]
    picture = found.messages[0].parts[1]
    assert (picture.image, picture.media_type) == (raw, "image/jpeg")
    assert found.messages[1].parts[0].image == PIXEL


def test_many_images_and_sound_in_one_request() -> None:
    raws = [random.Random(number).randbytes(3000 + number) for number in range(40)]
    texts = [base64.b64encode(raw).decode() for raw in raws]
    parts: list[Any] = [image(f"data:image/png;base64,{text}") for text in texts]
    parts += [{"type": "input_audio", "input_audio": {"format": "wav", "data": text}} for text in texts]
    body = json.dumps({"model": "m", "messages": [user(parts)]}).replace('"data": "', '"data" :\n "').encode()
    found = sent_by(opened(body)).messages[0].parts
    assert [part.image for part in found[:40]] == raws
    assert [part.audio for part in found[40:]] == raws


def test_base64_that_is_escaped_is_read_with_the_rest() -> None:
    raw = random.Random(3).randbytes(9000)
    body = json.dumps(chat(user([image("data:image/png;base64," + base64.b64encode(raw).decode())]), model="m"))
    assert "/" in body
    found = sent_by(opened(body.replace("/", "\\/").encode()))
    assert found.messages[0].parts[0].image == raw


def test_what_looks_like_media_may_be_text() -> None:
    text = "data:image/png;base64," + "QUJD" * 3000
    quoted = '"data:image/png;base64,' + "QUJD" * 3000 + '" and \\'
    call = {"function": {"name": "f", "arguments": json.dumps({"data": text})}}
    found = sent_by(
        opened(
            chat(
                user(text),
                user(quoted),
                {"role": "assistant", "tool_calls": [call]},
                user([{"type": "text", "text": text}, image(text)]),
            )
        )
    ).messages
    assert found[0].parts[0].text == text
    assert found[1].parts[0].text == quoted
    assert json.loads(json.loads(found[2].tool_calls_json)[0]["function"]["arguments"])["data"] == text
    assert [found[3].parts[0].text, found[3].parts[1].image] == [text, b"ABC" * 3000]


def test_a_mark_of_a_clients_own_is_no_base64() -> None:
    for forged in ("\x000", "\x001", "\0x", "\0"):
        text = "data:image/png;base64," + "QUJD" * 3000
        with pytest.raises(RequestRefused, match="expected base64"):
            opened(chat(user([image("data:image/png;base64," + forged), image(text)])))


def test_too_much_that_only_looks_like_media_is_refused() -> None:
    text = "data:image/png;base64," + "QUJD" * MIB
    with pytest.raises(RequestRefused, match="at most"):
        opened(chat(user([image(URL)]), user(text)))


@pytest.mark.parametrize("place", [2, 60_000, 900_000])
def test_broken_base64_is_found_at_the_latest_where_it_stands(place: int) -> None:
    text = base64.b64encode(bytes(MIB)).decode()
    text = text[:place] + "?" + text[place + 1 :]
    with pytest.raises(RequestRefused, match=r"image_url\.url: expected base64") as caught:
        sent_by(opened(chat(user([image("data:image/png;base64," + text)]))))
    assert caught.value.param == "messages[0].content[0].image_url.url"


def test_padding_in_the_middle_is_no_base64() -> None:
    text = "QUJD" * 1000 + "QQ==" + "QUJD" * 1000
    with pytest.raises(RequestRefused, match="expected base64"):
        sent_by(opened(chat(user([image("data:image/png;base64," + text)]))))


def test_the_search_for_media_has_an_end() -> None:
    spread = [user([image("data:image/png;base64," + "QUJD" * 600)])] * 2100
    body, _ = body_of(json.dumps(chat(*spread, model="m")).encode())
    assert len(find_media(body, 0, body.size, body.size)) == 2048
    assert find_media(body, 0, body.size, 0) == find_media(body, 0, body.size, 100)[:1]
    assert find_media(body, 0, 20, body.size) == []


def test_media_is_read_from_any_offset() -> None:
    raw = random.Random(5).randbytes(5003)
    text = base64.b64encode(raw)
    body, _ = body_of(b'{"a":"' + text + b'"}')
    media = Media(body, Span(6, 6 + len(text)), "p")
    assert media.size == len(raw)
    for first, last in [(0, 1), (1, 2), (2, 5003), (3, 6), (4999, 5003), (5002, 5003), (7, 7)]:
        assert media.piece(first, last) == raw[first:last]


def test_the_writer_writes_what_protobuf_writes() -> None:
    texts = ["", "a", "é" * 70, "x" * 127, "y" * 128, "z" * 70_000]
    messages = [
        Message(b"user", [Part(run_input.TEXT, text.encode()) for text in texts]),
        Message(b"user", [Part(run_input.TEXT, b"x", b"text/plain")]),
        Message(b"user", [Part(run_input.IMAGE, b"i" * 90_000, b"image/png")], b"n", b"t", b"[]"),
        Message(b"tool", [], b"", b"t" * 200),
    ]
    wanted = pb.RunInput(
        messages=[
            pb.RunMessage(role="user", parts=[pb.RunPart(text=text) for text in texts]),
            pb.RunMessage(role="user", parts=[pb.RunPart(text="x", media_type="text/plain")]),
            pb.RunMessage(
                role="user",
                parts=[pb.RunPart(image=b"i" * 90_000, media_type="image/png")],
                name="n",
                tool_call_id="t",
                tool_calls_json=b"[]",
            ),
            pb.RunMessage(role="tool", tool_call_id="t" * 200),
        ],
        inputs=["", "b"],
        parameters_json=b"{}",
    ).SerializeToString()
    pieces = RunInputPieces(input_segments(messages, [b"", b"b"], b"{}"))
    assert pieces.size == len(wanted)
    for limit in (1000, 65_536, len(wanted)):
        assert b"".join(pieces.piece(at, limit) for at in range(0, len(wanted), limit)) == wanted
    assert pieces.piece(len(wanted), 10) == b""
