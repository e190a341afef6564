"""The compiled scan of forms against the plain one: any form, whole or broken, in any pieces."""

from __future__ import annotations

import io
from collections.abc import Iterator
from email.parser import BytesParser
from email.policy import HTTP
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from python_multipart.multipart import MultipartParser, parse_options_header
from werkzeug.formparser import parse_form_data

from iop_fast._core.multipart import FormScan
from iop_fast._core.scan import ScanError
from tests.model import form_reference

BOUNDARIES = [b"x", b"-", b"--", b"----", b"-x-", b"abab", b"----WebKitFormBoundary7MA4YWxkTrZu0gW", b"b" * 70]
NAMES = [
    b"model", b"stream", b"file", b"prompt", b"language", b"timestamp_granularities[]", b"Model", b"model[]", b"STREAM",
    b"stream.x", b"_charset_", b"a b", b"m\xc3\xb6del", b"mod%65l", b"", b"n" * 65, b"model_id",
]  # fmt: skip
VALUES = [
    b"whisper-1", b"true", b"TRUE", b"1", b"false", b"yes", b"", b"org/m:1", b"\xed\x95\x9c", b"\xff", b"a\nb", b"a\rb",
    b"a\x00", b"m" * 1024, b"m" * 1025, b"\xed\x95\x9c" * 1025, b"\xf0\x9f\x98\x80" * 1024, b"m" * 5000,
]  # fmt: skip
PARAMETERS = [
    b"", b'; filename="a.wav"', b"; filename=a.wav", b'; filename=""', b'; filename="a;b"', b'; filename="a\\"b"',
    b"; filename=a; filename*=utf-8''a", b"; filename=a; filename*=UTF-8''%61", b"; filename*=utf-8''a",
    b"; name=model", b'; filename=a; filename*=utf-8"a', b"; x=y", b";", b"; name*=utf-8''model", b' ;\tfilename = "x"',
    b'; FILENAME="a"',
]  # fmt: skip
HEADERS = [
    b"Content-Type: text/plain", b"content-type:text/plain; charset=UTF-8", b"Content-Type: text/plain; charset=utf-16",
    b"Content-Type: audio/wav", b"Content-Type: multipart/mixed; boundary=y", b"Content-Transfer-Encoding: binary",
    b"Content-Transfer-Encoding: base64", b"Content-Length: 9", b"Content-Length: 4", b"Content-Length: +4", b"X-Y: z",
    b"Content-Encoding: gzip", b" folded", b"no colon", b"Bad Name: x", b"X\x00: y", b"X: \x7f", b"X: " + b"y" * 5000,
    b'Content-Type: text/plain; charset="us-ascii"', b'Content-Disposition: form-data; name="model"', b"X: \xff\xfe",
]  # fmt: skip


@st.composite
def parts(draw: st.DrawFn, boundary: bytes) -> bytes:
    name = draw(st.sampled_from(NAMES[:6] * 6 + NAMES))
    quoted = draw(st.sampled_from([b'"%b"', b'"%b"', b"%b"])) % name
    disposition = b"Content-Disposition: form-data; name=" + quoted + draw(st.sampled_from([b""] * 20 + PARAMETERS))
    headers = [disposition, *draw(st.lists(st.sampled_from(HEADERS), max_size=draw(st.sampled_from([0, 0, 1, 2]))))]
    noise = st.sampled_from([b"\r", b"\n", b"\r\n", b"-", b"--", b"\r\n--", b"--" + boundary, boundary[:3], b"z" * 9])
    value = draw(
        st.one_of(st.sampled_from(VALUES), st.just(b"whisper-1"), st.binary(max_size=40), st.lists(noise).map(b"".join))
    )
    return b"\r\n".join(draw(st.permutations(headers))) + b"\r\n\r\n" + value


@st.composite
def forms(draw: st.DrawFn) -> tuple[bytes, bytes]:
    boundary = draw(st.sampled_from(BOUNDARIES))
    line = b"--" + boundary
    body = draw(st.sampled_from([b"", b"", b"", b"\r\n", b"\r", b"preamble\r\n"]))
    model = b'Content-Disposition: form-data; name="model"\r\n\r\nm'
    made = draw(st.lists(st.one_of(parts(boundary), st.just(model)), max_size=4))
    body += b"".join(line + b"\r\n" + part + b"\r\n" for part in made)
    end = draw(st.sampled_from([b"--\r\n"] * 6 + [b"--", b"--\r", b"--\r\nmore", b"--x", b"-", b"", b" \r\n", b"\n"]))
    return body + line + end, boundary


@st.composite
def broken_forms(draw: st.DrawFn) -> tuple[bytes, bytes]:
    made, boundary = draw(forms())
    body = bytearray(made)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(body)))
        junk = draw(st.one_of(st.binary(max_size=3), st.sampled_from([b"\r", b"\n", b"\r\n", b"-", b'"', b";", b"="])))
        body[at : at + draw(st.integers(0, 3))] = junk
    return bytes(body), boundary


