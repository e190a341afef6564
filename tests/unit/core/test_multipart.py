"""The scan of multipart forms: what it reads out, what it refuses, and how it is called."""

from __future__ import annotations

import pytest

from iop_fast._core.multipart import BOUNDARY_BYTES_MAX, HEAD_BYTES_MAX, PARTS_MAX, FormScan, is_boundary
from iop_fast._core.scan import AUDIO_TOKENS, ScanError

MODEL = ('form-data; name="model"', b"whisper-1")
FILE = ('form-data; name="file"; filename="a.wav"', bytes(range(256)) * 40)


def form(*parts: tuple[str, bytes], boundary: bytes = b"b", end: bytes = b"--\r\n") -> bytes:
    """A form as clients write it; the first text of a part is its disposition, and further header lines."""
    body = b"".join(
        b"--%b\r\nContent-Disposition: %b\r\n\r\n%b\r\n" % (boundary, head.encode(), data) for head, data in parts
    )
    return body + b"--" + boundary + end


def scanned(body: bytes, boundary: bytes = b"b") -> FormScan:
    machine = FormScan(boundary)
    machine.feed(body)
    machine.finish()
    return machine


def refusal(body: bytes, boundary: bytes = b"b") -> ScanError:
    try:
        scanned(body, boundary)
    except ScanError as error:
        return error
    pytest.fail(f"taken: {body!r}")


def test_it_reads_the_fields_that_admission_needs() -> None:
    body = form(FILE, MODEL, ('form-data; name="stream"', b"true"), ('form-data; name="prompt"', b"x" * 41))
    found = scanned(body)
    start, end = found.model_span
    assert (found.model, body[start:end], found.stream) == ("whisper-1", b"whisper-1", True)
    assert (found.features, found.estimated_tokens) == (0, AUDIO_TOKENS + 11)


@pytest.mark.parametrize(
    "disposition",
    [
        "form-data; name=model",
        "FORM-DATA;name=model",
        'form-data ; name = "model"'.replace(" = ", "="),
        'form-data; name="model"\r\nContent-Type: text/plain; charset=utf-8',
        'form-data; name="model"\r\ncontent-type: TEXT/PLAIN;charset="UTF-8"',
        'form-data; name="model"\r\nContent-Length: 9',
        'form-data; name="model"\r\nContent-Transfer-Encoding: 8bit\r\nX-Anything: at all',
    ],
)
def test_it_takes_what_clients_write(disposition: str) -> None:
    """Spellings of the openai, requests, OkHttp, Faraday and .NET libraries."""
    assert scanned(form((disposition, b"whisper-1"), FILE)).model == "whisper-1"


@pytest.mark.parametrize(
    "file",
    [
        "form-data; name=file; filename=a.mp3; filename*=utf-8''a.mp3",
        'form-data; name="file"; filename="\ud55c\uad6d\uc5b4 (1).m4a"',
        'form-data; filename="it\'s %22quoted%22.wav"; name="file"\r\nContent-Type: audio/wav',
    ],
)
def test_it_takes_names_of_files_that_are_read_one_way(file: str) -> None:
    assert scanned(form(MODEL, (file, b"data"))).estimated_tokens == AUDIO_TOKENS


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ('form-data; name="Model"', "another spelling"),
        ('form-data; name="model[]"', "another spelling"),
        ('form-data; name="stream.x"', "another spelling"),
        ('form-data; name="model"; filename="m"', "is a file"),
        ('form-data; name="model"; name="file"', "with a name"),
        ("form-data; name*=utf-8''model", "with a name"),
        ('form-data; name*0="mo"; name*1="del"', "with a name"),
        ('form-data; name="mod%65l"', "characters"),
        ('form-data; name="=?utf-8?q?model?="', "characters"),
        ('form-data; name="mod\\el"', "backslash"),
        ('form-data; name="file"; filename="a\\"; name=\\"model"', "backslash"),
        ('form-data; name="file"; filename="a; name=model"', "semicolon"),
        ('form-data; name="file"; filename="a"b"', "malformed"),
        ("form-data; name=\"file\"; filename*=utf-8''a.wav", "filename*"),
        ("form-data; name=file; filename=a; filename*=utf-8''b", "filename*"),
        ("form-data; name=file; filename=a; filename*=iso-8859-1''a", "filename*"),
        ('attachment; name="model"', "form-data"),
        ("form-data", "characters"),
        ('form-data; name="model";', "malformed"),
        ('form-data; name="_charset_"', "_charset_"),
        ('form-data; name="model"\r\nContent-Disposition: form-data; name="x"', "twice"),
        ('form-data; name="x"\r\n ; y=z', "folded"),
        ('form-data; name="x"\r\nContent-Type : text/plain', "malformed"),
        ('form-data; name="x"\r\nContent-Transfer-Encoding: base64', "transfer-encoding"),
        ('form-data; name="x"\r\nContent-Transfer-Encoding: quoted-printable', "transfer-encoding"),
        ('form-data; name="x"\r\nContent-Encoding: gzip', "content-encoding"),
        ('form-data; name="x"\r\nContent-Type: multipart/mixed; boundary=y', "multipart"),
        ('form-data; name="model"\r\nContent-Type: text/plain; charset=utf-16', "UTF-8"),
        ('form-data; name="model"\r\nContent-Type: application/json', "UTF-8"),
        ('form-data; name="x"\r\nContent-Length: 4', "length"),
        ('form-data; name="x"\r\nContent-Length: +3', "length"),
        ('form-data; name="x"\nContent-Type: text/plain', "bare line end"),
    ],
)
def test_it_refuses_parts_that_parsers_read_differently(head: str, words: str) -> None:
    error = refusal(form(MODEL, (head, b"abc"), FILE))
    assert error.code == "bad_part"
    assert words in str(error)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "empty"),
        (form(MODEL, end=b""), "before its closing boundary"),
        (form(MODEL)[:-30], "before its closing boundary"),
        (b"preamble\r\n" + form(MODEL), "expected the boundary"),
        (b"\n" + form(MODEL), "expected the boundary"),
        (form(MODEL, end=b"--\r\n\r\n"), "nothing behind"),
        (form(MODEL, end=b"--more"), "nothing behind"),
        (form(MODEL, end=b" --"), "behind a boundary"),
        (form(MODEL, end=b"-"), "before its closing boundary"),
        (form(MODEL).replace(b"\r\n", b"\n"), "behind a boundary"),
        (form(MODEL, ("form-data; name=x", b"1\n--b\r\nContent-Disposition: form-data; name=model\r\n\r\nn")), "bare"),
        (form(MODEL, ("form-data; name=x", b"1\r--b--")), "bare"),
        (form(MODEL, ("form-data; name=x", b"1\r\n--bad")), "behind a boundary"),
        (form(MODEL, boundary=b"c"), "expected the boundary"),
        (b"--b\r\nContent-Disposition: form-data; name=model\r\n\r\n--b--", "expected CRLF before"),
        (b"--b\r\n\r\nx\r\n--b--", "no content-disposition"),
    ],
)
def test_it_refuses_framing_that_parsers_read_differently(body: bytes, words: str) -> None:
    assert words in str(refusal(body))


