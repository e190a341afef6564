"""A Node's configuration on the wire: equal in, equal bytes, equal out; in one frame or in checked pieces."""

from __future__ import annotations

import random
from dataclasses import replace
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from iop_fast.config.payload import AdapterSettings, NodePayload, ProviderPayload, RuntimeSettings, TimeoutSettings
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.options import INLINE_PAYLOAD_BYTES, MAX_MESSAGE_BYTES, MAX_PAYLOAD_BYTES, PIECE_BYTES
from iop_fast.wire.payload import (
    PayloadAssembler,
    PayloadError,
    decode_payload,
    encode_payload,
    payload_from_message,
    refresh_entries,
    registration_entries,
)

uint32 = st.integers(0, 2**32 - 1)
uint64 = st.integers(0, 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
adapters = st.builds(
    AdapterSettings,
    *(texts,) * 6,
    options=st.dictionaries(texts, texts, max_size=4).map(lambda options: tuple(sorted(options.items()))),
)
providers = st.builds(
    ProviderPayload,
    *(texts,) * 5,
    settings=st.none() | adapters,
    models=st.lists(texts, max_size=3).map(tuple),
    timeouts=st.builds(TimeoutSettings, uint64, uint64, uint64),
    enabled=st.booleans(),
    health=texts,
    capacity=uint32,
    long_context_capacity=uint32,
    priority=st.integers(-1000, 1000),
    context_windows=st.lists(st.tuples(texts, uint64), max_size=3).map(tuple),
)
payloads = st.builds(
    NodePayload,
    st.builds(RuntimeSettings, uint64, uint32),
    st.lists(adapters, max_size=3).map(tuple),
    st.lists(providers, max_size=3).map(tuple),
)


def payload_of(provider_count: int, label_chars: int) -> NodePayload:
    """A payload of a chosen size that does not compress in anybody's head: each label differs."""
    rng = random.Random(7)
    base = ProviderPayload(
        "p", "vllm", "", "openai_compat", "a", None, ("m",), TimeoutSettings(1, 2, 3), True, "auto", 4, 1, 0
    )
    return NodePayload(
        RuntimeSettings(0, 0),
        (),
        tuple(
            replace(base, id=f"p{number}", label="".join(rng.choices("abcdef", k=label_chars)))
            for number in range(provider_count)
        ),
    )


SMALL = payload_of(3, 10)
LARGE = payload_of(1000, 2000)


def frames_of(entries: list[bytes]) -> list[pb.Frame]:
    return [frame for entry in entries for frame in pb.Batch.FromString(entry).frames]


@given(payloads)
@settings(deadline=None)
def test_a_payload_reads_back_equal(payload: NodePayload) -> None:
    encoded = encode_payload(payload)
    assert decode_payload(encoded.data) == payload
    assert encoded.sha256 == sha256(encoded.data).digest()


@given(payloads, st.randoms())
@settings(deadline=None)
def test_equal_payloads_give_equal_bytes(payload: NodePayload, rng: random.Random) -> None:
    def shuffled(adapter: AdapterSettings) -> AdapterSettings:
        options = list(adapter.options)
        rng.shuffle(options)
        return replace(adapter, options=tuple(options))

    other = replace(payload, adapters=tuple(map(shuffled, payload.adapters)))
    assert encode_payload(other) == encode_payload(payload)
    assert encode_payload(decode_payload(encode_payload(payload).data)) == encode_payload(payload)


def test_fields_of_a_later_version_are_ignored() -> None:
    data = encode_payload(SMALL).data + b"\xf8\x3f\x01"  # field 1023
    assert decode_payload(data) == SMALL


def test_a_small_payload_stands_in_its_frame() -> None:
    encoded = encode_payload(SMALL)
    response = pb.RegisterResponse(generation=7, payload_revision=3, protocol="1.0")
    (frame,) = frames_of(registration_entries(response, encode_payload(SMALL)))
    assert frame.register_response.generation == 7
    assert payload_from_message(frame.register_response.payload) == SMALL
    assert frame.register_response.payload_sha256 == encoded.sha256
    (frame,) = frames_of(refresh_entries(4, encode_payload(SMALL)))
    assert frame.refresh_request.payload_revision == 4
    assert payload_from_message(frame.refresh_request.payload) == SMALL
    assert frame.refresh_request.payload_bytes == len(encoded.data)


@pytest.mark.parametrize("kind", ["registration", "refresh"])
def test_a_large_payload_travels_in_pieces(kind: str) -> None:
    if kind == "registration":
        entries = registration_entries(pb.RegisterResponse(generation=7, payload_revision=9), encode_payload(LARGE))
        first, *pieces = frames_of(entries)
        announced: pb.RegisterResponse | pb.NodeConfigRefreshRequest = first.register_response
    else:
        entries = refresh_entries(9, encode_payload(LARGE))
        first, *pieces = frames_of(entries)
        announced = first.refresh_request
    assert all(len(entry) <= PIECE_BYTES + 64 for entry in entries)
    assert not announced.HasField("payload")
    assert announced.payload_bytes > INLINE_PAYLOAD_BYTES
    assembler = PayloadAssembler(9, announced.payload_bytes, announced.payload_sha256)
    results = [assembler.feed(frame.config_piece) for frame in pieces]
    assert results[:-1] == [None] * (len(pieces) - 1)
    assert results[-1] == LARGE


def test_the_largest_payload_in_a_frame_fits_a_message() -> None:
    low, high = 1, 2000
    while high - low > 1:
        middle = (low + high) // 2
        is_inline = len(encode_payload(payload_of(1000, middle)).data) <= INLINE_PAYLOAD_BYTES
        low, high = (middle, high) if is_inline else (low, middle)
    (entry,) = refresh_entries(1, encode_payload(payload_of(1000, low)))
    assert len(entry) + 2000 > INLINE_PAYLOAD_BYTES
    assert len(entry) < MAX_MESSAGE_BYTES
    assert len(refresh_entries(1, encode_payload(payload_of(1000, high)))) > 1


def pieces_of(payload: NodePayload) -> tuple[PayloadAssembler, list[pb.ConfigPiece]]:
    first, *pieces = frames_of(refresh_entries(9, encode_payload(payload)))
    announced = first.refresh_request
    assembler = PayloadAssembler(9, announced.payload_bytes, announced.payload_sha256)
    return assembler, [frame.config_piece for frame in pieces]


def test_a_gap_a_repetition_and_a_stranger_are_refused() -> None:
    assembler, pieces = pieces_of(LARGE)
    assembler.feed(pieces[0])
    with pytest.raises(PayloadError, match=rf"offset {PIECE_BYTES}, got the one at {2 * PIECE_BYTES}"):
        assembler.feed(pieces[2])
    with pytest.raises(PayloadError, match=rf"offset {PIECE_BYTES}, got the one at 0"):
        assembler.feed(pieces[0])
    with pytest.raises(PayloadError, match="empty piece"):
        assembler.feed(pb.ConfigPiece(payload_revision=9, offset=PIECE_BYTES))
    with pytest.raises(PayloadError, match="revision 9, got one of 8"):
        assembler.feed(pb.ConfigPiece(payload_revision=8, offset=PIECE_BYTES, piece=b"x"))


def test_too_much_and_the_wrong_bytes_are_refused() -> None:
    assembler, pieces = pieces_of(LARGE)
    for piece in pieces[:-1]:
        assembler.feed(piece)
    last = pieces[-1]
    longer = pb.ConfigPiece(payload_revision=9, offset=last.offset, piece=last.piece + b"x")
    with pytest.raises(PayloadError, match="exceed the announced"):
        assembler.feed(longer)
    flipped = pb.ConfigPiece(payload_revision=9, offset=last.offset, piece=last.piece[:-1] + b"\x00")
    with pytest.raises(PayloadError, match="sha256 is not the announced one"):
        assembler.feed(flipped)


def test_bytes_that_are_no_payload_are_refused() -> None:
    data = b"\x0a\xff"
    assembler = PayloadAssembler(1, len(data), sha256(data).digest())
    with pytest.raises(PayloadError, match="not a NodeConfigPayload"):
        assembler.feed(pb.ConfigPiece(payload_revision=1, piece=data))


@pytest.mark.parametrize("size", [0, MAX_PAYLOAD_BYTES + 1])
def test_an_announcement_has_limits(size: int) -> None:
    with pytest.raises(PayloadError, match=f"{size} were announced"):
        PayloadAssembler(1, size, bytes(32))


def test_an_announcement_has_a_hash() -> None:
    with pytest.raises(PayloadError, match="32 bytes, got 0"):
        PayloadAssembler(1, 10, b"")
