"""Calls between two of our own connections: messages, windows, ends, and what is left behind."""

from __future__ import annotations

import asyncio
import gc
import weakref
from contextlib import suppress

import pytest

from iop_fast.wire.http2 import fields, frames
from iop_fast.wire.http2.call import Call
from iop_fast.wire.http2.connection import Connection
from iop_fast.wire.http2.limits import Limits
from tests.sim.loop import VirtualLoop
from tests.unit.wire.http2.harness import (
    PATH,
    Bench,
    MemoryTransport,
    Pair,
    data,
    echo,
    headers,
    message,
    parse,
    play,
    request,
    until,
)

KIB = 1024
SIZES = (0, 1, 4, 5, 6, 1000, 16_379, 16_380, 65_530, 65_531, 128 * KIB, 1024 * KIB)


@pytest.mark.parametrize("window_bytes", [1 * KIB, 65_535, 256 * KIB, 8 * 1024 * KIB])
def test_messages_of_every_size_pass_through_every_window(window_bytes: int) -> None:
    async def scene(loop: VirtualLoop) -> None:
        pair = Pair(loop, Limits(window_bytes=window_bytes), Limits(window_bytes=window_bytes))
        call = await pair.open()
        for size in SIZES:
            sent = bytes(i % 251 for i in range(size))
            await call.write(sent)
            assert await call.read() == sent
        call.half_close()
        assert await call.read() is None
        assert (call.is_over, call.status, call.details) == (True, 0, "")
        await until(lambda: not pair.server.calls and not pair.client.calls)
        await pair.end()

    play(scene)


def test_a_small_message_is_one_write_and_the_first_brings_the_head_of_the_answer() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        before = bench.transport.writes
        await call.write(b"one")
        await call.write(b"two")
        assert bench.transport.writes - before == 2
        kinds = [(f.kind, f.payload) for f in bench.take()]
        assert [kind for kind, _ in kinds] == [frames.HEADERS, frames.DATA, frames.DATA]
        assert [payload for _, payload in kinds[1:]] == [message(b"one"), message(b"two")]
        bench.connection.abort("")

    play(scene)


def test_calls_of_one_connection_do_not_wait_for_each_other() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pair = Pair(loop, Limits(window_bytes=4 * KIB, max_calls=16), Limits(window_bytes=4 * KIB))
        stuck = await pair.open()
        await stuck.write(bytes(4000))
        await stuck.write(bytes(4000))  # two answers, and its client reads none
        calls = [await pair.open() for _ in range(8)]
        payloads = [bytes((number,)) * (number * 5000) for number in range(8)]

        async def talk(call: Call, payload: bytes) -> None:
            await call.write(payload)
            assert await call.read() == payload

        await asyncio.gather(*(talk(call, payload) for call, payload in zip(calls, payloads, strict=True)))
        assert not stuck.is_over
        await pair.end()

    play(scene)


def test_a_reader_that_stands_still_stops_its_peer_and_nothing_is_lost() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pair = Pair(loop, Limits(window_bytes=64 * KIB))
        taken: list[bytes] = []
        gate = asyncio.Event()

        async def serve(call: Call) -> None:
            await gate.wait()
            while (got := await call.read()) is not None:
                taken.append(got)
            call.finish(0)

        pair.serve = serve
        call = await pair.open()
        sent = [bytes((n,)) * 3000 for n in range(60)]
        written = 0

        async def write() -> None:
            nonlocal written
            for payload in sent:
                await call.write(payload)
                written += 1
            call.half_close()

        writer = loop.create_task(write())
        await until(lambda: written > 10)
        await asyncio.sleep(1)
        assert written == 21  # of 65,535 bytes 21 messages fit
        gate.set()
        await writer
        assert await call.read() is None
        assert taken == sent
        await pair.end()

    play(scene)


def test_a_message_larger_than_the_window_waits_only_for_whole_ones_before_it() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, window_bytes=1000)
        call = bench.open()
        bench.take()
        bench.feed(data(1, message(b"x" * 100)))
        bench.feed(data(1, message(b"y" * 5000)[:800]))
        assert bench.take() == []  # a whole one waits: the next must not grow
        assert await call.read() == b"x" * 100
        credit = [f for f in bench.take() if f.kind == frames.WINDOW_UPDATE]
        assert [int.from_bytes(f.payload, "big") for f in credit] == [905]
        bench.connection.abort("")

    play(scene)


