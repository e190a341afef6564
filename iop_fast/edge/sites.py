"""Bind the aiohttp listeners: on an address nobody else has, or on a unix socket that only its owner may open."""

from __future__ import annotations

import errno
import os
import socket
import stat
from pathlib import Path

from aiohttp import web

from iop_fast.config.schema.fields import parse_address

# What open connections get to finish when a listener is taken down: its answers are small and immediate.
SHUTDOWN_S = 1.0

UNIX = "unix:"


class Site:
    """One running listener of an aiohttp application."""

    def __init__(self, app: web.Application) -> None:
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_S)

    @property
    def port(self) -> int:
        """The TCP port, 0 for a unix socket."""
        address = self._runner.addresses[0]
        return int(address[1]) if isinstance(address, tuple) else 0

    @property
    def paths(self) -> set[tuple[str, str]]:
        """Method and path of everything that it serves."""
        return {
            (route.method, str(route.resource.canonical))
            for route in self._runner.app.router.routes()
            if route.resource
        }

    async def start(self, listen: str) -> None:
        """Listen on "host:port" or "unix:/path"; raise OSError that names the address."""
        await self._runner.setup()
        try:
            if listen.startswith(UNIX):
                await self._start_unix(listen.removeprefix(UNIX))
            else:
                host, port = parse_address(listen)
                await web.TCPSite(self._runner, host, port, reuse_port=False).start()
        except OSError as error:
            await self._runner.cleanup()
            number = error.errno or errno.EINVAL
            raise OSError(number, f"cannot listen on {listen}: {os.strerror(number).lower()}") from None

    async def _start_unix(self, path: str) -> None:
        remove_stale_socket(path)
        # The socket is born with its mode. Nothing else makes files while the Edge starts.
        before = os.umask(0o177)
        try:
            await web.UnixSite(self._runner, path).start()
        finally:
            os.umask(before)

    async def stop(self) -> None:
        """Stop listening and end what is open."""
        await self._runner.cleanup()


def remove_stale_socket(path: str) -> None:
    """Remove a socket that nobody listens on; raise OSError where somebody does, or where something else stands.

    The event loop would remove any socket in its way, that of a running Edge too.
    """
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise OSError(errno.EEXIST, "something that is no socket stands there")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            Path(path).unlink(missing_ok=True)
            return
    raise OSError(errno.EADDRINUSE, "another process listens there")
