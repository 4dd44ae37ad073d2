"""SQLite's errors as LedgerError: what was being done, what came back, what to do now."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from jobrunner.core.errors import LedgerError

BUSY_SECONDS = 30


@contextmanager
def guard(path: Path, doing: str) -> Iterator[None]:
    """Run a block; any error of SQLite or of the file system leaves it as a LedgerError about `path`."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning, OSError) as error:
        raise translate(path, doing, error) from error


def is_busy(error: BaseException) -> bool:
    """True if somebody else held the ledger for longer than SQLite was told to wait."""
    return isinstance(error, sqlite3.OperationalError) and ("locked" in str(error) or "busy" in str(error))


def corrupt(path: Path, doing: str, found: str) -> LedgerError:
    """The error for a file that is damaged or no ledger at all."""
    return LedgerError(
        f"{doing} {path}: {found}",
        code="ledger_corrupt",
        remedy=f"Move it aside (rename {path.name} to {path.name}.broken, with {path.name}-wal and {path.name}-shm), "
        "then run `jobrunner adopt` to rebuild it from the hosts.",
    )


def translate(path: Path, doing: str, error: BaseException) -> LedgerError:
    """The LedgerError that says what a foreign error means for the ledger at `path`."""
    text = str(error)
    if "not a database" in text or "malformed" in text or "file is encrypted" in text:
        return corrupt(path, doing, f"this is no usable ledger ({text})")
    if is_busy(error):
        return LedgerError(
            f"{doing} {path}: another process has held it for over {BUSY_SECONDS} s ({text})",
            code="ledger_locked",
            remedy="Wait for the other jobrunner command, or end it, and try again.",
        )
    if "readonly" in text or "read-only" in text.lower() or isinstance(error, PermissionError):
        return LedgerError(
            f"{doing} {path}: it may not be written ({text})",
            code="ledger_readonly",
            remedy="Make the file and its folder writable for you, or set JOBRUNNER_HOME to a folder of yours.",
        )
    if "disk is full" in text or "disk I/O" in text or "No space left" in text or "quota" in text:
        return LedgerError(
            f"{doing} {path}: the disk did not take or give the data ({text})",
            code="ledger_disk",
            remedy="Free space on that disk, or set JOBRUNNER_HOME to another one.",
        )
    return LedgerError(
        f"{doing} {path}: {text}",
        code="ledger",
        remedy=f"Look at the file and its folder; if it is past repair, rename {path.name} and run `jobrunner adopt`.",
    )
