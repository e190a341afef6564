"""A Node's configuration on the wire: plain data to protobuf and back, and in pieces when it is large.

Equal payloads give equal bytes: maps are serialized by sorted keys and lists keep the order they have in NodePayload.
A payload up to `INLINE_PAYLOAD_BYTES` stands in the frame that announces it (RegisterResponse or
NodeConfigRefreshRequest). A larger one is announced by its length and sha256 and follows as ConfigPiece frames, which
a `PayloadAssembler` puts together again.
"""

from __future__ import annotations

from hashlib import sha256
from typing import NamedTuple

from google.protobuf.message import DecodeError

from iop_fast.config.payload import (
    AdapterSettings,
    NodePayload,
    ProviderPayload,
    RuntimeSettings,
    TimeoutSettings,
)
from iop_fast.wire import runtime_pb2 as pb
from iop_fast.wire.options import INLINE_PAYLOAD_BYTES, MAX_PAYLOAD_BYTES, PIECE_BYTES


class PayloadError(ValueError):
    """A payload that came is not the one that was announced, or is none at all: the session must end."""


class PayloadTooLarge(ValueError):
    """A payload exceeds what a Node takes."""


class EncodedPayload(NamedTuple):
    """A payload as bytes, and their sha256 (32 bytes)."""

    data: bytes
    sha256: bytes


# Encoding.


def encode_payload(payload: NodePayload) -> EncodedPayload:
    """Serialize; equal payloads give equal bytes."""
    data = message_from_payload(payload).SerializeToString(deterministic=True)
    return EncodedPayload(data, sha256(data).digest())


def message_from_payload(payload: NodePayload) -> pb.NodeConfigPayload:
    """Turn plain data into the wire's message."""
    runtime = pb.NodeRuntimeConfig(
        drain_limit_ms=payload.runtime.drain_limit_ms, concurrency=payload.runtime.concurrency
    )
    return pb.NodeConfigPayload(
        runtime=runtime,
        adapters=[_adapter_message(adapter) for adapter in payload.adapters],
        providers=[_provider_message(provider) for provider in payload.providers],
    )


def _adapter_message(adapter: AdapterSettings) -> pb.AdapterConfig:
    return pb.AdapterConfig(
        name=adapter.name,
        type=adapter.type,
        endpoint=adapter.endpoint,
        endpoint_env=adapter.endpoint_env,
        api_key_env=adapter.api_key_env,
        profile=adapter.profile,
        options=dict(adapter.options),
    )


def _provider_message(provider: ProviderPayload) -> pb.ProviderConfig:
    timeouts = provider.timeouts
    return pb.ProviderConfig(
        id=provider.id,
        type=provider.type,
        label=provider.label,
        adapter_type=provider.adapter_type,
        adapter=provider.adapter,
        settings=None if provider.settings is None else _adapter_message(provider.settings),
        models=provider.models,
        timeouts=pb.ProviderTimeouts(
            connect_ms=timeouts.connect_ms, first_byte_ms=timeouts.first_byte_ms, idle_ms=timeouts.idle_ms
        ),
        enabled=provider.enabled,
        health=provider.health,
        capacity=provider.capacity,
        long_context_capacity=provider.long_context_capacity,
        priority=provider.priority,
        context_windows=[pb.ContextWindow(model=model, tokens=tokens) for model, tokens in provider.context_windows],
    )


def registration_entries(response: pb.RegisterResponse, encoded: EncodedPayload) -> list[bytes]:
    """Return the entries that accept a registration: `response`, completed by the payload, and the pieces if any."""
    if len(encoded.data) <= INLINE_PAYLOAD_BYTES:
        response.payload.ParseFromString(encoded.data)
    response.payload_bytes = len(encoded.data)
    response.payload_sha256 = encoded.sha256
    return [_entry(pb.Frame(register_response=response)), *_piece_entries(response.payload_revision, encoded)]


def refresh_entries(payload_revision: int, encoded: EncodedPayload) -> list[bytes]:
    """Return the entries that push a payload: a NodeConfigRefreshRequest and the pieces if any."""
    request = pb.NodeConfigRefreshRequest(
        payload_revision=payload_revision, payload_bytes=len(encoded.data), payload_sha256=encoded.sha256
    )
    if len(encoded.data) <= INLINE_PAYLOAD_BYTES:
        request.payload.ParseFromString(encoded.data)
    return [_entry(pb.Frame(refresh_request=request)), *_piece_entries(payload_revision, encoded)]


