"""For how long at a time a normalized request holds the loop: admission's look, reading, each piece of media; and what
an event costs.

python -m benchmarks.bench_normalized      # CPU, the best of 15; exits 1 when a step takes more than 5 ms
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from iop_fast.edge.normalized.limits import INPUT_VALUES_MAX, READ_BYTES_MAX, tunnel_needs
from iop_fast.edge.normalized.translation import ChatStream, Envelope
from iop_fast.seams import RunText
from tests.unit.edge.normalized.bodies import CHAT, body_of, opened

LIMIT_MS = 5.0
ROUNDS = 15
MIB = 1024 * 1024


def best_ms(work: Callable[[], object]) -> float:
    """CPU milliseconds of the fastest round."""
    times = []
    for _ in range(ROUNDS):
        began = time.thread_time()
        work()
        times.append(time.thread_time() - began)
    return min(times) * 1000


def user(content: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


def image(size: int) -> dict[str, Any]:
    url = "data:image/png;base64," + base64.b64encode(os.urandom(size)).decode()
    return {"type": "image_url", "image_url": {"url": url}}


def bodies() -> dict[str, dict[str, Any]]:
    """The worst of what is taken, and what is common."""
    lines = 'A line, with "quotes" in it.\n' * 200_000
    return {
        "one message": {"messages": user("hi")},
        "200 messages of 400 bytes": {"messages": user("x" * 400) * 200},
        "as many messages as may be": {"messages": user("x") * (INPUT_VALUES_MAX // 3 - 1)},
        "as much text as may be": {"messages": user(lines[: READ_BYTES_MAX * 9 // 10])},
        "as much text, escaped": {"messages": user("한국어 " * (READ_BYTES_MAX // 24))},
        "an image of 23 MiB": {"messages": user([image(23 * MIB)])},
        "100 images of 40 KiB": {"messages": user([image(40 * 1024) for _ in range(100)])},
    }


def measure(given: dict[str, Any]) -> dict[str, float]:
    """Milliseconds of each step of one body."""
    raw = json.dumps({"model": "m", **given}).encode()
    body, scan = body_of(raw)
    assert not tunnel_needs(scan, body, CHAT), "a body that is taken"
    made = opened(raw)
    steps = {
        "bytes": float(len(raw)),
        "look": best_ms(lambda: tunnel_needs(scan, body, CHAT)),
        # What `opened` does besides, receiving and scanning, comes piece by piece.
        "read": best_ms(lambda: opened(raw)) - best_ms(lambda: body_of(raw)),
        "window": 0.0,
    }
    upload = made.upload
    while upload is not None and not upload.is_complete:
        began = time.thread_time()
        upload.go_on(Sink(), 1, 256 * 1024)
        steps["window"] = max(steps["window"], (time.thread_time() - began) * 1000)
    return steps


class Sink:
    """A link that takes everything."""

    takes_body = True

    def send_body(self, run_id: int, piece: bytes, complete: bool) -> None:
        """Drop it."""


def main() -> int:
    """Print a table; return 1 when a step is too long."""
    worst = 0.0
    print(f"{'':30}{'bytes':>12}{'look ms':>10}{'read ms':>10}{'window ms':>11}")
    for name, given in bodies().items():
        steps = measure(given)
        print(f"{name:30}{steps['bytes']:12,.0f}{steps['look']:10.2f}{steps['read']:10.2f}{steps['window']:11.2f}")
        worst = max(worst, steps["look"], steps["read"], steps["window"])
    stream = ChatStream(Envelope(b"0" * 32, "m", 1, True), 1, False)
    events: list[Any] = [RunText(" word", 0)] * 1000
    print(f"{'an event of a stream, us':30}{best_ms(lambda: stream.add(events)):12.2f}")
    print(f"longest step {worst:.2f} ms, expected at most {LIMIT_MS} ms")
    return int(worst > LIMIT_MS)


if __name__ == "__main__":
    sys.exit(main())
