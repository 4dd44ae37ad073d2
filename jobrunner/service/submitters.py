"""Which process is sending a job: a lock per submit that the kernel takes back when that process dies."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from jobrunner.service.locks import FileLock


class Submitter:
    """Marks this process as the one that sends its jobs, for as long as it lives."""

    def __init__(self, home: Path) -> None:
        self._token = f"{os.getpid()}-{os.urandom(6).hex()}"
        path = _path(home, self._token)
        self._lock = FileLock(path)
        try:
            self._lock.acquire()
        except OSError as error:
            from jobrunner.ledger.guard import translate

            raise translate(path, "writing", error) from error

    def as_json(self) -> dict[str, Any]:
        """What the ledger keeps beside a staged job."""
        return {"host": socket.gethostname(), "pid": os.getpid(), "token": self._token}

    def close(self) -> None:
        """The submit is over, well or not."""
        self._lock.release()


def is_alive(home: Path, submitter: dict[str, Any]) -> bool:
    """True if the process that was sending a job still runs. One on another machine (a shared home) counts as alive."""
    if submitter.get("host") not in (None, socket.gethostname()):
        return True
    token = str(submitter.get("token", ""))
    if not token or "/" in token or os.sep in token or not _path(home, token).exists():
        return False
    lock = FileLock(_path(home, token))
    if lock.acquire():
        lock.release()
        return False
    return True


def _path(home: Path, token: str) -> Path:
    return home / "submits" / f"{token}.lock"