def test_a_line_end_before_the_first_boundary_is_taken() -> None:
    assert scanned(b"\r\n" + form(MODEL, end=b"--")).model == "whisper-1"


def test_a_boundary_inside_a_line_is_data() -> None:
    data = b"--b\r\n-\r\n--a x--b-- ---b"
    assert scanned(form(("form-data; name=x", b"-" + data), MODEL)).model == "whisper-1"


@pytest.mark.parametrize(
    ("parts", "code", "param"),
    [
        ((FILE,), "missing_field", "model"),
        ((MODEL, MODEL), "duplicate_field", "model"),
        ((MODEL, ("form-data; name=stream", b"1"), ("form-data; name=stream", b"1")), "duplicate_field", "stream"),
        ((("form-data; name=model", b"m" * 1025),), "bad_field", "model"),
        ((("form-data; name=model", b"m" * 100_000),), "bad_field", "model"),
        ((("form-data; name=model", b"\xff"),), "bad_field", "model"),
        ((("form-data; name=model", b"a\x00"),), "bad_field", "model"),
        ((MODEL, ("form-data; name=stream", b"yes")), "bad_field", "stream"),
    ],
)
def test_it_refuses_fields_that_it_cannot_take(parts: tuple[tuple[str, bytes], ...], code: str, param: str) -> None:
    error = refusal(form(*parts))
    assert (error.code, error.param) == (code, param)


def test_heads_and_parts_are_bounded() -> None:
    long = f"form-data; name=x\r\nX-Y: {'y' * HEAD_BYTES_MAX}"
    assert "longer than" in str(refusal(form(MODEL, (long, b""))))
    many = [MODEL, *[("form-data; name=x", b"")] * PARTS_MAX]
    assert scanned(form(*many[:-1])).model == "whisper-1"
    assert refusal(form(*many)).code == "too_many_parts"


@pytest.mark.parametrize("boundary", [b"", b"b" * (BOUNDARY_BYTES_MAX + 1), b"a b", b"a\r\n", b"\xe9", b'"', b"a;b"])
def test_a_boundary_is_of_rfc_2046(boundary: bytes) -> None:
    assert not is_boundary(boundary)
    with pytest.raises(ValueError, match="boundary"):
        FormScan(boundary)
    assert is_boundary(b"----WebKitFormBoundary7MA4YWxkTrZu0gW'()+_,./:=?")


def test_a_scan_is_used_once() -> None:
    machine = FormScan(b"b")
    with pytest.raises(RuntimeError, match="not finished"):
        _ = machine.model
    machine.feed(memoryview(form(MODEL)))
    machine.finish()
    with pytest.raises(RuntimeError, match="over"):
        machine.feed(b"")
    dead = FormScan(b"b")
    with pytest.raises(ScanError):
        dead.feed(b"x")
    for again in (lambda: dead.feed(b"--b"), dead.finish, lambda: dead.model_span):
        with pytest.raises(RuntimeError):
            again()
    with pytest.raises(TypeError):
        FormScan(b"b").feed("text")  # type: ignore[arg-type]
