"""The body scan: what it reads out, what it refuses, and how it is called. Grammar is in test_scan_json."""

from __future__ import annotations

import json
from typing import Any

import pytest

from iop_fast._core.json_string import block_readers, use_block_reader
from iop_fast._core.scan import (
    AUDIO_TOKENS,
    FEATURE_AUDIO,
    FEATURE_FILES,
    FEATURE_IMAGES,
    FEATURE_JSON_SCHEMA,
    FEATURE_REMOTE_MEDIA,
    FEATURE_TOOLS,
    FILE_TOKENS,
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    VIDEO_TOKENS,
    BodyScan,
    ScanError,
    estimate_tokens,
)

BASE64 = "iVBORw0KGgoAAAANSUhEUgAA" * 200
TEXT = "How many people live in the city?"


def scanned(body: bytes | dict[str, Any]) -> BodyScan:
    machine = BodyScan()
    machine.feed(body if isinstance(body, bytes) else json.dumps(body).encode())
    machine.finish()
    return machine


def refusal(*pieces: bytes) -> ScanError:
    machine = BodyScan()
    try:
        for piece in pieces:
            machine.feed(piece)
        machine.finish()
    except ScanError as error:
        return error
    pytest.fail(f"taken: {pieces!r}")


def tokens(messages: Any, **fields: Any) -> int:
    return scanned({"model": "m", "messages": messages, **fields}).estimated_tokens


def part_tokens(part: dict[str, Any]) -> int:
    """Tokens of a part beyond its message's."""
    return tokens([{"role": "user", "content": [part]}]) - MESSAGE_TOKENS


# ---- memory ----------------------------------------------------------------------------------------------------------


def test_a_scan_knows_nothing_of_the_one_whose_memory_it_has() -> None:
    """Keys, names and text of a scan that is over stand in the memory that the next one gets."""
    long_keys = {f"key-{number}" * 10: number for number in range(100)}  # more than a scan's first store holds
    for turn in range(3):
        several = [BodyScan() for _ in range(50)]  # more than are kept
        for machine in several:
            machine.feed(json.dumps({**long_keys, "model": f"m{turn}", "stream": True}).encode())
            machine.finish()
            assert (machine.model, machine.stream, len(machine.top_level_keys)) == (f"m{turn}", True, 102)
        del several, machine
        after = scanned({"x": "y"})
        assert (after.model, after.stream, after.top_level_keys) == (None, False, ["x"])


def test_a_scan_of_great_depth_has_frames_of_its_own() -> None:
    deep = b'{"model":"m","x":' + b"[" * 1_000 + b"]" * 1_000 + b"}"
    for _ in range(2):
        machine = BodyScan(1_024)
        machine.feed(deep)
        machine.finish()
        assert machine.model == "m"
        del machine
        assert refusal(deep).code


# ---- read-outs -------------------------------------------------------------------------------------------------------


def test_it_reads_the_fields_that_admission_needs() -> None:
    body = b' {"model": "qwen/3:8b", "stream" :true, "messages":[], "max_tokens": 12}\n'
    machine = scanned(body)
    assert machine.model == "qwen/3:8b"
    assert body[slice(*machine.model_span)] == b'"qwen/3:8b"'
    assert machine.stream is True
    assert machine.features == 0
    assert machine.estimated_tokens == 0
    assert machine.top_level_keys == ["model", "stream", "messages", "max_tokens"]
    assert body[machine.insert_at :].startswith(b'"model"')


def test_an_empty_object_has_nothing() -> None:
    machine = scanned(b"{}")
    assert (machine.model, machine.model_span, machine.stream, machine.top_level_keys) == (None, (0, 0), False, [])
    assert machine.insert_at == 1


@pytest.mark.parametrize(("value", "wanted"), [("true", True), ("false", False), ("null", False)])
def test_stream_is_a_boolean_or_null(value: str, wanted: bool) -> None:
    assert scanned(b'{"stream":%s}' % value.encode()).stream is wanted


def test_spans_of_top_level_values_are_their_json_text() -> None:
    values = ["-1.5e3", '"s\\u00e9"', "[1, [2]]", '{"a": {}}', "true", "null", "0"]
    body = ("{" + " , ".join(f'"k{index}" :  {value} ' for index, value in enumerate(values)) + "}").encode()
    machine = scanned(body)
    spans = [machine.value_span(f"k{index}") for index in range(len(values))]
    assert [body[slice(*span)].decode() for span in spans if span] == values
    assert machine.value_span("k7") is None
    assert machine.value_span("\ud800") is None


