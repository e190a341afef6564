"""What is said to a service manager: its order, its form, and that it never holds the program up."""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from iop_fast.notify import STATUS_CHARS_MAX, UNSENT_MAX, ServiceManager
from tests.fakes.service_manager import FakeServiceManager


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test; what the loop could only report fails it."""
    failures: list[dict[str, Any]] = []

    async def watched() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: failures.append(context))
        await work()

    asyncio.run(watched())
    assert failures == []


def manager_of(environ: dict[str, str]) -> ServiceManager:
    return ServiceManager(environ, asyncio.get_running_loop())


@pytest.mark.parametrize("is_abstract", [False, True])
def test_the_life_of_a_service_is_told_in_order(tmp_path: Path, is_abstract: bool) -> None:
    async def work() -> None:
        address = f"@iop-test-{uuid4().hex}" if is_abstract else tmp_path / "notify"
        with FakeServiceManager(address) as heard:
            manager = manager_of(heard.environment)
            manager.ready(lambda: "2 of 2 nodes ready")
            before_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            manager.reloading()
            manager.reloaded()
            manager.stopping(50.0)
            manager.close()
            ready, reloading, reloaded, stopping = heard.read()
            assert ready == reloaded == {"READY": "1", "STATUS": "2 of 2 nodes ready"}
            assert reloading["RELOADING"] == "1"
            after_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
            assert before_us <= int(reloading["MONOTONIC_USEC"]) <= after_us
            assert stopping == {"STOPPING": "1", "EXTEND_TIMEOUT_USEC": "50000000", "STATUS": "2 of 2 nodes ready"}

    run(work)


def test_no_reload_is_spoken_of_after_the_stop_has_begun(tmp_path: Path) -> None:
    async def work() -> None:
        with FakeServiceManager(tmp_path / "notify") as heard:
            manager = manager_of(heard.environment)
            manager.ready(str)
            manager.reloading()
            manager.stopping(1.0)
            manager.reloaded()  # the stop ended what the signal had started
            manager.reloading()
            manager.close()
            assert [next(iter(each)) for each in heard.read()] == ["READY", "RELOADING", "STOPPING"]

    run(work)


def test_without_a_manager_nothing_is_said_and_nothing_is_scheduled() -> None:
    async def work() -> None:
        manager = manager_of({"WATCHDOG_USEC": "1000"})
        manager.ready(lambda: pytest.fail("nobody asks for a status"))
        manager.reloading()
        manager.reloaded()
        manager.stopping(1.0)
        manager.close()

    run(work)


def test_the_variables_are_taken_out_of_the_environment(tmp_path: Path) -> None:
    async def work() -> None:
        with FakeServiceManager(tmp_path / "notify") as heard:
            environ = {**heard.environment, "WATCHDOG_USEC": "1", "WATCHDOG_PID": str(os.getpid()), "HOME": "/"}
            manager_of(environ).close()
            assert environ == {"HOME": "/"}

    run(work)


def test_a_sign_of_life_is_given_twice_within_the_limit_by_the_loop(tmp_path: Path) -> None:
    async def work() -> None:
        with FakeServiceManager(tmp_path / "notify") as heard:
            environ = {**heard.environment, "WATCHDOG_USEC": "200000", "WATCHDOG_PID": str(os.getpid())}
            manager = manager_of(environ)
            loop = asyncio.get_running_loop()
            manager.ready(str)
            await heard.said("WATCHDOG", 2)
            deadline = loop.time() + 0.5
            while loop.time() < deadline:  # a loop that hangs for two limits and a half
                assert sum("WATCHDOG" in each for each in heard.read()) == 2
            await heard.said("WATCHDOG", 3)
            manager.close()

    run(work)


@pytest.mark.parametrize("environ", [{"WATCHDOG_PID": "1"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_USEC": "0"}])
def test_a_watchdog_meant_for_another_process_or_none_is_not_fed(tmp_path: Path, environ: dict[str, str]) -> None:
    async def work() -> None:
        with FakeServiceManager(tmp_path / "notify") as heard:
            manager = manager_of({"WATCHDOG_USEC": "1000", **heard.environment, **environ})
            manager.ready(str)
            manager.close()
            assert heard.read() == [{"READY": "1", "STATUS": ""}]

    run(work)


def test_the_status_is_sent_as_it_changes_and_is_one_line(tmp_path: Path) -> None:
    async def work() -> None:
        with FakeServiceManager(tmp_path / "notify") as heard:
            manager = manager_of({**heard.environment, "WATCHDOG_USEC": "20000"})
            status = "first"
            manager.ready(lambda: status)
            await heard.said("WATCHDOG", 3)
            assert [each["STATUS"] for each in heard.read() if "STATUS" in each] == ["first"]
            status = "second\nSTOPPING=1 " + "x" * 5000
            await heard.said("STATUS", 2)
            said = heard.read()
            assert not any("STOPPING" in each for each in said)
            assert [each["STATUS"] for each in said if "STATUS" in each][1].startswith("second STOPPING=1 x")
            assert len([each["STATUS"] for each in said if "STATUS" in each][1]) == STATUS_CHARS_MAX
            manager.close()

    run(work)


def test_a_manager_that_reads_nothing_holds_nobody_up_and_hears_the_rest_in_order(tmp_path: Path) -> None:
    async def work() -> None:
        with FakeServiceManager(tmp_path / "notify") as heard:
            manager = manager_of({**heard.environment, "WATCHDOG_USEC": "2000"})
            manager.ready(str)
            sent = 0
            while not manager._unsent:
                manager.reloading()
                sent += 1
                assert sent < 100_000, "the socket has no end"
            for _ in range(2 * UNSENT_MAX):
                manager.reloading()
            manager.stopping(1.0)
            assert len(manager._unsent) == UNSENT_MAX
            await heard.said("STOPPING")
            kinds = [next(iter(each)) for each in heard.read() if "WATCHDOG" not in each]
            assert kinds[0] == "READY"
            assert kinds[-1] == "STOPPING"
            assert kinds.count("RELOADING") == sent + UNSENT_MAX - 2
            manager.close()

    run(work)


@pytest.mark.parametrize("address", ["vsock:2:1234", "relative", "/no/such/socket", "@iop-nobody", "/a\0b", "/" * 300])
def test_a_manager_that_cannot_be_reached_is_logged_once(address: str, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        manager = manager_of({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "2000"})
        manager.ready(str)
        manager.reloading()
        manager.stopping(1.0)
        manager.close()

    with caplog.at_level(logging.WARNING):
        run(work)
    assert [record.message for record in caplog.records] == ["service_manager_unreachable"]


def test_a_manager_that_comes_back_is_spoken_to_again(tmp_path: Path) -> None:
    async def work() -> None:
        with FakeServiceManager(tmp_path / "notify") as first:
            manager = manager_of(first.environment)
            manager.ready(str)
            assert len(first.read()) == 1
        (tmp_path / "notify").unlink()
        manager.reloading()
        with FakeServiceManager(tmp_path / "notify") as second:
            manager.reloaded()
            assert second.read() == [{"READY": "1", "STATUS": ""}]
        manager.close()

    run(work)