@st.composite
def plain_forms(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Forms that are taken as a rule: parts in the spellings of clients, data that resembles the boundary."""
    boundary = draw(st.sampled_from(BOUNDARIES))
    noise = st.sampled_from([b"\r", b"\n", b"\r\n", b"-", b"\r\n-", b"\r\n--", boundary[:-1], b"z", b"\x00", b"\xff"])
    others = [
        b'"file"; filename="\xed\x95\x9c (1).wav"',
        b"file; filename=a.wav; filename*=utf-8''a.wav",
        b'"prompt"',
        b'"x[]"',
    ]
    spellings = st.sampled_from([b'"model"', b"model", b'"model"\r\nContent-Type: text/plain; charset=utf-8'])
    values = st.sampled_from(
        [b"whisper-1", b"org/m:1", b"", b" m ", b"\xed\x95\x9c", b"--", boundary, b"--" + boundary, b"m" * 99]
    )
    parts = [
        (draw(st.sampled_from(others)), b"".join(draw(st.lists(noise, max_size=9))))
        for _ in range(draw(st.integers(0, 3)))
    ]
    parts.insert(draw(st.integers(0, len(parts))), (draw(spellings), draw(values)))
    line = b"--" + boundary
    body = b"".join(line + b"\r\nContent-Disposition: form-data; name=%b\r\n\r\n%b\r\n" % part for part in parts)
    return body + line + b"--" + draw(st.sampled_from([b"", b"\r\n"])), boundary


def pieces(body: bytes, cuts: list[int]) -> Iterator[bytes]:
    edges = sorted({0, len(body), *(cut % (len(body) + 1) for cut in cuts)})
    for start, end in pairwise(edges):
        yield body[start:end]


def compiled_outcome(body: bytes, boundary: bytes, cuts: list[int]) -> dict[str, Any]:
    machine = FormScan(boundary)
    try:
        for piece in pieces(body, cuts):
            machine.feed(piece)
        machine.finish()
    except ScanError as error:
        return {"code": error.code, "offset": error.offset, "param": error.param}
    return {name: getattr(machine, name) for name in ("model", "model_span", "stream", "estimated_tokens")}


def reference_outcome(body: bytes, boundary: bytes) -> dict[str, Any]:
    try:
        return dict(vars(form_reference.scan(body, boundary)))
    except form_reference.Refused as refused:
        return {"code": refused.code, "offset": refused.offset, "param": refused.param}


cut_lists = st.one_of(st.just([]), st.lists(st.integers(0, 2**16), max_size=6), st.just(list(range(2**13))))


@given(forms(), cut_lists)
@settings(max_examples=600, deadline=None)
def test_a_form_is_read_as_the_reference_reads_it(form: tuple[bytes, bytes], cuts: list[int]) -> None:
    assert compiled_outcome(*form, cuts) == reference_outcome(*form)


@given(broken_forms(), cut_lists)
@settings(max_examples=600, deadline=None)
def test_a_broken_form_is_refused_for_the_same_byte(form: tuple[bytes, bytes], cuts: list[int]) -> None:
    assert compiled_outcome(*form, cuts) == reference_outcome(*form)


@given(st.sampled_from(BOUNDARIES[:6]), st.data(), cut_lists)
@settings(max_examples=400, deadline=None)
def test_data_that_resembles_its_boundary_is_cut_alike(boundary: bytes, data: st.DataObject, cuts: list[int]) -> None:
    bricks = [b"-", b"\r\n", b"\r", b"\n", boundary, b"--" + boundary, b"\r\n--" + boundary, b"x", b"a"]
    inside = b"".join(data.draw(st.lists(st.sampled_from(bricks), max_size=14)))
    head = b"\r\nContent-Disposition: form-data; name=model\r\n\r\n"
    body = b"--" + boundary + head + inside + b"\r\n--" + boundary + b"--"
    assert compiled_outcome(body, boundary, cuts) == reference_outcome(body, boundary)


@given(st.one_of(plain_forms(), forms()))
@settings(max_examples=400, deadline=None)
def test_what_is_taken_is_read_alike_by_other_parsers(form: tuple[bytes, bytes]) -> None:
    """Werkzeug, the parser behind Starlette and so vLLM, and the standard library's find the admitted model."""
    found = compiled_outcome(*form, [])
    if "code" not in found:
        model = found["model"].encode()
        assert by_werkzeug(*form) == by_python_multipart(*form) == by_email(*form) == [model]


def by_werkzeug(body: bytes, boundary: bytes) -> list[bytes]:
    environ = {
        "REQUEST_METHOD": "POST",
        "CONTENT_TYPE": f'multipart/form-data; boundary="{boundary.decode()}"',
        "CONTENT_LENGTH": str(len(body)),
        "wsgi.input": io.BytesIO(body),
    }
    _, fields, files = parse_form_data(environ, silent=False)
    for _, file in files.items(multi=True):
        file.close()
    assert not files.getlist("model")
    return [value.encode() for value in fields.getlist("model")]


def by_python_multipart(body: bytes, boundary: bytes) -> list[bytes]:
    parts: list[dict[str, bytes]] = []

    def add(name: str) -> Any:
        def on_bytes(data: bytes, start: int, end: int) -> None:
            parts[-1][name] += data[start:end]

        return on_bytes

    def on_header_end() -> None:
        if parts[-1]["name"].lower() == b"content-disposition":
            parts[-1]["disposition"] = parts[-1]["value"]
        parts[-1]["name"] = parts[-1]["value"] = b""

    callbacks: Any = {
        "on_part_begin": lambda: parts.append({"name": b"", "value": b"", "data": b"", "disposition": b""}),
        "on_header_field": add("name"),
        "on_header_value": add("value"),
        "on_header_end": on_header_end,
        "on_part_data": add("data"),
    }
    parser = MultipartParser(boundary, callbacks)
    parser.write(body)
    parser.finalize()
    return [part["data"] for part in parts if parse_options_header(part["disposition"])[1].get(b"name") == b"model"]


def by_email(body: bytes, boundary: bytes) -> list[bytes]:
    head = b'Content-Type: multipart/form-data; boundary="%b"\r\n\r\n' % boundary
    message: Any = BytesParser(policy=HTTP).parsebytes(head + body)
    named = [part for part in message.iter_parts() if part.get_param("name", header="content-disposition") == "model"]
    return [part.get_payload(decode=True) for part in named]
