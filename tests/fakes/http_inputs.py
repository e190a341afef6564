"""Inputs that tell a strict HTTP/1.1 server from a lenient one, as data: what is sent and what must come of it.

Sources: RFC 9112 and RFC 9110, the published request smuggling techniques (two framings, disguised fields, chunk lines
that two parsers read differently), and what other protocols' clients send to an HTTP port by mistake. Every input is
judged by the same three questions: which answers, which requests reach the service, and what becomes of the connection.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Connection(Enum):
    """What becomes of the connection after the last answer."""

    KEPT = "a further request on it is answered"
    CLOSED = "nothing that follows is served and the server ends it"
    WAITING = "the server waits for the rest of a request and says nothing more"


KEPT, CLOSED, WAITING = Connection.KEPT, Connection.CLOSED, Connection.WAITING


class Served(NamedTuple):
    """A request as the service must get it."""

    method: bytes
    path: bytes
    body: bytes


class HttpInput(NamedTuple):
    """`statuses` are those of all answers in order, interim ones included. `is_split` is False for an input that means
    something else when it comes in pieces."""

    name: str
    sent: bytes
    statuses: tuple[int, ...]
    served: tuple[Served, ...]
    connection: Connection
    is_split: bool = True


BODY = b'{"a":1}'
CL = b"Content-Length: 7"
TE = b"Transfer-Encoding: chunked"
CHUNKS = b"7\r\n" + BODY + b"\r\n0\r\n\r\n"
POSTED = Served(b"POST", b"/v1", BODY)
GOT = Served(b"GET", b"/", b"")
TWO = b"GET /two HTTP/1.1\r\nHost: a\r\n\r\n"
GOT_TWO = Served(b"GET", b"/two", b"")


def request(line: bytes, *fields: bytes, body: bytes = b"") -> bytes:
    """Exactly these lines, nothing added."""
    return b"\r\n".join([line, *fields, b"", b""]) + body


def post(*fields: bytes, body: bytes = BODY) -> bytes:
    return request(b"POST /v1 HTTP/1.1", b"Host: a", *fields, body=body)


def get(*fields: bytes, target: bytes = b"/", version: bytes = b"HTTP/1.1") -> bytes:
    return request(b"GET " + target + b" " + version, b"Host: a", *fields)


def chunked(body: bytes, *fields: bytes) -> bytes:
    return post(TE, *fields, body=body)


def refused(name: str, sent: bytes, status: int = 400, *, is_split: bool = True) -> HttpInput:
    return HttpInput(name, sent, (status,), (), CLOSED, is_split)


def served(name: str, sent: bytes, *requests: Served, connection: Connection = KEPT) -> HttpInput:
    return HttpInput(name, sent, (200,) * len(requests), requests, connection)


LENGTHS = [
    refused("length and chunked", post(CL, TE, body=CHUNKS)),
    refused("chunked and length", post(TE, CL, body=CHUNKS)),
    refused("length 0 and chunked", post(b"Content-Length: 0", TE, body=CHUNKS)),
    refused("two equal lengths", post(CL, CL)),
    refused("two different lengths", post(CL, b"Content-Length: 8")),
    refused("two lengths, one in other letters", post(CL, b"CONTENT-length: 70")),
    refused("length list of equals", post(b"Content-Length: 7, 7")),
    refused("length list of differents", post(b"Content-Length: 7, 8")),
    refused("length with plus", post(b"Content-Length: +7")),
    refused("length with minus", post(b"Content-Length: -1")),
    refused("length in hexadecimal", post(b"Content-Length: 0x7")),
    refused("length with exponent", post(b"Content-Length: 7e0")),
    refused("length with fraction", post(b"Content-Length: 7.0")),
    refused("length with underscore", post(b"Content-Length: 0_7")),
    refused("length with parameter", post(b"Content-Length: 7;q=1")),
    refused("length of two words", post(b"Content-Length: 7 7")),
    refused("length in Arabic digits", post(b"Content-Length: \xd9\xa7")),
    refused("length in quotes", post(b'Content-Length: "7"')),
    refused("length empty", post(b"Content-Length:")),
    refused("length of a space", post(b"Content-Length:  ")),
    refused("length 2^64", post(b"Content-Length: 18446744073709551616")),
    refused("length 2^64 + 7", post(b"Content-Length: 18446744073709551623")),
    refused("length 2^63", post(b"Content-Length: 9223372036854775808")),
    refused("length of 1,000 digits", post(b"Content-Length: " + b"9" * 1000)),
    refused("length above the limit", post(b"Content-Length: 99999999999"), 413),
    served("length with a space behind", post(b"Content-Length: 7 "), POSTED),
    served("length with tabs around", post(b"Content-Length:\t7\t"), POSTED),
    served("length without a space", post(b"Content-Length:7"), POSTED),
    served("length with leading zeros", post(b"Content-Length: 007"), POSTED),
    served("length in other letters", post(b"CONTENT-LENGTH: 7"), POSTED),
    served("length 0, then a request", post(b"Content-Length: 0", body=TWO), Served(b"POST", b"/v1", b""), GOT_TWO),
    served("no length, then a request", post(body=TWO), Served(b"POST", b"/v1", b""), GOT_TWO),
    served("GET with a body", get(b"Content-Length: 3") + b"abc", Served(b"GET", b"/", b"abc")),
    served("GET whose body is a request", get(b"Content-Length: %d" % len(TWO)) + TWO, Served(b"GET", b"/", TWO)),
]

CODINGS = [
    refused("coding gzip, chunked", post(b"Transfer-Encoding: gzip, chunked", body=CHUNKS), 501),
    refused("coding chunked, gzip", post(b"Transfer-Encoding: chunked, gzip", body=CHUNKS)),
    refused("coding identity", post(b"Transfer-Encoding: identity", body=CHUNKS)),
    refused("coding xchunked", post(b"Transfer-Encoding: xchunked", body=CHUNKS)),
    refused("coding chunkedx", post(b"Transfer-Encoding: chunkedx", body=CHUNKS)),
    refused("coding cow", post(b"Transfer-Encoding: cow", body=CHUNKS)),
    refused("coding with parameter", post(b"Transfer-Encoding: chunked;q=1", body=CHUNKS)),
    refused("coding twice in two lines", post(TE, TE, body=CHUNKS)),
    refused("coding twice in a list", post(b"Transfer-Encoding: chunked, chunked", body=CHUNKS)),
    refused("coding and identity in two lines", post(TE, b"Transfer-Encoding: identity", body=CHUNKS)),
    refused("identity and coding in two lines", post(b"Transfer-Encoding: identity", TE, body=CHUNKS)),
    refused("coding behind a vertical tab", post(b"Transfer-Encoding: \x0bchunked", body=CHUNKS)),
    refused("coding before a form feed", post(b"Transfer-Encoding: chunked\x0c", body=CHUNKS)),
    refused("coding before a NUL", post(b"Transfer-Encoding: chunked\0", body=CHUNKS)),
    refused("coding in quotes", post(b'Transfer-Encoding: "chunked"', body=CHUNKS)),
    refused("coding empty", post(b"Transfer-Encoding:", body=CHUNKS)),
    refused("coding folded", post(b"Transfer-Encoding:\r\n chunked", body=CHUNKS)),
    refused("coding's colon behind a space", post(b"Transfer-Encoding : chunked", body=CHUNKS)),
    refused("coding's colon on the next line", post(b"Transfer-Encoding\r\n : chunked", body=CHUNKS)),
    refused("coding's name with a NUL", post(b"Transfer-Encoding\0: chunked", body=CHUNKS)),
    refused("coding behind a bare LF", post(b"X-A: b\nTransfer-Encoding: chunked", CL)),
    refused("coding behind a bare CR", post(b"X-A: b\rTransfer-Encoding: chunked", CL)),
    refused("chunked in HTTP/1.0", request(b"POST /v1 HTTP/1.0", b"Host: a", TE, body=CHUNKS)),
    served("coding in capitals", post(b"Transfer-Encoding: CHUNKED", body=CHUNKS), POSTED),
    served("coding with spaces around", post(b"Transfer-Encoding:  chunked ", body=CHUNKS), POSTED),
    refused("coding before a tab", post(b"Transfer-Encoding: chunked\t", body=CHUNKS)),
    served(
        "coding with an underscore is no coding",
        post(b"Transfer_Encoding: chunked", body=TWO),
        Served(b"POST", b"/v1", b""),
        GOT_TWO,
    ),
]

CHUNK_LINES = [
    refused("chunk size 0x7", chunked(b"0x7\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size behind a space", chunked(b" 7\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size before a space", chunked(b"7 \r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size before a tab", chunked(b"7\t\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size with plus", chunked(b"+7\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size with minus", chunked(b"-1\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size with underscore", chunked(b"0_7\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size of no digit", chunked(b"g\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size empty", chunked(b"\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size of an extension only", chunked(b";a=b\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size of 17 digits", chunked(b"00000000000000007\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size 2^64 + 7", chunked(b"10000000000000007\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size 2^64 - 1", chunked(b"ffffffffffffffff\r\n" + BODY), 413),
    refused("chunk size line ended by LF", chunked(b"7\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size line ended by CR", chunked(b"7\r" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk size before a NUL", chunked(b"7\0\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk data without its end", chunked(b"7\r\n" + BODY + b"0\r\n\r\n")),
    refused("chunk data ended by LF", chunked(b"7\r\n" + BODY + b"\n0\r\n\r\n")),
    refused("chunk data ended by CR", chunked(b"7\r\n" + BODY + b"\r0\r\n\r\n")),
    refused("chunk data longer than said", chunked(b"6\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk extension ended by LF", chunked(b"7;a=b\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk extension with a CR in it", chunked(b"7;a\rb\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk extension with a NUL", chunked(b"7;a=\0\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("chunk extension of 1 MiB", chunked(b"7;a=" + b"b" * (1 << 20) + b"\r\n" + BODY + b"\r\n0\r\n\r\n")),
    refused("last chunk ended by LF", chunked(b"7\r\n" + BODY + b"\r\n0\n\r\n")),
    refused("trailer ended by LF", chunked(b"0\r\nX-T: 1\n\r\n")),
    refused("trailers of 1 MiB", chunked(b"0\r\n" + (b"X-T: " + b"t" * 1000 + b"\r\n") * 1000 + b"\r\n")),
    served("chunk extension", chunked(b'7;a=b;c="d e"\r\n' + BODY + b"\r\n0;last\r\n\r\n"), POSTED),
    served("chunk size of 16 digits", chunked(b"0000000000000007\r\n" + BODY + b"\r\n0\r\n\r\n"), POSTED),
    served("chunk size in capitals", chunked(b"A\r\n0123456789\r\n0\r\n\r\n"), Served(b"POST", b"/v1", b"0123456789")),
    served("last chunk of many zeros", chunked(b"7\r\n" + BODY + b"\r\n000\r\n\r\n"), POSTED),
    served("chunks of one byte", chunked(b"".join(b"1\r\n%c\r\n" % byte for byte in BODY) + b"0\r\n\r\n"), POSTED),
    served("no chunk but the last", chunked(b"0\r\n\r\n") + TWO, Served(b"POST", b"/v1", b""), GOT_TWO),
    served(
        "chunk data that looks like an end",
        chunked(b"7\r\n0\r\n\r\n0\r\r\n0\r\n\r\n"),
        Served(b"POST", b"/v1", b"0\r\n\r\n0\r"),
    ),
    served("trailers", chunked(b"7\r\n" + BODY + b"\r\n0\r\nAuthorization: Bearer t\r\nHost: b\r\n\r\n"), POSTED),
    served(
        "trailer with a length",
        chunked(b"7\r\n" + BODY + b"\r\n0\r\nContent-Length: 99\r\n\r\n") + TWO,
        POSTED,
        GOT_TWO,
    ),
    served("trailer, then a request", chunked(b"0\r\nX-Smug: 1\r\n\r\n") + TWO, Served(b"POST", b"/v1", b""), GOT_TWO),
    HttpInput("chunked body without its end", chunked(b"7\r\n" + BODY + b"\r\n"), (), (), WAITING),
    HttpInput("chunked body without its last CRLF", chunked(b"7\r\n" + BODY + b"\r\n0\r\n"), (), (), WAITING),
]

FIELDS = [
    refused("space before a colon", post(b"Content-Length : 7")),
    refused("tab before a colon", post(b"Content-Length\t: 7")),
    refused("folded field", post(b"X-A: b\r\n c", CL)),
    refused("field folded by a tab", post(b"X-A: b\r\n\tc", CL)),
    refused("fold on the first field", request(b"POST /v1 HTTP/1.1", b" X-A: b", b"Host: a", CL, body=BODY)),
    refused("lines ended by LF", post(CL).replace(b"\r\n", b"\n")),
    refused("one line ended by LF", post(b"X-A: b\nX-B: c", CL)),
    refused("bare CR in a value", post(b"X-A: b\rc", CL)),
    refused("CR CR LF", post(b"X-A: b\r", CL)),
    refused("CR LF CR X for the empty line", b"POST /v1 HTTP/1.1\r\nHost: a\r\n\rX\r\n\r\n"),
    refused("LF for the empty line", b"GET / HTTP/1.1\r\nHost: a\r\n\n"),
    refused("NUL in a value", post(b"X-A: b\0c", CL)),
    refused("NUL in a name", post(b"X-\0A: b", CL)),
    refused("DEL in a value", post(b"X-A: b\x7fc", CL)),
    refused("control character in a value", post(b"X-A: b\x01c", CL)),
    refused("name with a bracket", post(b"X(Y): b", CL)),
    refused("name with a space", post(b"X Y: b", CL)),
    refused("name not ASCII", post(b"X-\xc3\xa9: b", CL)),
    refused("name in quotes", post(b'"X": b', CL)),
    refused("name empty", post(b": b", CL)),
    refused("line without a colon", post(b"Content-Length 7", CL)),
    refused("101 fields", get(*[b"X-%d: y" % number for number in range(100)]), 431),
    refused("100,000 fields", get(*[b"X: y"] * 100_000), 431),
    refused("value of 1 MiB", get(b"X-A: " + b"b" * (1 << 20)), 431),
    refused("name of 40 KiB", get(b"X" * 40_960 + b": b"), 431),
    served("value not ASCII", post(b"X-A: \xff\xfe", CL), POSTED),
    served("value empty", post(b"X-A:", CL), POSTED),
    served("tab in a value", post(b"X-A: b\tc", CL), POSTED),
    served("a field twice", post(b"X-A: b", b"X-A: c", CL), POSTED),
]

HOSTS = [
    refused("no Host", request(b"GET / HTTP/1.1")),
    refused("two Hosts", get(b"Host: a")),
    refused("two different Hosts", get(b"Host: b")),
    *[
        refused(f"Host: {value.decode('latin-1')!r}", request(b"GET / HTTP/1.1", b"Host: " + value))
        for value in (
            b"", b"a b", b"a/b", b"a?b", b"a#b", b"u@a", b"a\\b", b"a:b", b"a:80:80", b"[::1", b"::1", b"http://a",
            b"a\xff", b"a\tb", b"a:99999999", b"[v1.x]", b"<a>",
        )
    ],
    served("Host with a port", request(b"GET / HTTP/1.1", b"Host: 127.0.0.1:8080"), GOT),
    served("Host of IPv6", request(b"GET / HTTP/1.1", b"Host: [::1]:8080"), GOT),
    served("Host with what a name may hold", request(b"GET / HTTP/1.1", b"Host: a,b;c"), GOT),
    served("Host with an underscore", request(b"GET / HTTP/1.1", b"Host: model_server"), GOT),
    served("no Host in HTTP/1.0", request(b"GET / HTTP/1.0"), GOT, connection=CLOSED),
]  # fmt: skip

TARGETS = [
    refused("absolute form of another host", get(target=b"http://b/v1")),
    refused("absolute form of another port", get(target=b"http://a:1/v1")),
    refused("absolute form with a user", get(target=b"http://u@a/v1")),
    refused("absolute form without a host", get(target=b"http:///v1")),
    refused("absolute form of another scheme", get(target=b"file://a/v1")),
    refused("authority form", get(target=b"a:80")),
    refused("CONNECT", request(b"CONNECT a:80 HTTP/1.1", b"Host: a:80", body=b"tunnel"), 405),
    refused("asterisk", get(target=b"*")),
    refused("asterisk for OPTIONS", request(b"OPTIONS * HTTP/1.1", b"Host: a")),
    refused("relative target", get(target=b"v1")),
    refused("query only", get(target=b"?q")),
    refused("space in the target", get(target=b"/a b")),
    refused("control character in the target", get(target=b"/a\x01b")),
    refused("NUL in the target", get(target=b"/a\0b")),
    refused("DEL in the target", get(target=b"/a\x7fb")),
    refused("target not ASCII", get(target=b"/a\xffb")),
    refused("fragment", get(target=b"/a#b")),
    refused("target of 9 KiB", get(target=b"/" + b"a" * 9_216), 414),
    refused("target of 1 MiB", get(target=b"/" + b"a" * (1 << 20)), 414),
    served("absolute form", get(target=b"http://a/v1?x=http://b/"), Served(b"GET", b"/v1", b"")),
    served("absolute form without a path", get(target=b"http://a"), GOT),
    served("two slashes", get(target=b"//b/v1"), Served(b"GET", b"//b/v1", b"")),
    served("dots and escapes stay", get(target=b"/a/../%2e%2e/%00"), Served(b"GET", b"/a/../%2e%2e/%00", b"")),
]

REQUEST_LINES = [
    refused("two spaces behind the method", request(b"GET  / HTTP/1.1", b"Host: a")),
    refused("two spaces before the version", request(b"GET /  HTTP/1.1", b"Host: a")),
    refused("space behind the version", request(b"GET / HTTP/1.1 ", b"Host: a")),
    refused("space before the method", request(b" GET / HTTP/1.1", b"Host: a")),
    refused("tabs between", request(b"GET\t/\tHTTP/1.1", b"Host: a")),
    refused("no target", request(b"GET HTTP/1.1", b"Host: a")),
    refused("no version", request(b"GET /", b"Host: a")),
    refused("no method", request(b"/ HTTP/1.1", b"Host: a")),
    refused("lower-case method", request(b"get / HTTP/1.1", b"Host: a"), 501),
    refused("unknown method", request(b"BREW / HTTP/1.1", b"Host: a"), 501),
    refused("method of a neighbour protocol", request(b"M-SEARCH * HTTP/1.1", b"Host: a"), 501),
    refused("TRACE", request(b"TRACE / HTTP/1.1", b"Host: a"), 405),
    refused("method with a NUL", request(b"GE\0T / HTTP/1.1", b"Host: a")),
    refused("method with a colon", request(b"GET: / HTTP/1.1", b"Host: a")),
    *[
        refused(f"version {version.decode()}", request(b"GET / " + version, b"Host: a"), status)
        for version, status in (
            (b"HTTP/0.9", 400), (b"HTTP/1.2", 505), (b"HTTP/2.0", 505), (b"HTTP/3.0", 505), (b"HTTP/1.10", 400),
            (b"HTTP/01.1", 400), (b"HTTP/11.1", 400), (b"HTTP/1", 400), (b"HTTP/1.", 400), (b"HTTP/1.1x", 400),
            (b"http/1.1", 400), (b"HTTPS/1.1", 400), (b"RTSP/1.0", 400), (b"ICE/1.0", 400), (b"HTTP/1.1/", 400),
        )
    ],
    refused("5 empty lines before", b"\r\n" * 5 + get()),
    refused("1 MiB of empty lines", b"\r\n" * (1 << 19)),
    served("4 empty lines before", b"\r\n" * 4 + get(), GOT),
]  # fmt: skip

OTHER_PROTOCOLS = [
    refused("TLS hello", bytes.fromhex("16030100c8010000c40303") + b"\x11" * 189),
    refused("HTTP/2 preface", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    refused("SSH banner", b"SSH-2.0-OpenSSH_9.6\r\n\r\n"),
    refused("an HTTP answer", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"),
    refused("SMTP", b"EHLO a\r\nMAIL FROM:<a@b>\r\n\r\n"),
    refused("redis", b"*1\r\n$4\r\nPING\r\n\r\n"),
    refused("SOCKS 5", b"\x05\x01\x00"),
    refused("PROXY protocol 1", b"PROXY TCP4 127.0.0.1 127.0.0.1 1 2\r\n" + get()),
    refused("PROXY protocol 2", b"\r\n\r\n\x00\r\nQUIT\n\x21\x11\x00\x0c" + b"\x7f" * 12 + get()),
    refused("byte order mark", b"\xef\xbb\xbf" + get()),
    refused("NUL before the request", b"\0" + get()),
    refused("LF before the request", b"\n" + get()),
    refused("CR before the request", b"\r" + get()),
    refused("JSON without HTTP", b'{"model":"m"}\r\n\r\n'),
]

H2C = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")

CONNECTIONS = [
    served("bytes behind Connection: close", get(b"Connection: close") + TWO, GOT, connection=CLOSED),
    served("Connection: Close", get(b"Connection: Close") + TWO, GOT, connection=CLOSED),
    served("Connection: close, keep-alive", get(b"Connection: close, keep-alive") + TWO, GOT, connection=CLOSED),
    served(
        "Connection in two lines", get(b"Connection: keep-alive", b"Connection: close") + TWO, GOT, connection=CLOSED
    ),
    served("Connection: closed", get(b"Connection: closed") + TWO, GOT, GOT_TWO),
    served("Connection: content-length", post(b"Connection: content-length", CL) + TWO, POSTED, GOT_TWO),
    served("Connection: transfer-encoding", chunked(CHUNKS, b"Connection: transfer-encoding") + TWO, POSTED, GOT_TWO),
    served("Connection: host", get(b"Connection: host") + TWO, GOT, GOT_TWO),
    served("three pipelined", get(target=b"/1") + post(CL) + TWO, Served(b"GET", b"/1", b""), POSTED, GOT_TWO),
    served("eight pipelined", TWO * 8, *[GOT_TWO] * 8),
    HttpInput("twelve pipelined in one read", TWO * 12, (200,), (GOT_TWO,), CLOSED, is_split=False),
    served("empty line between two", post(CL) + b"\r\n" + TWO, POSTED, GOT_TWO),
    served("h2c offer with a length", post(*H2C, CL) + TWO, POSTED, GOT_TWO),
    served("h2c offer, chunked", post(*H2C, TE, body=CHUNKS) + TWO, POSTED, GOT_TWO),
    served("websocket offer", get(b"Connection: Upgrade", b"Upgrade: websocket") + TWO, GOT, GOT_TWO),
    served("Upgrade without Connection", post(b"Upgrade: h2c", CL) + TWO, POSTED, GOT_TWO),
    HttpInput("Expect: 100-continue", post(b"Expect: 100-continue", CL, body=b""), (100,), (), WAITING),
    HttpInput("Expect: 100-Continue, chunked", post(b"Expect: 100-Continue", TE, body=b""), (100,), (), WAITING),
    refused("Expect: foo", post(b"Expect: foo", CL), 417),
    served("HTTP/1.0", request(b"GET / HTTP/1.0", b"Host: a") + TWO, GOT, connection=CLOSED),
    served("HTTP/1.0 keep-alive", request(b"GET / HTTP/1.0", b"Connection: keep-alive") + TWO, GOT, GOT_TWO),
    served("good request, then a bad one", post(CL) + b"BAD\r\n\r\n", POSTED, connection=CLOSED)._replace(
        statuses=(200, 400)
    ),
    HttpInput("body shorter than said", post(b"Content-Length: 8"), (), (), WAITING),
    HttpInput("head without its end", b"GET / HTTP/1.1\r\nHost: a\r\n", (), (), WAITING),
]

INPUTS = [*LENGTHS, *CODINGS, *CHUNK_LINES, *FIELDS, *HOSTS, *TARGETS, *REQUEST_LINES, *OTHER_PROTOCOLS, *CONNECTIONS]