def test_a_cancelled_write_is_still_sent_whole_and_the_next_waits_for_it() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pair = Pair(loop, Limits(window_bytes=1000))
        gate = asyncio.Event()
        taken: list[bytes] = []

        async def serve(call: Call) -> None:
            await gate.wait()
            while (got := await call.read()) is not None:
                taken.append(got)
            call.finish(0)

        pair.serve = serve
        call = await pair.open()
        await until(lambda: bool(pair.calls))
        await asyncio.sleep(0.1)
        await call.write(b"a" * 900)
        writer = loop.create_task(call.write(b"b" * 5000))
        await asyncio.sleep(0.1)
        writer.cancel()
        with suppress(asyncio.CancelledError):
            await writer
        second = loop.create_task(call.write(b"c" * 10))
        await asyncio.sleep(0.1)
        assert not second.done()
        gate.set()
        await second
        call.half_close()
        assert await call.read() is None
        assert taken == [b"a" * 900, b"b" * 5000, b"c" * 10]
        await pair.end()

    play(scene)


def test_a_cancelled_read_loses_nothing() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        reader = loop.create_task(call.read())
        await asyncio.sleep(0)
        bench.feed(data(1, message(b"kept")))
        reader.cancel()  # woken already, and cancelled before it runs
        with suppress(asyncio.CancelledError):
            await reader
        assert await call.read() == b"kept"
        bench.connection.abort("")

    play(scene)


def test_a_status_goes_behind_what_waits_for_a_window() -> None:
    async def scene(loop: VirtualLoop) -> None:
        pair = Pair(loop, client=Limits(window_bytes=1000))
        gate = asyncio.Event()

        async def serve(call: Call) -> None:
            writing = loop.create_task(call.write(b"w" * 100_000))
            await asyncio.sleep(0)
            call.finish(7, "no, ünlike 100%")
            with pytest.raises(ConnectionError):
                await call.write(b"after the end")
            assert not call.is_over
            await writing
            assert call.is_over

        pair.serve = serve
        call = await pair.open()
        gate.set()
        assert await call.read() == b"w" * 100_000
        assert await call.read() is None
        assert (call.status, call.details) == (7, "no, ünlike 100%")
        with pytest.raises(ConnectionError, match="ünlike"):
            await call.write(b"x")
        await pair.end()

    play(scene)


def test_an_end_without_messages_is_one_header_frame() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        over: list[Call] = []
        call.on_over = over.append
        call.finish(12, "unknown method")
        sent = bench.take()
        assert [f.kind for f in sent] == [frames.HEADERS, frames.RST_STREAM]
        assert sent[0].flags == frames.END_HEADERS | frames.END_STREAM
        got = dict(fields.BlockReader().read(sent[0].payload))
        assert got[b":status"] == b"200"
        assert (got[b"grpc-status"], got[b"grpc-message"]) == (b"12", b"unknown method")
        assert sent[1].payload == bytes(4)  # NO_ERROR: the client need not send the rest
        assert over == [call]
        assert await call.read() is None
        bench.connection.abort("")
        assert over == [call]

    play(scene)


def test_a_request_that_ended_gets_no_reset_behind_the_status() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        bench.feed(data(1, message(b"all"), ends=True))
        assert await call.read() == b"all"
        assert await call.read() is None
        assert not call.is_over
        call.finish(0)
        assert [f.kind for f in bench.take()] == [frames.HEADERS]
        assert call.is_over
        bench.connection.abort("")

    play(scene)


