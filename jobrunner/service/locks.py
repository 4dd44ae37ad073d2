"""A lock on a file that the kernel takes back when its holder dies; Linux, macOS and Windows."""

from __future__ import annotations

import os
import sys
from pathlib import Path


class FileLock:
    """An exclusive advisory lock. It belongs to this process and ends with it, however it ends."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._handle: int | None = None

    def acquire(self) -> bool:
        """True if the lock is ours now; False if another process holds it."""
        self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            _lock(handle)
            ours, named = os.fstat(handle), os.stat(self.path)
        except OSError:
            os.close(handle)
            return False
        if (ours.st_dev, ours.st_ino) != (named.st_dev, named.st_ino):
            os.close(handle)  # its last holder removed this file while we opened it
            return self.acquire()
        self._handle = handle
        return True

    def release(self) -> None:
        """Give the lock back and remove its file."""
        if self._handle is None:
            return
        try:
            self.path.unlink(missing_ok=True)
        except OSError:
            pass  # Windows keeps an open file; the next acquire uses it again
        os.close(self._handle)
        self._handle = None


if sys.platform == "win32":
    import msvcrt

    def _lock(handle: int) -> None:
        msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)

else:
    import fcntl

    def _lock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