def test_a_model_may_be_spelled_with_escapes() -> None:
    body = rb'{"\u006dod\u0065l": "\ud55c\uAE00\/\ud83d\ude00"}'
    machine = scanned(body)
    assert machine.model == "한글/😀"
    assert machine.top_level_keys == ["model"]
    assert body[slice(*machine.model_span)] == rb'"\ud55c\uAE00\/\ud83d\ude00"'


@pytest.mark.parametrize("point", [0x10000, 0x103FF, 0x10FC00, 0x10FFFF, 0x80, 0x7FF, 0x800, 0xD7FF, 0xE000, 0xFFFF])
def test_characters_at_the_edges_are_decoded(point: int) -> None:
    text = chr(point)
    for spelling in (text.encode(), json.dumps(text)[1:-1].encode()):
        assert scanned(b'{"model":"' + spelling + b'"}').model == text


@pytest.mark.parametrize("character", ["a", "é", "한", "😀"])
def test_a_model_has_at_most_1024_characters(character: str) -> None:
    for spelling in (character.encode(), json.dumps(character)[1:-1].encode()):
        assert scanned(b'{"model":"' + spelling * 1024 + b'"}').model == character * 1024
        error = refusal(b'{"model":"' + spelling * 1025 + b'"}')
        assert (error.code, error.param, error.offset) == ("bad_field", "model", 9)


# ---- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "code", "param", "offset"),
    [
        (b"", "invalid_json", None, 0),
        (b" \r\n\t", "invalid_json", None, 4),
        (b'{"model":"a"', "invalid_json", None, 12),
        (b'\xef\xbb\xbf{"model":"a"}', "invalid_json", None, 0),
        (b"[]", "not_an_object", None, 0),
        (b' "text"', "not_an_object", None, 1),
        (b"7", "not_an_object", None, 0),
        (b"null", "not_an_object", None, 0),
        (b'{"a":1} {}', "invalid_json", None, 8),
        (b'{"a":"\xff"}', "invalid_utf8", None, 6),
        (b'{"a":"\xe4\xb8"}', "invalid_utf8", None, 8),
        (b'{"stream":1}', "bad_field", "stream", 10),
        (b'{"stream":"true"}', "bad_field", "stream", 10),
        (b'{"messages":{}}', "bad_field", "messages", 12),
        (b'{"messages":null}', "bad_field", "messages", 12),
        (b'{"messages":"hi"}', "bad_field", "messages", 12),
    ],
)
def test_refusals_name_code_field_and_byte(body: bytes, code: str, param: str | None, offset: int) -> None:
    """B02: a body that cannot be served has a stable answer of its own kind."""
    error = refusal(body)
    assert (error.code, error.param, error.offset) == (code, param, offset)
    assert f"at byte {offset}" in str(error)


def test_a_broken_character_is_refused_at_the_byte_that_breaks_it_in_any_split() -> None:
    body = b'{"a":"' + b"x" * 100 + b'\xed\xa0\x80"}'
    for cut in range(len(body)):
        error = refusal(body[:cut], body[cut:])
        assert (error.code, error.offset) == ("invalid_utf8", 107)


@pytest.mark.parametrize(
    "second",
    [b'"model"', rb'"\u006dodel"', rb'"m\u006Fde\u006c"'],
)
def test_a_second_model_is_refused_however_it_is_spelled(second: bytes) -> None:
    """B23: two models are two requests, whichever of them a parser keeps."""
    body = b'{"model":"a","messages":[],' + second + b':"b"}'
    error = refusal(body)
    assert (error.code, error.param, error.offset) == ("duplicate_key", "model", 27)
    assert refusal(b"{" + second + b':"a","model":"a"}').code == "duplicate_key"


@pytest.mark.parametrize("key", ["messages", "temperature", "", "ключ", "😀", "a" * 256, "\ud800"])
def test_any_top_level_key_stands_once(key: str) -> None:
    """B23: a check on one value and a dispatch with the other must not be possible for any field."""
    spelled = json.dumps(key).encode()
    error = refusal(b'{"x":1,' + spelled + b":[]," + spelled + b":[]}")
    assert error.code == "duplicate_key"
    assert error.param == key.encode("utf-8", "surrogatepass").decode("utf-8", "replace")


def test_a_raw_and_an_escaped_key_are_the_same_key() -> None:
    assert refusal('{"clé":1,"cl\\u00e9":2}'.encode()).code == "duplicate_key"
    assert refusal('{"😀":1,"\\ud83d\\ude00":2}'.encode()).code == "duplicate_key"


