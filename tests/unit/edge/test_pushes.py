"""The payload bookkeeping of one session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from iop_fast.edge.pushes import PushBook, PushStatus
from iop_fast.wire import runtime_pb2 as pb
from tests.unit.edge.worlds import VirtualLoop


def answer(revision: int, applied: bool = True, error: str = "") -> pb.NodeConfigRefreshResponse:
    return pb.NodeConfigRefreshResponse(payload_revision=revision, applied=applied, error=error)


@pytest.fixture
def book() -> Iterator[PushBook]:
    with VirtualLoop() as loop:
        yield PushBook(3, loop)


def test_the_ready_ack_makes_the_registered_revision_observed(book: PushBook) -> None:
    assert (book.sent_revision, book.observed_revision) == (3, 0)
    book.on_ready()
    assert book.observed_revision == 3


def test_an_acked_push_is_observed(book: PushBook) -> None:
    book.on_ready()
    push = book.start(5)
    assert (book.is_pending, book.sent_revision, book.observed_revision) == (True, 5, 3)
    assert book.on_answer(answer(5)) is push
    assert (push.status, push.error, push.settled.done()) == (PushStatus.ACKED, "", True)
    assert (book.is_pending, book.observed_revision, book.error) == (False, 5, "")


def test_a_refused_push_keeps_what_runs_and_says_why(book: PushBook) -> None:
    book.on_ready()
    push = book.start(5)
    book.on_answer(answer(5, applied=False, error="adapter vllm: no such variable"))
    assert (push.status, book.observed_revision) == (PushStatus.REFUSED, 3)
    assert push.error == book.error == "adapter vllm: no such variable"
    second = book.start(6)
    book.on_answer(answer(6))
    assert (second.status, book.observed_revision, book.error) == (PushStatus.ACKED, 6, "")


def test_a_refusal_without_a_reason_still_reads_as_one(book: PushBook) -> None:
    book.start(5)
    book.on_answer(answer(5, applied=False))
    assert book.error


def test_several_pushes_settle_each_by_its_own_answer(book: PushBook) -> None:
    book.on_ready()
    first, second = book.start(4), book.start(5)
    book.on_answer(answer(4))
    assert (first.status, second.status, book.observed_revision) == (PushStatus.ACKED, PushStatus.PENDING, 4)
    book.on_answer(answer(5))
    assert (second.status, book.observed_revision) == (PushStatus.ACKED, 5)


@pytest.mark.parametrize("revision", [3, 4, 99])
def test_an_answer_to_nothing_pending_changes_nothing(book: PushBook, revision: int) -> None:
    book.on_ready()
    book.start(4)
    book.on_answer(answer(4))
    assert book.on_answer(answer(revision, applied=False, error="late")) is None
    assert (book.observed_revision, book.error) == (4, "")


def test_the_sessions_end_loses_what_is_pending(book: PushBook) -> None:
    push = book.start(4)
    book.stop()
    book.stop()
    assert (push.status, push.settled.done(), book.is_pending) == (PushStatus.LOST, True, False)


def test_revisions_only_rise(book: PushBook) -> None:
    with pytest.raises(AssertionError, match="push of revision 3 after 3"):
        book.start(3)
