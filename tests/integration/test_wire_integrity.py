"""What is sent arrives, whole, once, in order: any sizes, both ways at once, readers and writers that stand still."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest
import uvloop

from iop_fast.seams import MessageStream
from iop_fast.wire.options import MAX_MESSAGE_BYTES
from iop_fast.wire.transport import EdgeStream
from tests.integration.wire_pairs import LIMIT_S, PAIRS, Pair

MESSAGES = 150
STALL_S = 0.01


def any_size(drawn: random.Random) -> int:
    """Small ones as often as large ones, and every size that the windows and frames make special."""
    if drawn.random() < 0.2:
        return drawn.choice((0, 1, 16_379, 16_384, 65_530, 65_536, 262_139, 262_144, MAX_MESSAGE_BYTES))
    return int(2 ** drawn.uniform(0, 20))


async def stand_still(drawn: random.Random) -> None:
    if drawn.random() < 0.05:
        await asyncio.sleep(drawn.random() * STALL_S)


async def send(stream: MessageStream, seed: int) -> str:
    """Send all; return their hash."""
    drawn, found = random.Random(seed), hashlib.blake2b()
    for _ in range(MESSAGES):
        message = drawn.randbytes(any_size(drawn))
        found.update(b"%d:" % len(message) + message)
        await stream.write(message)
        await stand_still(drawn)
    return found.hexdigest()


async def receive(stream: MessageStream, seed: int) -> str:
    """Receive all; return their hash."""
    drawn, found = random.Random(seed), hashlib.blake2b()
    for number in range(MESSAGES):
        message = await stream.read()
        assert message is not None, f"ended before message {number}"
        found.update(b"%d:" % len(message) + message)
        await stand_still(drawn)
    return found.hexdigest()


@pytest.mark.parametrize("pair", PAIRS, ids=str)
def test_messages_of_all_sizes_arrive_once_and_in_order(pair: Pair) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")

    async def main() -> None:
        edge: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()

        async def serve(stream: EdgeStream, peer: str) -> None:
            stream.on_registered()
            edge.set_result(await asyncio.gather(send(stream, seed), receive(stream, seed + 1)))

        async with pair.running(serve) as (_, address), asyncio.timeout(2 * LIMIT_S):
            node = await pair.dial(address)
            came, sent = await asyncio.gather(receive(node, seed + 2), send(node, seed + 3))
            assert (await edge) == [came, sent]
            assert await node.read() is None
            node.abandon()

    uvloop.run(main())
