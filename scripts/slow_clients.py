"""Slow clients by the thousand against a real Edge, while good clients go on: Debian's slowhttptest in three modes.

Good clients ask at a fixed rate, first alone, then beside 1,000 slow connections of each mode (heads that never end,
bodies that trickle, answers that are hardly read). They must see no error and keep at least nine tenths of their
goodput. The figures are printed. usage: slow_clients.py [--seconds 60] [--connections 1000] [--rate 100]
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

ROOT = Path(__file__).resolve().parents[1]
GOODPUT_MIN = 0.9
ALONE_S = 10
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


@dataclass
class Seen:
    """What the good clients met."""

    seconds: float = 0.0
    done: int = 0
    errors: list[str] = field(default_factory=list)
    waits_ms: list[float] = field(default_factory=list)

    @property
    def goodput(self) -> float:
        """Whole answers a second."""
        return self.done / self.seconds

    @property
    def p99_ms(self) -> float:
        """The slowest but one in a hundred."""
        return sorted(self.waits_ms)[int(len(self.waits_ms) * 0.99)] if self.waits_ms else 0.0


async def ask(client: aiohttp.ClientSession, url: str, seen: Seen) -> None:
    """One good request."""
    began = time.perf_counter()
    try:
        async with client.post(url, json=CHAT) as answer:
            await answer.read()
            if answer.status != 200:
                seen.errors.append(f"status {answer.status}")
                return
    except (aiohttp.ClientError, TimeoutError) as error:
        seen.errors.append(repr(error))
        return
    seen.done += 1
    seen.waits_ms.append((time.perf_counter() - began) * 1000)


async def good_clients(client: aiohttp.ClientSession, url: str, rate: int, seconds: float) -> Seen:
    """Ask at a fixed rate for some seconds."""
    seen, loop = Seen(), asyncio.get_running_loop()
    began = loop.time()
    asked: set[asyncio.Task[None]] = set()
    for number in range(int(rate * seconds)):
        await asyncio.sleep(max(0.0, began + number / rate - loop.time()))
        task = loop.create_task(ask(client, url, seen))
        asked.add(task)
        task.add_done_callback(asked.discard)
    if asked:
        await asyncio.wait(asked)
    seen.seconds = loop.time() - began
    return seen


def modes(base: str, connections: int, seconds: int) -> dict[str, Sequence[str]]:
    """The command line of each mode: all connections within a few seconds, then as slow as can be."""
    common = ("-c", str(connections), "-l", str(seconds), "-r", str(max(50, connections // 4)), "-i", "5", "-p", "3")
    post = ("-t", "POST", "-u", f"{base}/chat/completions")
    return {
        "heads": ("-H", *common, "-u", f"{base}/models"),
        "bodies": ("-B", *common, *post, "-s", "16384", "-x", "10"),
        "readers": ("-X", *common, "-w", "16", "-y", "64", "-n", "5", "-z", "8", "-k", "4", "-u", f"{base}/models"),
    }


async def attack(arguments: Sequence[str], log: Path) -> asyncio.subprocess.Process:
    """Start slowhttptest."""
    with log.open("wb") as output:
        return await asyncio.create_subprocess_exec("slowhttptest", *arguments, stdout=output, stderr=output)


async def work(options: argparse.Namespace) -> int:
    """Run every mode; return the exit code."""
    from tests.fakes.openai_backend import FakeBackend
    from tests.integration.edge_harness import provider
    from tests.integration.fleet import fleet

    failed = False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        async with FakeBackend() as backend:
            nodes = {"n1": [provider("p1", 1000, endpoint=backend.url)]}
            async with fleet(folder, nodes, ["n1"]) as made:
                url = f"{made.base_url}/chat/completions"
                alone = await good_clients(made.client, url, options.rate, ALONE_S)
                print(f"alone    {alone.goodput:6.1f}/s p99 {alone.p99_ms:6.1f} ms errors {len(alone.errors)}")
                for mode, arguments in modes(made.base_url, options.connections, options.seconds).items():
                    slow = await attack(arguments, folder / f"{mode}.log")
                    seen = await good_clients(made.client, url, options.rate, options.seconds)
                    await slow.wait()
                    status = await made.status()
                    share = seen.goodput / alone.goodput
                    print(
                        f"{mode:8} {seen.goodput:6.1f}/s p99 {seen.p99_ms:6.1f} ms errors {len(seen.errors)} "
                        f"share {share:.3f} slow connections {status['counters']['http']['connections']}"
                        f" refused {status['counters']['http']['refusals']}",
                        flush=True,
                    )
                    failed |= bool(seen.errors) or share < GOODPUT_MIN
                    print(*dict.fromkeys(seen.errors[:5]), sep="\n", file=sys.stderr)
                await made.idle()
    return 1 if failed else 0


def main() -> int:
    """Read the options and go."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=int, default=60)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--rate", type=int, default=100)
    options = parser.parse_args()
    if shutil.which("slowhttptest") is None:
        print("slow clients: slowhttptest expected, `apt-get install slowhttptest`", file=sys.stderr)
        return 2
    sys.path.insert(0, str(ROOT))
    return asyncio.run(work(options))


if __name__ == "__main__":
    raise SystemExit(main())
