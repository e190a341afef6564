"""The chunked decoder against llhttp, and against itself cut differently."""

from __future__ import annotations

import itertools

import httptools
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_fast._hot.chunks import ChunkDecoder, ChunkError

HEAD = b"POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"


class Reference:
    """What llhttp makes of a chunked body: its payload, and how far it came."""

    def __init__(self) -> None:
        self.payload = b""
        self.is_complete = False

    def on_body(self, piece: bytes) -> None:
        self.payload += piece

    def on_message_complete(self) -> None:
        self.is_complete = True


def llhttp(raw: bytes) -> tuple[str, bytes]:
    reference = Reference()
    parser = httptools.HttpRequestParser(reference)
    parser.feed_data(HEAD)
    try:
        # One byte at a time: llhttp does not stop at the end of the body, this does.
        for at in range(len(raw)):
            parser.feed_data(raw[at : at + 1])
            if reference.is_complete:
                return "complete", reference.payload
    except httptools.HttpParserError:
        return "refused", reference.payload
    return "incomplete", reference.payload


def ours(raw: bytes, cuts: list[int]) -> tuple[str, bytes]:
    decoder = ChunkDecoder(1 << 40)
    payload = b""
    edges = sorted({0, len(raw), *(cut % (len(raw) + 1) for cut in cuts)})
    try:
        for start, end in itertools.pairwise(edges):
            payload += decoder.feed(raw[start:end])
            if decoder.is_complete:
                return "complete", payload
    except ChunkError:
        return "refused", payload
    return "incomplete", payload


def chunk(extensions: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda data, extension, pad: b"%s%x%s\r\n%s\r\n" % (b"0" * pad, len(data), extension, data),
        st.binary(min_size=1, max_size=20).map(lambda data: data.replace(b";", b",")),
        extensions,
        st.integers(0, 3),
    )


def body(extensions: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    return st.builds(
        lambda parts, tail: b"".join(parts) + b"0\r\n" + tail + b"\r\n",
        st.lists(chunk(extensions), max_size=6),
        st.sampled_from([b"", b"X: y\r\n", b"X-A: b\r\nY:\r\n"]),
    )


bodies = body(st.sampled_from([b"", b"", b";a", b";a=b", b';a="b c"']))
plain_bodies = body(st.just(b""))
cuts = st.lists(st.integers(0, 1 << 16), max_size=8)
patches = st.sampled_from([b"", b"\r", b"\n", b"\r\n", b" ", b"0", b"f", b":", b"\0", b"\t", b"\x7f", b"\xff"])
mutations = st.lists(st.tuples(st.integers(0, 1 << 16), patches), min_size=1, max_size=3)


@given(bodies, cuts)
def test_valid_bodies_decode_as_llhttp_decodes_them_wherever_they_are_cut(raw: bytes, cuts: list[int]) -> None:
    assert ours(raw, cuts) == llhttp(raw)
    assert ours(raw, cuts)[0] == "complete"


@settings(max_examples=400)
@given(plain_bodies, mutations, cuts)
def test_nothing_is_accepted_that_llhttp_refuses(
    raw: bytes, mutations: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    """Without extensions, whose inner grammar only llhttp checks: we drop them whatever they say."""
    for at, patch in mutations:
        at %= len(raw) + 1
        raw = raw[:at] + patch + raw[at + 1 :]
    whole = ours(raw, [])
    assert ours(raw, cuts)[0] == whole[0]
    if whole[0] == "complete":
        assert ours(raw, cuts) == whole == llhttp(raw)
