"""A turn of the loop starts requests for a while only; the rest have theirs in later turns, in their order."""

from __future__ import annotations

from iop_fast.edge.front.connection import TURN_BYTES_MAX
from iop_fast.edge.front.shared import TURN_NS, Turns
from tests.unit.edge.front.harness import Bench, Client, Recorder

GET = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"
COST_NS = TURN_NS // 4


class Storm:
    """Connections whose requests come in one turn; each takes a quarter of a turn's time to open, and is answered."""

    def __init__(self, number: int) -> None:
        self.bench = Bench()
        self.clients = [self.bench.connect() for _ in range(number)]
        self.bench.service.on_open = self._spend
        self.bench.service.on_complete = Recorder.answer

    def _spend(self, _: Recorder) -> None:
        clock = self.bench.clock
        clock.advance_to(clock.now_ns() + COST_NS)

    def strike(self, first: int = 0) -> None:
        """Deliver a request on every connection without a turn between."""
        for number, client in enumerate(self.clients, first):
            client.connection.data_received(GET % number)

    @property
    def opened(self) -> list[int]:
        return [int(one.head.path[1:]) for one in self.bench.service.requests]


def test_a_storm_is_taken_up_in_pieces_and_in_its_order() -> None:
    storm = Storm(10)
    storm.strike()
    assert storm.opened == [0, 1, 2, 3]
    storm.bench.loop.turn()
    assert storm.opened == list(range(8))
    storm.bench.loop.settle()
    assert storm.opened == list(range(10))
    assert all(len(client.transport.writes) == 1 for client in storm.clients)


def test_a_connection_that_comes_while_others_wait_stands_behind_them() -> None:
    storm = Storm(6)
    storm.strike()
    late = storm.bench.connect()
    late.connection.data_received(GET % 6)
    assert storm.opened == [0, 1, 2, 3]
    storm.bench.loop.settle()
    assert storm.opened == list(range(7))


def test_requests_of_separate_turns_never_wait() -> None:
    storm = Storm(12)
    for number, client in enumerate(storm.clients):
        client.connection.data_received(GET % number)
        assert storm.opened == list(range(number + 1))
        storm.bench.loop.settle()


def test_a_large_first_read_does_not_wait_for_a_turn() -> None:
    storm = Storm(5)
    storm.strike()
    assert storm.opened == [0, 1, 2, 3]
    large = storm.bench.connect()
    body = b"x" * TURN_BYTES_MAX
    large.connection.data_received(b"POST /5 HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert storm.opened == [0, 1, 2, 3, 5], "its bytes are to be counted by the request"


def test_more_bytes_end_the_waiting_and_the_later_turn_is_no_second_one() -> None:
    storm = Storm(6)
    storm.strike()
    waiting = storm.clients[5]
    waiting.connection.data_received(GET % 99)
    assert storm.opened == [0, 1, 2, 3, 5, 99]
    storm.bench.loop.settle()
    assert storm.opened == [0, 1, 2, 3, 5, 99, 4]
    assert len(waiting.transport.writes) == 2


def test_a_client_that_leaves_while_it_waits_for_a_turn_is_never_opened() -> None:
    storm = Storm(7)
    storm.strike()
    end, reset = storm.clients[4], storm.clients[5]
    assert not end.connection.eof_received()
    reset.transport.lose(ConnectionResetError())
    storm.bench.loop.settle()
    assert storm.opened == [0, 1, 2, 3, 6]
    assert not end.transport.writes


def test_waiting_for_a_turn_is_not_being_idle() -> None:
    storm = Storm(5)
    waiting = storm.clients[4]
    waiting.connection.data_received(GET % 0)
    storm.bench.loop.settle()
    assert len(storm.bench.front.idles) == 1
    storm.strike(1)
    assert len(waiting.transport.writes) == 1, "the second request waits for a turn"
    assert len(storm.bench.front.idles) == 4
    storm.bench.front.close_idle()
    assert not waiting.transport.is_closed
    storm.bench.loop.settle()
    assert len(waiting.transport.writes) == 2


def test_a_fault_of_one_does_not_keep_the_others_from_their_turn() -> None:
    storm = Storm(8)

    def raise_for_five(request: Recorder) -> None:
        storm._spend(request)
        if request.head.path == b"/5":
            raise RuntimeError("broken")

    storm.bench.service.on_open = raise_for_five
    storm.strike()
    storm.bench.loop.settle()
    assert storm.opened == list(range(8))
    assert storm.clients[5].output.startswith(b"HTTP/1.1 500")
    assert all(client.output.startswith(b"HTTP/1.1 200") for client in storm.clients[6:])


def test_a_quiet_loop_has_no_turn_on_its_way() -> None:
    bench = Bench()
    turns = Turns(bench.clock, bench.loop)  # type: ignore[arg-type]
    assert not turns.is_spent()
    assert len(bench.loop.ready) == 1
    assert not turns.is_spent()
    bench.loop.settle()
    assert not bench.loop.ready


def test_partial_heads_wait_like_whole_ones() -> None:
    storm = Storm(5)
    slow: Client = storm.bench.connect()
    storm.strike()
    slow.connection.data_received(b"GET /7 HTTP/1.1\r\n")
    storm.bench.loop.settle()
    assert storm.opened == [0, 1, 2, 3, 4]
    slow.send(b"Host: a\r\n\r\n")
    assert storm.opened == [0, 1, 2, 3, 4, 7]