def test_a_prefix_is_another_key() -> None:
    assert scanned(b'{"a":1,"ab":2,"":3,"abc":4}').top_level_keys == ["a", "ab", "", "abc"]


@pytest.mark.parametrize("key", ["Model", "MODEL", "sTream", "\u017ftream", "Max_To\u212aens", "Messages", "TOOLS"])
def test_a_known_key_in_other_letters_is_refused(key: str) -> None:
    """B23: parsers that fold case (Go's encoding/json) would take it for the field that was checked."""
    for spelled in (f'"{key}"'.encode(), json.dumps(key).encode()):
        error = refusal(b'{"model":"a",' + spelled + b':"b"}')
        assert (error.code, error.param, error.offset) == ("bad_field", key, 13)


@pytest.mark.parametrize("key", ["Modell", "X-Custom", "modeL2", "Temperature", "\u017ftreams", "MODE"])
def test_an_unknown_key_may_have_any_letters(key: str) -> None:
    assert scanned({key: 1}).top_level_keys == [key]


@pytest.mark.parametrize(
    "elsewhere",
    [
        {"tools": [{"type": "function", "function": {"parameters": {"properties": {"model": {"type": "string"}}}}}]},
        {"metadata": {"model": "other", "stream": "yes"}},
        {"messages": [{"role": "user", "content": '{"model": "other", "model": "third"}', "model": "fourth"}]},
        {"user": '"model":"other"'},
        {"messages": [{"role": "user", "content": [{"model": 7}]}]},
    ],
)
def test_a_nested_model_is_not_the_model(elsewhere: dict[str, Any]) -> None:
    """B23: only the top-level key counts."""
    for body in ({"model": "right", **elsewhere}, {**elsewhere, "model": "right"}):
        raw = json.dumps(body).encode()
        machine = scanned(raw)
        assert machine.model == "right"
        assert raw[slice(*machine.model_span)] == b'"right"'


@pytest.mark.parametrize(
    "value", [b"null", b"7", b"-1", b"true", b'{"id":"a"}', b'["a"]', b'"' + b"a" * (1 << 20) + b'"']
)
def test_a_model_that_is_no_short_string_is_refused(value: bytes) -> None:
    """B23: null, numbers, objects and a megabyte of text are no model."""
    error = refusal(b'{"messages":[],"model":' + value + b"}")
    assert (error.code, error.param, error.offset) == ("bad_field", "model", 23)


def test_a_model_with_a_lone_surrogate_is_refused() -> None:
    for spelled in (rb"\ud800", rb"\udc00", rb"\ude00\ud83d", rb"\ud83dx", rb"\ud83d\n", rb"\ud83d\u0041"):
        assert refusal(b'{"model":"a' + spelled + b'"}').param == "model"
    assert scanned(rb'{"user":"\ud800"}').top_level_keys == ["user"]


def test_a_body_of_20_mib_is_read_in_pieces_of_any_kind() -> None:
    """B23: size changes nothing."""
    message = {"role": "user", "content": TEXT * 4000}
    body = json.dumps({"messages": [message] * 160, "model": "last"}).encode()
    assert len(body) > 20 << 20
    machine = BodyScan()
    kinds = (bytes, bytearray, memoryview)
    for index, at in enumerate(range(0, len(body), 65_536)):
        machine.feed(kinds[index % 3](body[at : at + 65_536]))
    machine.finish()
    assert machine.model == "last"
    assert body[slice(*machine.model_span)] == b'"last"'


def test_keys_are_limited_in_number_and_length() -> None:
    many = {f"key{index}": index for index in range(256)}
    assert scanned(many).top_level_keys == list(many)
    assert refusal(json.dumps({**many, "one more": 1}).encode()).code == "too_many_keys"
    assert scanned({"é" * 128: 1}).top_level_keys == ["é" * 128]
    assert refusal(json.dumps({"é" * 128 + "x": 1}).encode()).code == "key_too_long"
    assert scanned({"metadata": {"x" * 5000: 1, **many, "one more": 1}}).top_level_keys == ["metadata"]


def test_long_keys_do_not_exhaust_the_store() -> None:
    keys = [f"{index:03}" + "k" * 253 for index in range(255)]
    machine = scanned({**dict.fromkeys(keys, 0), "model": "m" * 1024})
    assert machine.top_level_keys == [*keys, "model"]
    assert machine.model == "m" * 1024


