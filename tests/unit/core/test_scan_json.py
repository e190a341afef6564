"""The scan's grammar: documents that must be taken and documents that must be refused, in any split.

The cases are our own, after the kinds of the published JSON test suites: numbers, strings, escapes, UTF-8, structure.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from iop_fast._core.json_string import block_readers, use_block_reader
from iop_fast._core.scan import BodyScan, ScanError

VALUES_TAKEN = [
    # numbers, any size
    b"0", b"-0", b"0.0", b"-0.0", b"1", b"-1", b"10", b"1234567890", b"0.1", b"1.05", b"0e1", b"0E1", b"0e+1",
    b"1e-1",
    b"1E+2", b"1.5e300", b"123.456e-78", b"-0.000000000000000000000000000001", b"1e999999", b"-1e-999999",
    b"9" * 500, b"0." + b"1" * 500, b"1e" + b"0" * 500, b"18446744073709551616",
    # literals
    b"true", b"false", b"null",
    # strings and escapes
    b'""', b'"a"', b'" "', rb'"\"\\\/\b\f\n\r\t"', rb'"\u0000"', rb'"\u0022"', rb'"\uFFFF"', rb'"\uabcd\uABCD"',
    rb'"\ud83d\ude00"', rb'"\ud83d"', rb'"\ude00"', rb'"\ude00\ud83d"', rb'"\ud83d\ud83d\ude00"', rb'"\ud83dx"',
    rb'"\ud83d\n"', rb'"\\u0041"', rb'"\\\\"', b'"\x7f"', b'"' + b"\\\\" * 100 + b'"', b'"' + rb"\n" * 100 + b'"',
    b'"' + b"a" * 63 + rb'\n"', b'"' + b"a" * 62 + rb'\n"', b'"' + b"a" * 63 + rb'\""',
    b'"' + b"a" * 61 + rb'\\\""',
    b'"' + b"a" * 200 + b'"', b'"' + b"a" * 63 + b'"', b'"' + b"a" * 64 + b'"', b'"' + b"a" * 65 + b'"',
    # UTF-8: first and last of every length, non-characters, neighbours of the surrogates
    b'"\xc2\x80"', b'"\xdf\xbf"', b'"\xe0\xa0\x80"', b'"\xed\x9f\xbf"', b'"\xee\x80\x80"', b'"\xef\xbf\xbd"',
    b'"\xef\xbf\xbe"', b'"\xef\xbf\xbf"', b'"\xf0\x90\x80\x80"', b'"\xf4\x8f\xbf\xbf"', b'"\xef\xbb\xbf"',
    "\"é한😀\u2028\u2029\"".encode(), b'"' + "한글 ".encode() * 50 + b'"', b'"' + "é".encode() * 100 + b'"',
    # structure
    b"[]", b"{}", b"[ ]", b"{ }", b"[[]]", b"[{}]", b"[1]", b"[1,2]", b"[ 1 , 2 ]", b"[null,true,false]", b'{"":0}',
    b'{"a":{"a":{"a":{}}}}', b'{"a":1,"a":2}', b'{"a":[],"b":{}}', b"\t\r\n 1 \t\r\n", b"[[[[[[[[[[1]]]]]]]]]]",
    rb'{"\u0061":1}', b'[1,[2,[3,{"x":[4]}]]]', b'["a","b"]',
]  # fmt: skip

VALUES_REFUSED = [
    # numbers
    b"-", b"+1", b"01", b"-01", b"00", b"1.", b".1", b"-.1", b"1.e1", b"1e", b"1e+", b"1e-", b"1E", b"1.2.3",
    b"1e1.5",
    b"1e1e1", b"1-", b"1+1", b"--1", b"0x1", b"1_000", b"1a", b"1 000", b"Infinity", b"-Infinity", b"NaN", b"-NaN",
    b"inf",
    b"\xef\xbc\x91", b"0e", b"0.e", b"-a", b"9.a", b"1ee1", b"1e++1", b"2/3", b"1\x00",
    # literals
    b"True", b"TRUE", b"tru", b"truex", b"nul", b"nulll", b"fals", b"undefined", b"none", b"nan", b"t", b"n", b"f",
    b"falsetrue",
    b"truefalse", b"null1", b"tru\\u0065",
    # strings
    b'"', b'"a', b"'a'", b"a", b'"\\', b'"\\"', rb'"\x41"', rb'"\a"', rb'"\v"', rb'"\0"', rb'"\u"', rb'"\u0"',
    rb'"\u00"',
    rb'"\u004"', rb'"\u00g1"', rb'"\uD83d\u"', rb'"\u+041"', rb'"\u 041"', rb'"\U00e9"', rb'"\ud83d\x"', rb'"\'"',
    b'"\n"', b'"\t"', b'"\r"', b'"\x00"', b'"\x1f"', b'"a\x0bb"', b'"' + b"a" * 70 + b'\n"',
    b'"' + b"a" * 63 + b'\\x"',
    b'"a"b"', b'"a""b"', b'"a" "b"', b'"\\\n"', "“a”".encode(),
    # UTF-8
    b'"\x80"', b'"\xbf"', b'"\xc0\x80"', b'"\xc1\xbf"', b'"\xc2"', b'"\xc2a"', b'"\xe0\x80\x80"', b'"\xe0\x9f\xbf"',
    b'"\xed\xa0\x80"', b'"\xed\xbf\xbf"', b'"\xe4\xb8"', b'"\xe4"', b'"\xe4\xb8a"', b'"\xe4a\xb8"',
    b'"\xf0\x8f\xbf\xbf"',
    b'"\xf4\x90\x80\x80"', b'"\xf5\x80\x80\x80"', b'"\xf8\x88\x80\x80\x80"', b'"\xfe"', b'"\xff"',
    b'"\xf0\x9f\x98"',
    b'"\xf0\x9f"', b'"\xed\xa0\xbd\xed\xb8\x80"', b'"' + b"a" * 100 + b'\xff"',
    b'"' + "한".encode() * 30 + b'\xe1\x80"',
    b'"caf\xe9"',
    # structure
    b"[", b"]", b"{", b"}", b"[1", b"[1,", b"[1,]", b"[,1]", b"[,]", b"[1 2]", b"[1;2]", b"[1}", b"{]", b"[1,,2]",
    b"[1:2]",
    b'{"a"}', b'{"a":}', b'{"a":1,}', b'{,"a":1}', b'{"a" 1}', b'{"a",1}', b"{1:1}", b"{a:1}", b"{'a':1}",
    b'{"a":1 "b":2}',
    b'{"a":1,,"b":2}', b'{"a"::1}', b'{null:1}', b"{[]:1}", b'{"a":1]', b"[1]]", b"{}}", b"1 2", b"//x\n1",
    b"/* x */1", b"1 // x", b"#x\n1", b"\x0c1", b"\x0b1", b"\xa01", b"\xc2\xa01", b"\xe3\x80\x801",
    b"\xef\xbb\xbf1",
    b"1\x1a",
    b"\x001", b"<a>", b"*", b"(1)", b"`a`", b"\\u0031", b"[\"a\",\n4\n,1,", b'{"a":"b"', b'["a', b'{"a',
    b"{\"a\":\"a\" 123}",
]  # fmt: skip

DOCUMENTS_TAKEN = [b"{}", b" {} ", b"\n{\t}\r\n", b'{"a":1}', b'{"a":1}' + b" " * 200, b"{}" + b"\n" * 70]
DOCUMENTS_REFUSED = [
    b"", b" ", b"{", b"}", b"{}{}", b"{}x", b"{},", b"{}\x00", b"x{}", b"\xef\xbb\xbf{}", b"\xff\xfe{\x00}\x00",
    b"{\x00}",
    b"{}\xef\xbb\xbf", b")]}'\n{}", b"data: {}", b"\x1f\x8b\x08\x00", b"a=1&b=2",
    b"--x\r\nContent-Disposition: form-data",
    b"[]", b'""', b"1", b"true", b"null", b"-", b"undefined", b"\\{}", b"{}//", b"//\n{}",
]  # fmt: skip


@pytest.fixture(params=block_readers(), autouse=True, scope="module")
def block_reader(request: pytest.FixtureRequest) -> Iterator[None]:
    use_block_reader(request.param)
    yield
    use_block_reader(block_readers()[0])


def outcome(*pieces: bytes) -> tuple[str, int] | None:
    """The fault as (code, offset), None for a body that is taken."""
    machine = BodyScan()
    try:
        for piece in pieces:
            machine.feed(piece)
        machine.finish()
    except ScanError as error:
        return error.code, error.offset
    return None


def outcomes_of_splits(body: bytes) -> set[tuple[str, int] | None]:
    """Outcomes of the whole body, of every cut in two (of long bodies: near the ends), and of single bytes."""
    cuts = [cut for cut in range(len(body) + 1) if cut < 100 or len(body) - cut < 100]
    found = {outcome(body[:cut], body[cut:]) for cut in cuts}
    return found | {outcome(body), outcome(*(body[at : at + 1] for at in range(len(body))))}


def framed(value: bytes) -> list[bytes]:
    """The value as a field's, as an array's only item, and as text that counts."""
    return [
        b'{"x":' + value + b"}",
        b'{"messages":[' + value + b"]}",
        b'{"x":[0,' + value + b'],"y":"' + b"z" * 70 + b'"}',
    ]


@pytest.mark.parametrize("value", VALUES_TAKEN, ids=repr)
def test_json_is_taken(value: bytes) -> None:
    for body in framed(value):
        assert outcomes_of_splits(body) == {None}


@pytest.mark.parametrize("value", VALUES_REFUSED, ids=repr)
def test_what_is_no_json_is_refused_at_one_byte(value: bytes) -> None:
    for body in framed(value):
        found = outcomes_of_splits(body)
        assert len(found) == 1
        code, offset = found.pop() or ("taken", 0)
        assert code in ("invalid_json", "invalid_utf8")
        assert 0 < offset <= len(body)


@pytest.mark.parametrize("body", DOCUMENTS_TAKEN, ids=repr)
def test_an_object_is_taken(body: bytes) -> None:
    assert outcomes_of_splits(body) == {None}


@pytest.mark.parametrize("body", DOCUMENTS_REFUSED, ids=repr)
def test_what_is_no_object_is_refused(body: bytes) -> None:
    found = outcomes_of_splits(body)
    assert len(found) == 1
    assert found != {None}


def test_the_lists_agree_with_another_parser() -> None:
    """Python's parser is lenient about constants, which the lists hold as refused, and about nothing else here."""
    for value in VALUES_TAKEN:
        json.loads(b'{"x":%s}' % value, parse_int=str)
    for value in VALUES_REFUSED:
        if value in (b"Infinity", b"-Infinity", b"NaN"):
            continue
        with pytest.raises(ValueError):
            json.loads((b'{"x":%s}' % value).decode(), parse_int=str)


