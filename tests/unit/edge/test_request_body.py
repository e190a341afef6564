"""A request's body: memory, limits and the edited form that is sent."""

from __future__ import annotations

import random

import pytest

from iop_fast.edge.body import (
    BLOCK_BYTES,
    RESERVED_BYTES_MAX,
    Body,
    BodyTooLarge,
    BudgetExhausted,
    ByteBudget,
    Edit,
    EditedBody,
)

MIB = 1024 * 1024


def body_of(content: bytes, piece_bytes: int = MIB) -> Body:
    body = Body(ByteBudget(1024 * MIB), 1024 * MIB, None)
    for start in range(0, len(content), piece_bytes):
        body.append(content[start : start + piece_bytes])
    return body


def test_the_budget_counts_what_is_allocated_and_gets_it_back() -> None:
    budget = ByteBudget(64 * MIB)
    body = Body(budget, 32 * MIB, None)
    assert budget.used == 0
    for _ in range(1000):
        body.append(b"x")
    assert 1000 <= budget.used <= 2000
    body.append(bytes(5 * MIB))
    assert body.size <= budget.used <= body.size * 9 // 8 + 64
    body.drop()
    assert budget.used == 0
    body.drop()
    assert budget.used == 0


def test_a_declared_length_is_charged_before_it_comes_up_to_a_mebibyte() -> None:
    budget = ByteBudget(64 * MIB)
    small, large = Body(budget, 32 * MIB, 1000), Body(budget, 32 * MIB, 20 * MIB)
    assert budget.used == 1000 + RESERVED_BYTES_MAX
    small.append(bytes(1000))
    large.append(bytes(1000))
    assert budget.used <= 1000 + RESERVED_BYTES_MAX + 64
    small.drop()
    large.drop()
    assert budget.used == 0


def test_a_body_above_its_limit_is_refused_declared_or_not() -> None:
    budget = ByteBudget(64 * MIB)
    with pytest.raises(BodyTooLarge):
        Body(budget, 100, 101)
    assert budget.used == 0
    body = Body(budget, 100, None)
    body.append(bytes(100))
    with pytest.raises(BodyTooLarge):
        body.append(b"x")
    body.drop()
    assert budget.used == 0


def test_a_body_is_refused_when_all_bodies_take_the_budget() -> None:
    budget = ByteBudget(4 * MIB)
    first = Body(budget, 32 * MIB, None)
    first.append(bytes(3 * MIB))
    second = Body(budget, 32 * MIB, None)
    with pytest.raises(BudgetExhausted):
        second.append(bytes(2 * MIB))
    second.drop()
    with pytest.raises(BudgetExhausted):
        Body(budget, 32 * MIB, 2 * MIB)
    first.drop()
    assert budget.used == 0


def test_giving_back_more_than_was_taken_is_a_bug() -> None:
    budget = ByteBudget(10)
    assert budget.take(10)
    assert not budget.take(1)
    with pytest.raises(AssertionError):
        budget.give(11)


@pytest.mark.parametrize("piece_bytes", [1000, 65536, 262144, MIB, 3 * MIB])
def test_a_slice_is_what_was_appended_whatever_the_pieces(piece_bytes: int) -> None:
    content = random.Random(3).randbytes(2 * MIB + 12345)
    body = body_of(content, piece_bytes)
    assert body.size == len(content)
    assert body.slice(0, body.size) == content
    edges = [0, 1, 65536, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 2 * BLOCK_BYTES, len(content)]
    for start in edges:
        for end in edges:
            assert body.slice(start, end) == content[start:end], (start, end)
            assert body.view(start, end) == content[start:end], (start, end)


def test_an_edited_body_reads_the_same_from_any_offset() -> None:
    seed = 11
    rng = random.Random(seed)
    content = rng.randbytes(MIB + 500)
    body = body_of(content)
    edits = [
        Edit(1, 1, b"INSERTED"),
        Edit(40, 50, b""),
        Edit(MIB - 5, MIB + 5, b"across the border"),
        Edit(MIB + 500, MIB + 500, b"!"),
    ]
    wanted = bytearray(content)
    for start, end, text in reversed(edits):
        wanted[start:end] = text
    edited = EditedBody(body, edits)
    assert edited.size == len(wanted)
    for _ in range(200):
        offset, limit = rng.randrange(edited.size + 10), rng.choice([0, 1, 7, 100, 65536])
        assert edited.piece(offset, limit) == bytes(wanted[offset : offset + limit]), (seed, offset, limit)
        assert edited.view(offset, limit) == bytes(wanted[offset : offset + limit]), (seed, offset, limit)
    assert isinstance(edited.view(100, 1000), memoryview), "nothing is copied of what stands in one block"


def test_edits_that_overlap_or_lie_outside_are_a_bug() -> None:
    body = body_of(b"0123456789")
    for edits in ([Edit(2, 5, b""), Edit(4, 6, b"")], [Edit(5, 11, b"")], [Edit(5, 4, b"")]):
        with pytest.raises(AssertionError):
            EditedBody(body, edits)


def test_a_body_of_single_bytes_costs_no_object_a_byte() -> None:
    budget = ByteBudget(64 * MIB)
    body = Body(budget, 32 * MIB, None)
    for _ in range(100_000):
        body.append(b"x")
    assert budget.used < 130_000
    assert body.slice(99_990, 100_000) == b"x" * 10
