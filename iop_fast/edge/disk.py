"""Whether the configuration file on disk is still the one that was read, asked often and answered cheaply."""

from __future__ import annotations

import hashlib
import os
import time

from iop_fast.config.loader import read_file
from iop_fast.errors import ConfigError

# A file changed within one tick of its file system's clock keeps its times: a hash taken sooner than this after the
# last change is not remembered.
YOUNG_NS = 2_000_000_000


class DiskFile:
    """One file. `look` reads only when its stat has changed; it blocks, so the loop calls it in a thread."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._stat: tuple[int, ...] | None = None
        self._sha256 = ""

    def look(self) -> tuple[str, str]:
        """Return the sha256 of the file and "", or "" and why it cannot be read."""
        try:
            found = os.stat(self.path)
        except (OSError, ValueError) as error:
            return "", f"cannot be read: {error}"
        key = (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)
        if key == self._stat:
            return self._sha256, ""
        try:
            sha256 = hashlib.sha256(read_file(self.path)).hexdigest()
        except ConfigError as error:
            return "", error.findings[0].message
        is_young = time.time_ns() - max(found.st_mtime_ns, found.st_ctime_ns) < YOUNG_NS
        self._stat, self._sha256 = None if is_young else key, sha256
        return sha256, ""
