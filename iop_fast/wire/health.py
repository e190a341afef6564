"""gRPC health checking (grpc.health.v1), so that probes and balancers can ask a running Edge.

The two messages have one field each and are written by hand: `HealthCheckRequest{service = 1}` and
`HealthCheckResponse{status = 1}` (github.com/grpc/grpc-proto, grpc/health/v1/health.proto). The status is that of the
whole process; the empty service name and the session service both have it. How a call comes and is answered is the
transport's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

SERVICE = "grpc.health.v1.Health"
CHECK = f"/{SERVICE}/Check"
WATCH = f"/{SERVICE}/Watch"

SERVING = b"\x08\x01"
NOT_SERVING = b"\x08\x02"
SERVICE_UNKNOWN = b"\x08\x03"

# Watches that are open at once; they cost a task each and anybody may open one.
MAX_WATCHES = 64

NO_SERVICE = "unknown service"
NO_WATCH = f"at most {MAX_WATCHES} watches"


class Health:
    """What Check and Watch say. Serving until it is told otherwise; `stop` ends the watches."""

    def __init__(self, service: str) -> None:
        self._services = (b"", service.encode())
        self._is_serving = True
        self._is_stopped = False
        self._watches = 0
        self._changed = asyncio.Event()

    def set_serving(self, is_serving: bool) -> None:
        """Change the status and tell the watches."""
        if is_serving != self._is_serving:
            self._is_serving = is_serving
            self._wake()

    def stop(self) -> None:
        """Not serving any more, for good: the watches are told and end."""
        self._is_serving = False
        self._is_stopped = True
        self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def status(self, request: bytes) -> bytes:
        """Return the answer to a Check; `SERVICE_UNKNOWN` itself where that ends by NOT_FOUND instead."""
        if asked_service(request) not in self._services:
            return SERVICE_UNKNOWN
        return SERVING if self._is_serving else NOT_SERVING

    @property
    def has_room(self) -> bool:
        """True while one more watch may be opened."""
        return self._watches < MAX_WATCHES

    async def watch(self, request: bytes, write: Callable[[bytes], Awaitable[None]]) -> None:
        """Answer a Watch: write the status and each change of it, until `stop`. May be cancelled."""
        self._watches += 1
        try:
            said = b""
            while True:
                changed = self._changed
                status = self.status(request)
                if status != said:
                    said = status
                    await write(status)
                if self._is_stopped:
                    return
                await changed.wait()
        finally:
            self._watches -= 1


def asked_service(request: bytes) -> bytes | None:
    """Read the service's name from a HealthCheckRequest; None for bytes that are none."""
    if not request:
        return b""
    if request[0] != 0x0A or len(request) < 2 or request[1] >= 0x80 or len(request) != 2 + request[1]:
        return None
    return request[2:]
