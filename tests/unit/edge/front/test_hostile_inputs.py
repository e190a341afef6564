"""The table of inputs that separate a strict HTTP/1.1 server from a lenient one, each whole and byte by byte.

`SERVED` rows name what the service must get; the others the status of the only answer, after which the connection ends
and nothing that followed is served.
"""

from __future__ import annotations

import re

import pytest

from tests.unit.edge.front.harness import Bench, Client, Recorder

STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
BODY = b'{"a":1}'


def post(*fields: bytes, body: bytes = BODY, line: bytes = b"POST /v1 HTTP/1.1", host: bytes = b"Host: a") -> bytes:
    return b"\r\n".join([line, *([host] if host else []), *fields, b"", b""]) + body


def chunked(body: bytes) -> bytes:
    return post(b"Transfer-Encoding: chunked", body=body)


def get(target: bytes, *fields: bytes, version: bytes = b"HTTP/1.1", host: bytes = b"Host: a") -> bytes:
    return post(*fields, line=b"GET " + target + b" " + version, host=host, body=b"")


CL = b"Content-Length: 7"
TE = b"Transfer-Encoding: chunked"
CHUNKS = b"7\r\n" + BODY + b"\r\n0\r\n\r\n"

REFUSED: dict[str, tuple[bytes, int]] = {
    "CL and TE": (post(CL, TE, body=CHUNKS), 400),
    "TE and CL": (post(TE, CL, body=CHUNKS), 400),
    "two equal CL": (post(CL, CL), 400),
    "two different CL": (post(CL, b"Content-Length: 8"), 400),
    "CL list": (post(b"Content-Length: 7, 7"), 400),
    "CL with plus": (post(b"Content-Length: +7"), 400),
    "CL negative": (post(b"Content-Length: -1"), 400),
    "CL hexadecimal": (post(b"Content-Length: 0x7"), 400),
    "CL empty": (post(b"Content-Length: "), 400),
    "CL 2^64": (post(b"Content-Length: 18446744073709551616"), 400),
    "CL of 19 digits": (post(b"Content-Length: 9223372036854775807"), 400),
    "CL huge": (post(b"Content-Length: 99999999999"), 413),
    "space before colon": (post(b"Content-Length : 7"), 400),
    "tab before colon": (post(b"Content-Length\t: 7"), 400),
    "obs-fold": (post(b"X-A: b\r\n c", CL), 400),
    "obs-fold on the first field": (post(b" X-A: b", CL, host=b""), 400),
    "bare LF line ends": (post(CL).replace(b"\r\n", b"\n"), 400),
    "bare LF after one field": (post(b"X-A: b\nX-B: c", CL), 400),
    "bare CR in a value": (post(b"X-A: b\rc", CL), 400),
    "CR LF CR X at the end of the head": (b"POST /v1 HTTP/1.1\r\nHost: a\r\n\rX\r\n\r\n", 400),
    "NUL in a value": (post(b"X-A: b\0c", CL), 400),
    "NUL in a name": (post(b"X-\0A: b", CL), 400),
    "DEL in a value": (post(b"X-A: b\x7fc", CL), 400),
    "control in a value": (post(b"X-A: b\x01c", CL), 400),
    "name that is no token": (post(b"X(Y): b", CL), 400),
    "empty name": (post(b": b", CL), 400),
    "field without colon": (post(b"Content-Length 7", CL), 400),
    "no Host": (get(b"/", host=b""), 400),
    "two Hosts": (get(b"/", b"Host: a"), 400),
    "two different Hosts": (get(b"/", b"Host: b"), 400),
    "empty Host": (get(b"/", host=b"Host:"), 400),
    "Host with a path": (get(b"/", host=b"Host: a/b"), 400),
    "Host with a query": (get(b"/", host=b"Host: a?b"), 400),
    "Host with a user": (get(b"/", host=b"Host: u@a"), 400),
    "Host with a space": (get(b"/", host=b"Host: a b"), 400),
    "Host list": (get(b"/", host=b"Host: a, b"), 400),
    "Host with a bad port": (get(b"/", host=b"Host: a:b"), 400),
    "bad Host on 1.0": (get(b"/", version=b"HTTP/1.0", host=b"Host: a/b"), 400),
    "two Hosts on 1.0": (get(b"/", b"Host: a", version=b"HTTP/1.0"), 400),
    "absolute form of another host": (get(b"http://b/v1"), 400),
    "absolute form with a user": (get(b"http://u@a/v1"), 400),
    "absolute form of another scheme": (get(b"ftp://a/v1"), 400),
    "authority form": (get(b"a:80"), 400),
    "CONNECT": (post(line=b"CONNECT a:80 HTTP/1.1", body=b"tunnel"), 405),
    "TRACE": (post(line=b"TRACE / HTTP/1.1", body=b""), 405),
    "asterisk": (get(b"*"), 400),
    "asterisk for OPTIONS": (post(line=b"OPTIONS * HTTP/1.1", body=b""), 400),
    "space in the target": (get(b"/a b"), 400),
    "control in the target": (get(b"/a\x01b"), 400),
    "0xff in the target": (get(b"/a\xffb"), 400),
    "fragment": (get(b"/a#b"), 400),
    "two spaces after the method": (post(line=b"GET  / HTTP/1.1", body=b""), 400),
    "tab as separator": (post(line=b"GET\t/ HTTP/1.1", body=b""), 400),
    "two spaces before the version": (post(line=b"GET /  HTTP/1.1", body=b""), 400),
    "space after the version": (post(line=b"GET / HTTP/1.1 ", body=b""), 400),
    "no version": (post(line=b"GET /", body=b""), 400),
    "lower-case method": (post(line=b"get / HTTP/1.1", body=b""), 501),
    "unknown method": (post(line=b"BREW / HTTP/1.1", body=b""), 501),
    "method of llhttp's that is not HTTP's": (post(line=b"SOURCE / HTTP/1.1", body=b""), 501),
    "HTTP/2 preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    "HTTP/2.0": (get(b"/", version=b"HTTP/2.0"), 505),
    "HTTP/1.2": (get(b"/", version=b"HTTP/1.2"), 505),
    "HTTP/0.9": (get(b"/", version=b"HTTP/0.9"), 400),
    "HTTP/11.1": (get(b"/", version=b"HTTP/11.1"), 400),
    "http/1.1 in lower case": (get(b"/", version=b"http/1.1"), 400),
    "RTSP/1.0": (get(b"/", version=b"RTSP/1.0"), 400),
    "ICE/1.0": (get(b"/", version=b"ICE/1.0"), 400),
    "TE on 1.0": (post(TE, line=b"POST /v1 HTTP/1.0", body=CHUNKS), 400),
    "TE: gzip, chunked": (post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS), 501),
    "TE: chunked, gzip": (post(b"Transfer-Encoding: chunked, gzip", body=CHUNKS), 400),
    "TE: identity": (post(b"Transfer-Encoding: identity", body=CHUNKS), 400),
    "TE: xchunked": (post(b"Transfer-Encoding: xchunked", body=CHUNKS), 400),
    "TE twice": (post(TE, TE, body=CHUNKS), 400),
    "TE: chunked, chunked": (post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS), 400),
    "TE with a vertical tab": (post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS), 400),
    "TE quoted": (post(b'Transfer-Encoding: "chunked"', body=CHUNKS), 400),
    "TE empty": (post(b"Transfer-Encoding: ", body=CHUNKS), 400),
    "chunk size 0x7": (chunked(b"0x7\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk size with leading space": (chunked(b" 7\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk size with trailing space": (chunked(b"7 \r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk size negative": (chunked(b"-1\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk size with plus": (chunked(b"+7\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk size of 17 digits": (chunked(b"00000000000000007\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk size that overflows": (chunked(b"10000000000000007\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk size above the limit": (chunked(b"ffffffffffffffff\r\n"), 413),
    "chunk size empty": (chunked(b"\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk extension with bare LF": (chunked(b"7;a=b\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk extension of 8 KiB": (chunked(b"7;a=" + b"b" * 8192 + b"\r\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk size line with bare LF": (chunked(b"7\n" + BODY + b"\r\n0\r\n\r\n"), 400),
    "chunk data without CRLF": (chunked(b"7\r\n" + BODY + b"0\r\n\r\n"), 400),
    "chunk data with bare LF": (chunked(b"7\r\n" + BODY + b"\n0\r\n\r\n"), 400),
    "101 fields": (get(b"/", *[b"X-%d: y" % n for n in range(100)]), 431),
    "field of 40 KiB": (get(b"/", b"X-A: " + b"b" * 40_960), 431),
    "target of 9 KiB": (get(b"/" + b"a" * 9_216), 414),
    "target of 40 KiB": (get(b"/" + b"a" * 40_960), 414),
    "endless target": (b"GET /" + b"a" * 10_000, 414),
    "endless field": (b"GET / HTTP/1.1\r\nHost: a\r\nX-A: " + b"a" * 33_000, 431),
    "5 empty lines": (b"\r\n" * 5 + get(b"/"), 400),
    "4 KiB of empty lines": (b"\r\n" * 2_048, 400),
    "Expect: foo": (post(b"Expect: foo", CL), 417),
    "Expect twice, one unknown": (post(b"Expect: 100-continue", b"Expect: foo", CL), 417),
    "TLS client hello": (bytes.fromhex("16030100c8010000c40303") + b"\x11" * 64, 400),
    "byte order mark": (b"\xef\xbb\xbf" + get(b"/"), 400),
    "NUL before the request": (b"\0" + get(b"/"), 400),
    "lone CR before the request": (b"\r" + get(b"/"), 400),
    "lone LF before the request": (b"\n" + get(b"/"), 400),
    "header with CL in another name": (
        b"POST /v1 HTTP/1.1\r\nHost: a\r\nContent-Length: 7\r\ncontent-length: 7\r\n\r\n",
        400,
    ),
}

H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
SERVED: dict[str, tuple[bytes, list[bytes]]] = {
    "CL with trailing space": (post(b"Content-Length: 7 "), [BODY]),
    "CL with leading zeros": (post(b"Content-Length: 007"), [BODY]),
    "obs-text in a value": (post(b"X-A: \xff", CL), [BODY]),
    "absolute form of our host": (get(b"http://a/v1", host=b"Host: A"), [b""]),
    "Host with a port": (get(b"/", host=b"Host: 127.0.0.1:8080"), [b""]),
    "Host of IPv6": (get(b"/", host=b"Host: [::1]:8080"), [b""]),
    "TE in another case": (post(b"Transfer-Encoding: Chunked", body=CHUNKS), [BODY]),
    "TE with spaces around": (post(b"Transfer-Encoding:   chunked  ", body=CHUNKS), [BODY]),
    "underscore alias of TE": (post(b"Transfer_Encoding: chunked", body=b""), [b""]),
    "chunk extension": (chunked(b'7;a=b;c="d e"\r\n' + BODY + b"\r\n0;x\r\n\r\n"), [BODY]),
    "chunk size of 16 digits": (chunked(b"0000000000000007\r\n" + BODY + b"\r\n0\r\n\r\n"), [BODY]),
    "trailers": (chunked(b"7\r\n" + BODY + b"\r\n0\r\nAuthorization: Bearer t\r\nX-T: 1\r\n\r\n"), [BODY]),
    "trailer Content-Length": (chunked(b"7\r\n" + BODY + b"\r\n0\r\nContent-Length: 3\r\n\r\n"), [BODY]),
    "trailer, then a request": (chunked(b"0\r\nX-Smug: 1\r\n\r\n") + get(b"/two"), [b"", b""]),
    "4 empty lines": (b"\r\n" * 4 + get(b"/"), [b""]),
    "empty line between requests": (post(CL) + b"\r\n" + get(b"/"), [BODY, b""]),
    "GET with a body": (post(b"Content-Length: 3", line=b"GET / HTTP/1.1", body=b"abc") + get(b"/"), [b"abc", b""]),
    "bytes after Connection: close": (get(b"/", b"Connection: close") + get(b"/two"), [b""]),
    "three pipelined": (get(b"/1") + post(CL) + get(b"/3"), [b"", BODY, b""]),
    "h2c with CL, then a request": (post(*H2C, CL) + get(b"/two"), [BODY, b""]),
    "h2c chunked, then a request": (post(*H2C, TE, body=CHUNKS) + get(b"/two"), [BODY, b""]),
    "h2c without a body": (get(b"/", *H2C) + get(b"/two"), [b"", b""]),
    "websocket offer": (get(b"/", b"Connection: Upgrade", b"Upgrade: websocket") + get(b"/two"), [b"", b""]),
    "Upgrade without Connection": (post(b"Upgrade: h2c", CL) + get(b"/two"), [BODY, b""]),
    "Connection: close, keep-alive": (get(b"/", b"Connection: close, keep-alive") + get(b"/two"), [b""]),
    "Connection: content-length": (post(b"Connection: content-length", CL) + get(b"/two"), [BODY, b""]),
    "1.0 keep-alive": (
        get(b"/", b"Connection: keep-alive", version=b"HTTP/1.0", host=b"") + get(b"/two", version=b"HTTP/1.0"),
        [b"", b""],
    ),
    "1.0 without keep-alive": (get(b"/", version=b"HTTP/1.0", host=b"") + get(b"/two"), [b""]),
    "Expect on 1.0 is ignored": (post(b"Expect: foo", CL, line=b"POST / HTTP/1.0"), [BODY]),
    "100 fields": (get(b"/", *[b"X-%d: y" % n for n in range(99)]), [b""]),
}


def echo(request: Recorder) -> None:
    request.answer(bytes(request.body))


def run(raw: bytes, step: int) -> tuple[Bench, Client]:
    bench = Bench()
    bench.service.on_complete = echo
    client = bench.connect()
    client.send(raw, step)
    return bench, client


def steps_of(raw: bytes) -> tuple[int, ...]:
    return (0, 1, 3) if len(raw) < 5_000 else (0, 1_000)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_input_gets_one_answer_and_the_connection_ends(name: str) -> None:
    raw, status = REFUSED[name]
    for step in steps_of(raw):
        bench, client = run(raw + get(b"/smuggled"), step)
        assert STATUS.findall(client.output) == [b"%d" % status], f"in reads of {step or 'all'} bytes"
        assert b"\r\nConnection: close\r\n" in client.output
        assert client.is_ended
        assert [request.head.path for request in bench.service.requests if request.is_complete] == []
        assert bench.front.counters.internal_errors == 0


@pytest.mark.parametrize("name", SERVED)
def test_served_input_reaches_the_service_whole(name: str) -> None:
    raw, bodies = SERVED[name]
    for step in steps_of(raw):
        bench, client = run(raw, step)
        assert [bytes(request.body) for request in bench.service.requests] == bodies, f"in reads of {step or 'all'}"
        assert all(request.is_complete for request in bench.service.requests)
        assert STATUS.findall(client.output) == [b"200"] * len(bodies)
        assert bench.front.counters.internal_errors == 0


def test_nothing_of_an_upgrade_offer_is_passed_on() -> None:
    bench, _ = run(post(*H2C, CL), 0)
    assert bench.service.requests[0].head.headers == [(b"host", b"a")]


@pytest.mark.parametrize(
    "field",
    [
        b"Connection: x-secret",
        b"Keep-Alive: timeout=5",
        b"Proxy-Connection: keep-alive",
        b"Proxy-Authorization: Basic eA==",
        b"TE: trailers",
        b"Trailer: X-T",
        b"Upgrade: h2c",
        b"Expect: 100-continue",
        b"Transfer_Encoding: chunked",
        b"Content_Length: 9",
        b"Transfer-encoding_: chunked",
        b"HOST_: b",
        b"X_Api_Key: k",
    ],
)
def test_hop_by_hop_fields_and_their_aliases_are_gone(field: bytes) -> None:
    bench, client = run(post(field, b"X-Secret: 1", b"X_Other: 2", CL), 0)
    names = [name for name, _ in bench.service.requests[0].head.headers]
    expected = [b"host", b"x-secret", b"x_other"]
    if field == b"Connection: x-secret":
        expected.remove(b"x-secret")
    if field in (b"Transfer-encoding_: chunked", b"HOST_: b"):
        expected.insert(2, field.partition(b":")[0].lower())  # A trailing "_" makes no alias of a field's name.
    assert names == expected
    assert client.output.startswith(b"HTTP/1.1 200 ")


def test_field_values_lose_the_space_around_them() -> None:
    bench, _ = run(get(b"/p?q=1&r=%20", b"X-A:  b c\t ", b"X-Empty:   "), 0)
    head = bench.service.requests[0].head
    assert head[:5] == (b"GET", b"/p", b"q=1&r=%20", [(b"host", b"a"), (b"x-a", b"b c"), (b"x-empty", b"")], 0)


@pytest.mark.parametrize(
    ("target", "path", "query"),
    [
        (b"/", b"/", b""),
        (b"//x", b"//x", b""),
        (b"/a?", b"/a", b""),
        (b"/a?b?c", b"/a", b"b?c"),
        (b"/a%2Fb", b"/a%2Fb", b""),
        (b"http://a", b"/", b""),
        (b"HTTP://a/x?y", b"/x", b"y"),
        (b"http://a?y", b"/", b"y"),
        (b"https://a/", b"/", b""),
    ],
)
def test_target_is_split_without_being_changed(target: bytes, path: bytes, query: bytes) -> None:
    bench, _ = run(get(target), 0)
    assert bench.service.requests[0].head[1:3] == (path, query)
