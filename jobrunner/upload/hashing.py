"""SHA-256 of many files: in threads, and not again for files that did not change.

A remembered hash counts only while size, times, inode and device are the same, and is remembered only if the file
had rested before it was read: one that is changed twice within the clock's grain would look unchanged. Where a system
has no time of the last change of anything (POSIX's ctime), only big files are remembered.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from jobrunner.core.errors import UsageError
from jobrunner.upload.names import shown, to_bytes

if TYPE_CHECKING:
    from jobrunner.upload.tree import Entry

PIECE = 1024 * 1024
WORTH_REMEMBERING = 1 if os.name == "posix" else 1024 * 1024
RESTED_NS = 2_000_000_000
_MOST_REMEMBERED = 50_000
_MOST_FOLDERS = 20
_BATCH_FILES = 64
_BATCH_BYTES = 8 * 1024 * 1024


class HashCache:
    """Hashes of the files of a folder, kept in one file. Losing it costs time, never correctness."""

    @classmethod
    def of(cls, folder: Path, code_dir: Path) -> HashCache:
        """The cache for a code folder, among others in `folder`; those of folders not used lately are removed."""
        name = hashlib.sha256(os.fsencode(os.path.abspath(code_dir))).hexdigest()[:16]
        return cls(folder / f"hashes-{name}.json")

    def __init__(self, path: Path) -> None:
        """`path` need not exist; a file that cannot be read counts as empty."""
        self._path = path
        self._lock = threading.Lock()
        self._changed = False
        self._known: dict[str, list[int | str]] = self._load()

    def find(self, path: bytes, size: int, stamp: tuple[int, int, int, int]) -> str | None:
        """The hash of an absolute path whose file is as it was when it was hashed."""
        found = self._known.get(os.fsdecode(path))
        return str(found[5]) if found is not None and found[:5] == [size, *stamp] else None

    def keep(self, path: bytes, size: int, stamp: tuple[int, int, int, int], digest: str, read_at_ns: int) -> None:
        """Remember a hash, unless the file was still warm at `read_at_ns` (when reading began)."""
        if size >= WORTH_REMEMBERING and max(stamp[0], stamp[1]) < read_at_ns - RESTED_NS:
            with self._lock:
                name = os.fsdecode(path)
                self._known.pop(name, None)  # the newest last
                self._known[name] = [size, *stamp, digest]
                self._changed = True

    def save(self) -> None:
        """Write what is new; quietly nothing if that cannot be done."""
        with self._lock:
            if not self._changed:
                return
            newest = dict(list(self._known.items())[-_MOST_REMEMBERED:])
            aside = self._path.with_name(f"{self._path.name}.{os.getpid()}.{threading.get_ident()}.tmp")
            try:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
                with open(handle, "w", encoding="ascii") as file:
                    json.dump({"v": 1, "files": newest}, file, separators=(",", ":"))
                os.replace(aside, self._path)
                self._changed = False
                self._tidy()
            except OSError:
                with suppress(OSError):
                    aside.unlink()

    def _tidy(self) -> None:
        """Keep the caches of the folders that were sent last."""
        found = [(file.stat().st_mtime, file) for file in self._path.parent.glob("hashes-*.json")]
        for _, file in sorted(found, reverse=True)[_MOST_FOLDERS:]:
            file.unlink()

    def _load(self) -> dict[str, list[int | str]]:
        try:
            value = json.loads(self._path.read_bytes())
            files = value["files"] if value["v"] == 1 else {}
            return {path: row for path, row in files.items() if isinstance(row, list) and len(row) == 6}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def hash_files(root: bytes, files: Sequence[Entry], cache: HashCache | None) -> dict[str, tuple[int, str]]:
    """Size and SHA-256 of each file as it is read now, by path. UsageError `unreadable` names those that cannot be."""
    problems: list[str] = []
    hashed = _remembered(root, files, cache)
    batches = _batches([entry for entry in files if entry.path not in hashed])

    def batch(entries: Sequence[Entry]) -> list[tuple[str, int, str]]:
        done = []
        for entry in entries:
            try:
                done.append((entry.path, *_hash(root, entry, cache)))
            except OSError as error:
                problems.append(f"{shown(entry.path)} ({error.strerror or error})")
        return done

    if len(batches) < 2:
        results = [batch(entries) for entries in batches]
    else:
        with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
            results = list(pool.map(batch, batches))
    if problems:
        raise unreadable(problems)
    for done in results:
        hashed.update((path, (size, digest)) for path, size, digest in done)
    if cache is not None:
        cache.save()
    return hashed


def _remembered(root: bytes, files: Sequence[Entry], cache: HashCache | None) -> dict[str, tuple[int, str]]:
    """Those of the files that are as they were when they were hashed."""
    if cache is None:
        return {}
    found = ((entry, cache.find(os.path.join(root, to_bytes(entry.path)), entry.size, entry.stamp)) for entry in files)
    return {entry.path: (entry.size, digest) for entry, digest in found if digest is not None}


def unreadable(problems: Sequence[str]) -> UsageError:
    """The error for things in the code folder that cannot be read; each problem is a path with its reason."""
    more = f" and {len(problems) - 5} more" if len(problems) > 5 else ""
    return UsageError(
        f"reading the code folder: {', '.join(sorted(problems)[:5])}{more}",
        code="unreadable",
        remedy="Make them readable, or name them in `.jobrunnerignore` or `code.exclude`.",
    )


def open_file(root: bytes, path: str) -> int:
    """A handle on a regular file of the tree, never through a link in its last place. OSError if it is none."""
    flags = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(os.path.join(root, to_bytes(path)), flags)
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError("it is no regular file any more")
    return handle


def _batches(files: Sequence[Entry]) -> list[list[Entry]]:
    """Files in groups that are worth a turn in a thread."""
    groups: list[list[Entry]] = []
    room = 0
    for entry in files:
        if not groups or room <= 0 or len(groups[-1]) >= _BATCH_FILES:
            groups.append([])
            room = _BATCH_BYTES
        groups[-1].append(entry)
        room -= entry.size
    return groups


def _hash(root: bytes, entry: Entry, cache: HashCache | None) -> tuple[int, str]:
    began = time.time_ns()
    digest, size = hashlib.sha256(), 0
    handle = open_file(root, entry.path)
    try:
        while piece := os.read(handle, PIECE):
            digest.update(piece)
            size += len(piece)
        after = stamp_of(os.fstat(handle))
    finally:
        os.close(handle)
    if cache is not None and after == entry.stamp and size == entry.size:
        cache.keep(os.path.join(root, to_bytes(entry.path)), size, after, digest.hexdigest(), began)
    return size, digest.hexdigest()


def stamp_of(seen: os.stat_result) -> tuple[int, int, int, int]:
    """What changes when a file does: (mtime ns, ctime ns, inode, device)."""
    return seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_dev