def test_every_byte_is_judged_in_every_state() -> None:
    """Each byte behind each prefix: the scan takes it exactly if some document goes on like that."""
    prefixes = [
        b"", b"{", b'{"', b'{"\\', b'{"\\u', b'{"\\u0', b'{"a"', b'{"a":', b'{"a":1', b'{"a":-', b'{"a":0',
        b'{"a":1.', b'{"a":1.5',
        b'{"a":1e', b'{"a":1e+', b'{"a":1e5', b'{"a":t', b'{"a":[', b'{"a":[1', b'{"a":[1,', b'{"a":"x"',
        b'{"a":1,',
        b"{}", b'{"\xe4',
    ]  # fmt: skip
    wanted = {
        b"": b"{", b"{": b'"}', b'{"a"': b":", b'{"a":': b'"-0123456789tfn[{', b'{"a":1': b"0123456789.eE,}",
        b'{"a":-': b"0123456789",
        b'{"a":0': b".eE,}", b'{"a":1.': b"0123456789", b'{"a":1.5': b"0123456789eE,}", b'{"a":1e': b"0123456789+-",
        b'{"a":1e+': b"0123456789", b'{"a":1e5': b"0123456789,}", b'{"a":t': b"r", b'{"a":[': b'"-0123456789tfn[{]',
        b'{"a":[1': b"0123456789.eE,]", b'{"a":[1,': b'"-0123456789tfn[{', b'{"a":"x"': b",}", b'{"a":1,': b'"',
        b"{}": b"",
        b'{"\\': b'"\\/bfnrtu', b'{"\\u': b"0123456789abcdefABCDEF", b'{"\\u0': b"0123456789abcdefABCDEF",
        b'{"': bytes(range(0x20, 0x80)) + bytes(range(0xC2, 0xF5)), b'{"\xe4': bytes(range(0x80, 0xC0)),
    }  # fmt: skip
    spaced = {
        b"",
        b"{",
        b'{"a"',
        b'{"a":',
        b'{"a":1',
        b'{"a":0',
        b'{"a":1.5',
        b'{"a":1e5',
        b'{"a":[',
        b'{"a":[1',
        b'{"a":[1,',
    }
    spaced |= {b'{"a":"x"', b'{"a":1,', b"{}"}
    for prefix in prefixes:
        taken = set(wanted[prefix] + (b" \t\n\r" if prefix in spaced else b""))
        for byte in range(256):
            machine = BodyScan()
            machine.feed(prefix)
            if byte in taken:
                machine.feed(bytes([byte]))
                continue
            with pytest.raises(ScanError) as caught:
                machine.feed(bytes([byte]))
            assert caught.value.offset == len(prefix)
