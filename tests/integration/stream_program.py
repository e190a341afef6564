"""A process with one end of a session, for tests that need a peer they can kill, freeze or start twice.

python -m tests.integration.stream_program serve ADDRESS TRANSPORT    prints "port N" or "error TEXT", then echoes
python -m tests.integration.stream_program dial ADDRESS TRANSPORT     prints "open", then reads nothing
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from iop_fast.wire import transport
from iop_fast.wire.transport import EdgeStream, TransportName


async def echo(stream: EdgeStream, peer: str) -> None:
    while (message := await stream.read()) is not None:
        await stream.write(message)


async def serve(address: str, by: TransportName) -> int:
    try:
        server = await transport.serve(address, echo, transport=by)
    except OSError as error:
        print(f"error {error}", flush=True)
        return 1
    print(f"port {server.port}", flush=True)
    await asyncio.Event().wait()
    return 0


async def dial(address: str, by: TransportName) -> int:
    stream = await transport.dial(address, transport=by)
    await stream.write(b"hello")
    print("open", flush=True)
    await asyncio.Event().wait()
    return 0


if __name__ == "__main__":
    what, address, by = sys.argv[1:]
    sys.exit(uvloop.run({"serve": serve, "dial": dial}[what](address, by)))  # type: ignore[arg-type]
