"""The compiled scan of forms against the plain one: any form, whole or broken, in any pieces."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

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