def _piece_entries(payload_revision: int, encoded: EncodedPayload) -> list[bytes]:
    data = encoded.data
    if len(data) <= INLINE_PAYLOAD_BYTES:
        return []
    if len(data) > MAX_PAYLOAD_BYTES:
        raise PayloadTooLarge(f"payload too large: expected at most {MAX_PAYLOAD_BYTES} bytes, got {len(data)}")
    return [
        _entry(
            pb.Frame(
                config_piece=pb.ConfigPiece(
                    payload_revision=payload_revision, offset=offset, piece=data[offset : offset + PIECE_BYTES]
                )
            )
        )
        for offset in range(0, len(data), PIECE_BYTES)
    ]


def _entry(frame: pb.Frame) -> bytes:
    """A message of one frame is that frame's entry, for a Batch is the concatenation of its entries."""
    return pb.Batch(frames=(frame,)).SerializeToString()


# Decoding.


def decode_payload(data: bytes) -> NodePayload:
    """The reverse of `encode_payload`; raises PayloadError for bytes that are no payload."""
    try:
        return payload_from_message(pb.NodeConfigPayload.FromString(data))
    except DecodeError:
        raise PayloadError("the payload is not a NodeConfigPayload") from None


def payload_from_message(message: pb.NodeConfigPayload) -> NodePayload:
    """Turn the wire's message into plain data. Fields of a later version are ignored."""
    return NodePayload(
        runtime=RuntimeSettings(message.runtime.drain_limit_ms, message.runtime.concurrency),
        adapters=tuple(_adapter_settings(adapter) for adapter in message.adapters),
        providers=tuple(_provider_payload(provider) for provider in message.providers),
    )


def _adapter_settings(message: pb.AdapterConfig) -> AdapterSettings:
    return AdapterSettings(
        name=message.name,
        type=message.type,
        endpoint=message.endpoint,
        endpoint_env=message.endpoint_env,
        api_key_env=message.api_key_env,
        profile=message.profile,
        options=tuple(sorted(message.options.items())),
    )


def _provider_payload(message: pb.ProviderConfig) -> ProviderPayload:
    timeouts = message.timeouts
    return ProviderPayload(
        id=message.id,
        type=message.type,
        label=message.label,
        adapter_type=message.adapter_type,
        adapter=message.adapter,
        settings=_adapter_settings(message.settings) if message.HasField("settings") else None,
        models=tuple(message.models),
        timeouts=TimeoutSettings(timeouts.connect_ms, timeouts.first_byte_ms, timeouts.idle_ms),
        enabled=message.enabled,
        health=message.health,
        capacity=message.capacity,
        long_context_capacity=message.long_context_capacity,
        priority=message.priority,
        context_windows=tuple((window.model, window.tokens) for window in message.context_windows),
    )


class PayloadAssembler:
    """Puts the pieces of one announced payload together.

    Made from the announcing frame's numbers; raises PayloadError when they announce nothing that could travel in
    pieces. Pieces come in order and without gaps; the whole must have the announced sha256.
    """

    __slots__ = ("_buffer", "_sha256", "payload_bytes", "payload_revision")

    def __init__(self, payload_revision: int, payload_bytes: int, payload_sha256: bytes) -> None:
        if not 0 < payload_bytes <= MAX_PAYLOAD_BYTES:
            raise PayloadError(f"expected a payload of 1 to {MAX_PAYLOAD_BYTES} bytes, {payload_bytes} were announced")
        if len(payload_sha256) != 32:
            raise PayloadError(f"expected a sha256 of 32 bytes, got {len(payload_sha256)}")
        self.payload_revision = payload_revision
        self.payload_bytes = payload_bytes
        self._sha256 = payload_sha256
        self._buffer = bytearray()

    def feed(self, piece: pb.ConfigPiece) -> NodePayload | None:
        """Take the next piece; return the payload with the last one, None before. Raises PayloadError."""
        if piece.payload_revision != self.payload_revision:
            raise PayloadError(
                f"expected a piece of payload revision {self.payload_revision}, got one of {piece.payload_revision}"
            )
        if piece.offset != len(self._buffer):
            raise PayloadError(f"expected the piece at offset {len(self._buffer)}, got the one at {piece.offset}")
        if not piece.piece:
            raise PayloadError(f"empty piece at offset {piece.offset}")
        if len(self._buffer) + len(piece.piece) > self.payload_bytes:
            raise PayloadError(f"the pieces exceed the announced {self.payload_bytes} bytes")
        self._buffer += piece.piece
        if len(self._buffer) < self.payload_bytes:
            return None
        data = bytes(self._buffer)
        if sha256(data).digest() != self._sha256:
            raise PayloadError("the payload's sha256 is not the announced one")
        return decode_payload(data)
