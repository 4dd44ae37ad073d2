"""This machine's own disk: its troubles as errors that a person can act on."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

from jobrunner.core.errors import UsageError
from jobrunner.service.names import shown


def check_space(folder: Path, needed: int) -> None:
    """UsageError `disk_full` if `needed` bytes cannot fit where the folder lies."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        raise _disk_full(folder, f"{needed:,} bytes are needed, {free:,} are free")


class local_troubles:
    """Errors of this machine's file system leave the block as UsageError about `path`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, OSError):
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise _disk_full(self._path, error.strerror or str(error)) from error
        raise UsageError(
            f"writing {shown(str(self._path))}: {error.strerror or error}",
            code="not_writable",
            remedy="Pull into another folder with --to, or make this one writable.",
        ) from error


def _disk_full(path: Path, why: str) -> UsageError:
    return UsageError(
        f"writing {shown(str(path))}: no space on this machine ({why})",
        code="disk_full",
        remedy="Free space or name another folder with --to; the next pull goes on from what has arrived.",
    )