@pytest.mark.parametrize("max_depth", [1, 2, 128, 1024])
def test_depth_is_limited(max_depth: int) -> None:
    def nested(depth: int) -> bytes:
        return b'{"a":' + b"[" * (depth - 1) + b"]" * (depth - 1) + b"}" if depth > 1 else b"{}"

    machine = BodyScan(max_depth)
    machine.feed(nested(max_depth))
    machine.finish()
    machine = BodyScan(max_depth=max_depth)
    with pytest.raises(ScanError, match="nested too deep") as caught:
        machine.feed(nested(max_depth + 1))
    assert (caught.value.code, caught.value.offset) == ("too_deep", 4 + max_depth)


# ---- features and tokens ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({"tools": [{}]}, FEATURE_TOOLS),
        ({"functions": [1]}, FEATURE_TOOLS),
        ({"tools": {"a": 1}}, FEATURE_TOOLS),
        ({"tools": []}, 0),
        ({"tools": None}, 0),
        ({"tools": {}}, 0),
        ({"metadata": {"tools": [{}]}}, 0),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, FEATURE_JSON_SCHEMA),
        ({"response_format": {"json_schema": {"type": "object"}, "type": "json_schema"}}, FEATURE_JSON_SCHEMA),
        ({"text": {"format": {"type": "json_schema"}}}, FEATURE_JSON_SCHEMA),
        ({"output_config": {"format": {"type": "json_schema"}}}, FEATURE_JSON_SCHEMA),
        ({"response_format": {"type": "json_object"}}, 0),
        ({"response_format": {"type": "text", "x": {"type": "json_schema"}}}, 0),
        ({"response_format": "json_schema"}, 0),
        ({"text": {"type": "json_schema"}}, 0),
    ],
)
def test_features_of_top_level_fields(fields: dict[str, Any], wanted: int) -> None:
    assert scanned(fields).features == wanted