@pytest.mark.parametrize(
    ("prefix", "status"),
    [
        (b"\x01\x00\x00\x00\x05hello", 12),  # compressed
        (b"\x02\x00\x00\x00\x05hello", 13),
        (b"\x00\x00\x00\x10\x01", 8),  # 4097 bytes
        (b"\x00\xff\xff\xff\xff", 8),
        (b"\x00\x80\x00\x00\x00", 8),
    ],
)
@pytest.mark.parametrize("cut", [1, 3, 100])
def test_a_message_that_is_not_taken_ends_its_call_alone(prefix: bytes, status: int, cut: int) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_receive_bytes=4096)
        call, other = bench.open(1), bench.open(3)
        bench.take()
        for at in range(0, len(prefix), cut):
            bench.feed(data(1, prefix[at : at + cut]))
        assert await call.read() is None
        assert (call.status, call.is_over) == (status, True)
        ended = bench.take()[0]
        assert dict(fields.BlockReader().read(ended.payload))[b"grpc-status"] == b"%d" % status
        bench.feed(data(1, b"the rest, in flight"))
        bench.feed(data(3, message(b"fine")))
        assert await other.read() == b"fine"
        assert bench.goaway is None
        bench.connection.abort("")

    play(scene)


def test_the_largest_message_is_taken() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_receive_bytes=4096)
        call = bench.open(1)
        bench.feed(data(1, message(b"x" * 4096)))
        assert await call.read() == b"x" * 4096
        bench.connection.abort("")

    play(scene)


def test_a_message_that_is_too_large_is_not_sent() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, max_message_bytes=100)
        call = bench.open(1)
        with pytest.raises(ValueError, match="at most 100 bytes, got 101"):
            await call.write(bytes(101))
        await call.write(bytes(100))
        assert not call.is_over
        bench.connection.abort("")

    play(scene)


def test_a_request_that_ends_within_a_message_is_an_error() -> None:
    async def scene(loop: VirtualLoop) -> None:
        for part in (message(b"hello")[:3], message(b"hello")[:8]):
            bench = Bench(loop)
            call = bench.open(1)
            bench.feed(data(1, part, ends=True))
            assert await call.read() is None
            assert (call.status, call.details) == (13, "the request ended within a message")
            bench.connection.abort("")

    play(scene)


def test_a_reset_wakes_reader_and_writer_and_frees_the_call() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open()
        reading = loop.create_task(call.read())
        writing = loop.create_task(call.write(bytes(500_000)))
        await asyncio.sleep(0)
        assert not writing.done()
        bench.feed(frames.rst_stream(1, frames.CANCEL))
        assert await reading is None
        with pytest.raises(ConnectionError, match="the peer reset the call: cancelled"):
            await writing
        assert (call.is_over, bench.connection.calls) == (True, 0)
        call.finish(0)
        call.reset(frames.CANCEL)
        bench.connection.abort("")

    play(scene)


def test_what_on_over_raises_is_told_and_harms_nobody() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call, other = bench.open(1), bench.open(3)

        def fail(_: Call) -> None:
            raise RuntimeError("mine")

        call.on_over = fail
        bench.feed(frames.rst_stream(1, frames.CANCEL))
        assert [str(f["exception"]) for f in loop.failures] == ["mine"]
        loop.failures.clear()
        bench.feed(data(3, message(b"fine")))
        assert await other.read() == b"fine"
        bench.connection.abort("")

    play(scene)


def test_an_owner_that_fails_with_a_call_ends_that_call_by_internal() -> None:
    def on_call(_: Call) -> None:
        raise RuntimeError("mine")

    async def scene(loop: VirtualLoop) -> None:
        connection = Connection(loop, Limits(), is_server=True, on_call=on_call)
        transport = MemoryTransport(loop, connection)
        connection.data_received(frames.PREFACE + frames.settings({}))
        transport.sent.clear()
        connection.data_received(request(1))
        ended = parse(bytes(transport.sent))[0]
        assert dict(fields.BlockReader().read(ended.payload))[b"grpc-status"] == b"13"
        assert [str(f["exception"]) for f in loop.failures] == ["mine"]
        loop.failures.clear()
        connection.abort("")

    play(scene)


HEAD_OF_ANSWER = headers(1, (b":status", b"200"), (b"content-type", b"application/grpc"))


