"""A fleet of real processes for clients that block: it runs on a loop of its own thread."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

from tests.fakes.all_apis import AllApis
from tests.fakes.openai_backend import FakeBackend
from tests.integration.edge_harness import provider, run, until
from tests.integration.fleet import Fleet, fleet


class Served:
    """A fleet on a loop of its own thread, so that the synchronous client can block this one."""

    def __init__(self, folder: Path, **sections: Any) -> None:
        self.backend: FakeBackend
        self.fleet: Fleet
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(folder, sections))

    def _run(self, folder: Path, sections: dict[str, Any]) -> None:
        async def serve() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            pool = {"max_queue": 1, "queue_timeout_ms": 2000}
            nodes = {"n1": [provider("p1", 1)]}
            async with FakeBackend(AllApis()) as self.backend:
                nodes["n1"][0]["endpoint"] = self.backend.url
                models = [
                    {"id": "m", "providers": {"p1": "served"}},
                    {"id": "team/m:8b", "providers": {"p1": "served"}},
                ]
                async with fleet(folder, nodes, ["n1"], models=models, provider_pool=pool, **sections) as self.fleet:
                    self._up.set()
                    await self._stop.wait()
                    await self.fleet.idle()

        try:
            run(serve())
        except BaseException as failure:  # noqa: BLE001 - raised again in the test's thread
            self._failure = failure
            self._up.set()

    def __enter__(self) -> Served:
        self._thread.start()
        self._up.wait()
        if self._failure is not None:
            raise self._failure
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        if self._failure is not None:
            raise self._failure

    def status(self) -> dict[str, Any]:
        """The operator's snapshot."""
        return asyncio.run_coroutine_threadsafe(self.fleet.status(), self._loop).result()

    def wait(self, condition: Any, what: str) -> None:
        """Wait on the fleet's loop."""
        asyncio.run_coroutine_threadsafe(until(condition, what), self._loop).result()
