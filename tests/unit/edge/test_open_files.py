"""The end of the file descriptors is said once, again while it lasts, and when it is over."""

from __future__ import annotations

import errno
import os

import pytest

from iop_fast.edge.open_files import NS_PER_MS, REPEAT_NS, OpenFiles, probe

START_NS = 5_000 * NS_PER_MS


class Descriptors:
    """A process that has descriptors, or fails to open a file for a reason."""

    def __init__(self) -> None:
        self.failure = 0

    def __call__(self) -> None:
        if self.failure:
            raise OSError(self.failure, os.strerror(self.failure))


def events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


@pytest.mark.parametrize("failure", [errno.EMFILE, errno.ENFILE])
def test_it_is_said_once_and_when_it_is_over(failure: int, caplog: pytest.LogCaptureFixture) -> None:
    descriptors = Descriptors()
    watch = OpenFiles(descriptors)
    watch.look(START_NS)
    assert events(caplog) == []
    descriptors.failure = failure
    for tick in range(1, 20):
        watch.look(START_NS + tick * 250 * NS_PER_MS)
    assert events(caplog) == ["open_files_exhausted"]
    descriptors.failure = 0
    watch.look(START_NS + 5_000 * NS_PER_MS)
    watch.look(START_NS + 5_250 * NS_PER_MS)
    assert events(caplog) == ["open_files_exhausted", "open_files_again"]
    descriptors.failure = failure
    watch.look(START_NS + 5_500 * NS_PER_MS)
    assert watch.exhaustions == 2


def test_it_is_said_again_while_it_lasts(caplog: pytest.LogCaptureFixture) -> None:
    descriptors = Descriptors()
    descriptors.failure = errno.EMFILE
    watch = OpenFiles(descriptors)
    for tick in range(4):
        watch.look(START_NS + tick * REPEAT_NS // 2)
    assert events(caplog) == ["open_files_exhausted"] * 2
    assert watch.exhaustions == 1


def test_another_failure_to_open_is_not_this_one(caplog: pytest.LogCaptureFixture) -> None:
    descriptors = Descriptors()
    descriptors.failure = errno.EACCES
    OpenFiles(descriptors).look(START_NS)
    assert events(caplog) == []


def test_the_probe_leaves_nothing_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(10):
        probe()
    assert len(os.listdir("/proc/self/fd")) == before