MEDIA_PARTS = [
    ({"type": "image_url", "image_url": {"url": "data:image/png;base64," + BASE64}}, FEATURE_IMAGES, IMAGE_TOKENS),
    ({"image_url": {"url": BASE64, "detail": "low"}, "type": "image_url"}, FEATURE_IMAGES, IMAGE_TOKENS),
    ({"type": "input_image", "image_url": "data:image/png;base64," + BASE64}, FEATURE_IMAGES, IMAGE_TOKENS),
    ({"type": "image", "source": {"type": "base64", "data": BASE64}}, FEATURE_IMAGES, IMAGE_TOKENS),
    ({"source": {"data": BASE64, "type": "base64"}, "type": "image"}, FEATURE_IMAGES, IMAGE_TOKENS),
    ({"type": "image_generation_call", "id": "ig_1", "result": BASE64}, FEATURE_IMAGES, IMAGE_TOKENS),
    ({"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}}, FEATURE_AUDIO, AUDIO_TOKENS),
    ({"type": "audio_url", "audio_url": {"url": BASE64}}, FEATURE_AUDIO, AUDIO_TOKENS),
    ({"type": "video_url", "video_url": {"url": BASE64}}, FEATURE_IMAGES | FEATURE_FILES, VIDEO_TOKENS),
    ({"type": "file", "file": {"filename": "a.pdf", "file_data": BASE64}}, FEATURE_FILES, FILE_TOKENS),
    ({"type": "input_file", "file_data": BASE64}, FEATURE_FILES, FILE_TOKENS),
    ({"type": "document", "source": {"type": "base64", "data": BASE64}}, FEATURE_FILES, FILE_TOKENS),
]
REMOTE_IMAGE = FEATURE_IMAGES | FEATURE_REMOTE_MEDIA


@pytest.mark.parametrize(("part", "feature", "cost"), MEDIA_PARTS)
def test_media_parts_cost_their_constant_and_never_their_length(part: dict[str, Any], feature: int, cost: int) -> None:
    """B26: a picture is no long text."""
    message = {"role": "user", "content": [{"type": "text", "text": TEXT}, part]}
    machine = scanned({"messages": [message]})
    assert machine.features == feature
    assert machine.estimated_tokens == cost + estimate_tokens(TEXT) + MESSAGE_TOKENS
    assert scanned({"input": [message]}).estimated_tokens == machine.estimated_tokens
    assert scanned({"metadata": [message]}).estimated_tokens == 0


@pytest.mark.parametrize(
    ("part", "features"),
    [
        ({"type": "image_url", "image_url": {"url": "https://a/b.png"}}, REMOTE_IMAGE),
        ({"type": "image_url", "image_url": {"detail": "low", "url": "http://a"}}, REMOTE_IMAGE),
        ({"image_url": {"url": "HTTPS://A"}}, REMOTE_IMAGE),
        ({"type": "image_url", "image_url": "https://a"}, REMOTE_IMAGE),
        ({"type": "image_url", "image_url": {"url": ["x", {"deep": "https://a"}]}}, REMOTE_IMAGE),
        ({"type": "audio_url", "audio_url": {"url": "https://a"}}, FEATURE_AUDIO | FEATURE_REMOTE_MEDIA),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,https://"}}, FEATURE_IMAGES),
        ({"type": "image_url", "image_url": {"url": "https:/a"}}, FEATURE_IMAGES),
        ({"type": "image_url", "image_url": {"url": "httpx://a"}}, FEATURE_IMAGES),
        ({"type": "image_url", "image_url": {"url": "http:"}}, FEATURE_IMAGES),
        ({"type": "image_url", "image_url": {"https://a": 1}}, FEATURE_IMAGES),
        ({"type": "https://a", "text": "https://a"}, 0),
    ],
)
def test_media_that_stands_elsewhere(part: dict[str, Any], features: int) -> None:
    """It is known by the beginning of its URL, in any spelling; links in texts are texts."""
    assert scanned({"messages": [{"role": "user", "content": [part]}]}).features == features
    escaped = json.dumps({"messages": [{"role": "user", "content": [part]}]}).replace("/", "\\/").encode()
    machine = BodyScan()
    machine.feed(escaped)
    machine.finish()
    assert machine.features == features


def test_a_document_that_is_text_counts_as_text() -> None:
    for source in (
        {"type": "text", "media_type": "text/plain", "data": TEXT * 9},
        {"data": TEXT * 9, "type": "text"},
        {"type": "content", "content": [{"type": "text", "text": TEXT * 9}]},
    ):
        assert part_tokens({"type": "document", "source": source}) == estimate_tokens(TEXT * 9)
        assert part_tokens({"source": source, "type": "document"}) == estimate_tokens(TEXT * 9)


def test_nothing_else_inside_a_source_counts() -> None:
    source = {"type": "base64", "data": BASE64, "extra": {"text": TEXT, "data": [TEXT]}, "media_type": TEXT}
    assert part_tokens({"type": "document", "source": source}) == FILE_TOKENS
    assert part_tokens({"type": "document", "source": [TEXT]}) == FILE_TOKENS


def test_a_type_is_compared_whole() -> None:
    for name in ("image_url" + "x" * 30, "image_urls", "image_ur", "Image_url", ""):
        assert part_tokens({"type": name, "text": TEXT}) == estimate_tokens(TEXT)


def test_absent_media_written_as_null_is_absent() -> None:
    part = {"type": "text", "text": TEXT, "image_url": None, "input_audio": None, "file": None}
    assert part_tokens(part) == estimate_tokens(TEXT)


@pytest.mark.parametrize(
    "value", [TEXT, [TEXT], [{"type": "text", "text": TEXT, "cache_control": {"type": "ephemeral"}}]]
)
@pytest.mark.parametrize("key", ["prompt", "input", "instructions", "system", "query", "documents", "suffix"])
def test_text_fields_of_every_surface_count(key: str, value: Any) -> None:
    overhead = MESSAGE_TOKENS if isinstance(value[0], dict) else 0
    assert scanned({key: value}).estimated_tokens == estimate_tokens(TEXT) + overhead


def test_messages_count_their_text_and_no_labels() -> None:
    text = estimate_tokens(TEXT)
    assert tokens([{"role": "user", "content": TEXT}]) == text + MESSAGE_TOKENS
    assert tokens([{"role": "user", "content": [{"type": "text", "text": TEXT}]}]) == text + MESSAGE_TOKENS
    assert tokens([{"role": "assistant", "content": None, "reasoning_content": TEXT}]) == text + MESSAGE_TOKENS
    assert tokens([{"role": "tool", "tool_call_id": "call_" + "x" * 500, "content": TEXT}]) == text + MESSAGE_TOKENS
    call = {"id": "call_" + "x" * 500, "type": "function", "function": {"name": "", "arguments": TEXT}}
    assert tokens([{"role": "assistant", "tool_calls": [call]}]) == text + MESSAGE_TOKENS
    result = {"type": "tool_result", "tool_use_id": "x" * 500, "content": [{"type": "text", "text": TEXT}]}
    assert tokens([{"role": "user", "content": [result]}]) == text + MESSAGE_TOKENS


def test_token_arrays_count_one_each() -> None:
    assert scanned({"prompt": [1, 22, 333_333, 0]}).estimated_tokens == 4
    assert scanned({"input": [[1, 2], [3, 4, 5]]}).estimated_tokens == 5
    assert scanned({"metadata": [1, 2, 3]}).estimated_tokens == 0


def test_schemas_count_with_their_keys_and_punctuation() -> None:
    schema = {"type": "function", "function": {"name": "f", "parameters": {"additionalProperties": False}}}
    texts = ["type", "function", "function", "name", "f", "parameters", "additionalProperties"]
    frames, scalars = 3, 1
    wanted = sum(estimate_tokens(text * 64) / 64 for text in texts) + len(texts) + frames + scalars
    assert scanned({"tools": [schema]}).estimated_tokens == pytest.approx(wanted, abs=1)
    assert scanned({"functions": [schema]}).estimated_tokens == scanned({"tools": [schema]}).estimated_tokens


def test_arguments_given_as_an_object_count_as_json() -> None:
    call = {"type": "tool_use", "id": "t", "name": "", "input": {"url": TEXT, "data": TEXT, "type": "image"}}
    machine = scanned({"messages": [{"role": "assistant", "content": [call]}]})
    assert machine.features == 0
    assert machine.estimated_tokens > 2 * estimate_tokens(TEXT) + MESSAGE_TOKENS + 6


# ---- calling ---------------------------------------------------------------------------------------------------------


def test_a_scan_that_is_over_takes_nothing_more() -> None:
    finished = scanned(b"{}")
    for call in (lambda: finished.feed(b""), finished.finish):
        with pytest.raises(RuntimeError, match="over"):
            call()
    dead = BodyScan()
    with pytest.raises(ScanError):
        dead.feed(b"]")
    for call in (lambda: dead.feed(b"{}"), dead.finish, lambda: dead.model):
        with pytest.raises(RuntimeError):
            call()


@pytest.mark.parametrize(
    "name",
    [
        "model",
        "model_span",
        "stream",
        "features",
        "estimated_tokens",
        "value_count",
        "input_value_count",
        "top_level_keys",
        "insert_at",
    ],
)
def test_nothing_is_read_out_before_the_end(name: str) -> None:
    machine = BodyScan()
    machine.feed(b'{"model":"a"}')
    with pytest.raises(RuntimeError, match="not finished"):
        getattr(machine, name)
    with pytest.raises(RuntimeError, match="not finished"):
        machine.value_span("model")


def test_a_piece_may_be_changed_after_it_was_fed() -> None:
    piece = bytearray(b'{"model":"abc')
    machine = BodyScan()
    machine.feed(piece)
    piece[:] = b"#" * 40
    machine.feed(b'def"}')
    machine.finish()
    assert machine.model == "abcdef"


def test_wrong_pieces_are_type_errors_and_harm_nothing() -> None:
    machine = BodyScan()
    with pytest.raises(TypeError):
        machine.feed("{}")  # type: ignore[arg-type]
    machine.feed(b"{}")
    machine.finish()


@pytest.mark.parametrize("max_depth", [0, -1, 1025])
def test_max_depth_has_bounds(max_depth: int) -> None:
    with pytest.raises(ValueError, match=r"expected 1\.\.1024"):
        BodyScan(max_depth)


def test_block_readers_are_named() -> None:
    assert "words" in block_readers()
    with pytest.raises(ValueError, match="block reader"):
        use_block_reader("none")


def test_dropped_scans_give_their_memory_back() -> None:
    def resident() -> int:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096

    def churn() -> None:
        for _ in range(20_000):
            BodyScan().feed(b'{"model":"abc","k":[')

    churn()
    before = resident()
    churn()
    assert resident() - before < 4 << 20


def test_values_are_counted_and_those_of_the_input_apart() -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}, {"role": "tool", "content": None}]
    machine = scanned({"messages": messages, "tools": [{"type": "function"}], "n": 1})
    assert (machine.value_count, machine.input_value_count) == (14, 10)
    machine = scanned({"input": ["a", "b"], "metadata": [1, 2, 3]})
    assert (machine.value_count, machine.input_value_count) == (7, 3)
    assert scanned({"model": "m", "prompt": "a"}).input_value_count == 1
    assert scanned({}).value_count == 0