@pytest.mark.parametrize(
    ("answer", "status", "details"),
    [
        (
            headers(1, (b":status", b"200"), (b"content-type", b"application/grpc"), (b"grpc-status", b"5"), ends=True),
            5,
            "",
        ),
        (headers(1, (b":status", b"503"), (b"content-type", b"text/html"), ends=True), 14, "HTTP status 503"),
        (headers(1, (b":status", b"404"), ends=True), 12, "HTTP status 404"),
        (headers(1, (b":status", b"200"), (b"content-type", b"text/html")), 2, "not gRPC"),
        (
            headers(1, (b":status", b"200"), (b"content-type", b"application/grpc"), ends=True),
            2,
            "without a gRPC status",
        ),
        (frames.rst_stream(1, frames.REFUSED_STREAM), 14, "refused"),
        (frames.goaway(0, frames.NO_ERROR), 14, "takes no more calls"),
        (frames.goaway(0, frames.ENHANCE_YOUR_CALM, "too_many_pings"), 14, "too much work asked for: too_many_pings"),
        (data(1, message(b"x"), ends=True), 13, "without trailers"),
        (HEAD_OF_ANSWER + data(1, message(b"cut")[:-1]) + headers(1, (b"grpc-status", b"0"), ends=True), 13, "within"),
        (HEAD_OF_ANSWER + data(1, b"\0\0") + headers(1, (b"grpc-status", b"0"), ends=True), 13, "within a message"),
    ],
)
def test_a_client_learns_how_its_call_ended(answer: bytes, status: int, details: str) -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_server=False)
        call = bench.connection.open_call(PATH, b"host")
        bench.feed(answer)
        assert call.is_over
        assert call.status == status
        assert details in call.details
        bench.connection.abort("")
        assert call.status == status

    play(scene)


def test_a_client_drops_a_call_whose_answer_it_cannot_read() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_server=False)
        call, other = bench.connection.open_call(PATH, b"host"), bench.connection.open_call(PATH, b"host")
        bench.take()
        bench.feed(HEAD_OF_ANSWER + data(1, message(b"read") + b"\1\0\0\0\1x"))
        assert (call.is_over, call.status) == (True, 12)
        assert [(f.kind, f.stream_id) for f in bench.take()] == [(frames.RST_STREAM, 1)]
        assert await call.read() is None
        bench.feed(data(1, b"the rest, in flight"))
        assert not other.is_over
        bench.connection.abort("")

    play(scene)


def test_messages_that_came_before_the_end_are_read_after_it() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop, is_server=False)
        call = bench.connection.open_call(PATH, b"host")
        bench.feed(headers(1, (b":status", b"100")))
        bench.feed(headers(1, (b":status", b"200"), (b"content-type", b"application/grpc+proto")))
        bench.feed(data(1, message(b"one") + message(b"two")))
        bench.feed(headers(1, (b"grpc-status", b"0"), (b"grpc-message", b"a%20b%c3%bc%zz"), ends=True))
        assert (call.is_over, call.status, call.details) == (True, 0, "a bü%zz")
        assert [await call.read(), await call.read(), await call.read()] == [b"one", b"two", None]
        bench.connection.abort("")

    play(scene)


def living() -> list[object]:
    """The connections and calls that the collector knows."""
    return [one for one in gc.get_objects() if type(one) in (Connection, Call)]


def test_nothing_is_left_of_connections_without_a_collection() -> None:
    async def scene(loop: VirtualLoop) -> None:
        gc.collect()
        gc.disable()
        before = living()  # a failure that another test provoked may hold some
        try:
            for ending in ("half_close", "reset", "abort"):
                pair = Pair(loop)
                call = await pair.open()
                await call.write(b"x" * 100)
                assert await call.read() == b"x" * 100
                if ending == "half_close":
                    call.half_close()
                    assert await call.read() is None
                elif ending == "reset":
                    call.reset(frames.CANCEL)
                else:
                    pair.client.abort("over")
                await pair.end()
                pair.at_client.other = pair.at_server.other = None
                marks = [weakref.ref(transport) for transport in (pair.at_client, pair.at_server)]
                pair.at_client.protocol = pair.at_server.protocol = None
                assert len(living()) > len(before)
                del pair, call
                await asyncio.sleep(1)
                assert [mark() for mark in marks] == [None, None]
                assert [one for one in living() if not any(one is other for other in before)] == []
        finally:
            gc.enable()

    play(scene)


def test_the_echo_of_the_harness_ends_calls() -> None:
    async def scene(loop: VirtualLoop) -> None:
        bench = Bench(loop)
        call = bench.open(ends=True)
        await echo(call)
        assert (call.is_over, call.status) == (True, 0)
        bench.connection.abort("")

    play(scene)
