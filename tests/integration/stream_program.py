"""A process with one end of a session, for tests that need a peer they can kill, freeze or start twice.

python -m tests.integration.stream_program serve ADDRESS    prints "port N" or "error TEXT", then echoes
python -m tests.integration.stream_program dial ADDRESS     prints "open", then reads nothing
"""

from __future__ import annotations

import asyncio
import sys

import uvloop

from iop_fast.wire import streams


async def echo(stream: streams.EdgeStream, peer: str) -> None:
    while (message := await stream.read()) is not None:
        await stream.write(message)


async def serve(address: str) -> int:
    try:
        server = await streams.serve(address, echo)
    except OSError as error:
        print(f"error {error}", flush=True)
        return 1
    print(f"port {server.port}", flush=True)
    await asyncio.Event().wait()
    return 0


async def dial(address: str) -> int:
    stream = await streams.dial(address)
    await stream.write(b"hello")
    print("open", flush=True)
    await asyncio.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(uvloop.run({"serve": serve, "dial": dial}[sys.argv[1]](sys.argv[2])))
