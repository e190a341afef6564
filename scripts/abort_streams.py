"""Leave streams of a running Edge at random moments, and see that nothing stays: no slot, no waiter, no run.

`python scripts/abort_streams.py --port P --admin HOST:PORT --model M [--count 50] [--seed N]`
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time

import aiohttp

from iop_fast.cli.admin_client import get_json

IDLE_LIMIT_S = 30.0


async def leave_one(client: aiohttp.ClientSession, url: str, model: str, generator: random.Random) -> int | None:
    """Read a few lines of one stream and cut the connection; the lines read, None when it had no slot in time.

    On a busy machine a small model may be slower than the queue is patient: that is an answer too, and leaves nothing.
    """
    messages = [{"role": "user", "content": "Tell me a story about a fox."}]
    answer = await client.post(url, json={"model": model, "stream": True, "max_tokens": 32, "messages": messages})
    if answer.status in (429, 504):
        answer.close()
        return None
    if answer.status != 200:
        raise SystemExit(f"status {answer.status}: {await answer.text()}")
    lines = 0
    for _ in range(generator.randrange(24)):
        if not await answer.content.readline():
            break
        lines += 1
    answer.close()
    return lines


async def leave_all(url: str, model: str, count: int, generator: random.Random) -> list[int]:
    """Leave `count` streams, four at a time; lines read of each one that had a slot."""
    places = asyncio.Semaphore(4)
    async with aiohttp.ClientSession() as client:

        async def one() -> int | None:
            async with places:
                return await leave_one(client, url, model, generator)

        return [lines for lines in await asyncio.gather(*(one() for _ in range(count))) if lines is not None]


def main() -> int:
    """Run; 0 when everything came back to 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--admin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=50)
    options = parser.parse_args()
    url = f"http://127.0.0.1:{options.port}/v1/chat/completions"
    lines = asyncio.run(leave_all(url, options.model, options.count, random.Random(options.seed)))
    if len(lines) < options.count // 2:
        print(f"only {len(lines)} of {options.count} streams had a slot in time", file=sys.stderr)
        return 1
    deadline = time.monotonic() + IDLE_LIMIT_S
    while time.monotonic() < deadline:
        status = get_json(options.admin, "/status")
        busy = [
            row["effective"][key] for row in status["providers"] for key in ("in_flight", "long_in_flight", "queued")
        ]
        if not any(busy) and status["queue"]["waiting"] == 0:
            print(f"left {len(lines)} streams after {sum(lines)} lines, seed {options.seed}: every counter is 0")
            return 0
        time.sleep(0.05)
    print(f"still busy after {IDLE_LIMIT_S:.0f} s: {busy}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
