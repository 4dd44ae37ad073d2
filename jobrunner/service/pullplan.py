"""Where pulled files go: the host's list, checked name by name. Nothing is written here."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jobrunner.core.values import dataclass
from jobrunner.service.names import name_fault, shown

LOCK_NAME = ".jobrunner-pull.lock"
_MOST_LISTED = 20_000
GOOD_S = 0.5
"""For so long what was seen of a folder counts: many small files arrive in one."""


@dataclass(frozen=True)
class Refused:
    """A file that was not taken, and why."""

    path: str
    why: str


@dataclass(frozen=True)
class Item:
    """One file of the plan: its place in the host's list, where it goes, and the part that it arrives in."""

    index: int
    path: str
    local: Path
    part: Path
    size: int
    mtime: str | None
    executable: bool
    sha256: str | None


@dataclass(frozen=True)
class DownloadPlan:
    """What is to be fetched into `to`, and what of the list is refused. Made by `plan`; nothing is written by it."""

    to: Path
    items: list[Item]
    refused: list[Refused]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(item.size for item in self.items)


def have(to: Path) -> list[dict[str, Any]]:
    """The files in a folder, for `collect`'s `have`: the host then tells the hash of those of the same size."""
    found: list[dict[str, Any]] = []
    for folder, _, names in os.walk(to):
        for name in names:
            full = os.path.join(folder, name)
            with suppress(OSError):
                seen = os.lstat(full)
                if stat.S_ISREG(seen.st_mode) and not name.endswith((".part", ".lock")):
                    inner = os.path.relpath(full, to).replace(os.sep, "/")
                    found.append({"path": os.fsencode(inner).decode("utf-8", "surrogateescape"), "size": seen.st_size})
            if len(found) >= _MOST_LISTED:
                return found
    return found


def is_empty(to: Path) -> bool:
    """True if nothing lies in a folder (or there is none), so that all of the host's list will be wanted."""
    try:
        with os.scandir(to) as entries:
            return all(entry.name == LOCK_NAME for entry in entries)
    except OSError:
        return True


def plan(files: Sequence[Mapping[str, Any]], to: Path) -> DownloadPlan:
    """Where each file of the host's list goes. Names that climb out, cannot be here, or meet a link are refused."""
    items: list[Item] = []
    refused: list[Refused] = []
    taken: dict[str, str] = {}
    empty = is_empty(to)
    for index, entry in enumerate(files):
        path = entry.get("path")
        text = path if isinstance(path, str) else repr(path)
        why = _fault(entry, taken) or ("" if empty else in_the_way(to, text))
        if why:
            refused.append(Refused(text, why))
            continue
        taken[text] = "f"
        for above in _parents(text):
            taken[above] = "d"
        items.append(_item(index, entry, to))
    return DownloadPlan(to, items, refused)


def _fault(entry: Mapping[str, Any], taken: Mapping[str, str]) -> str:
    """Why an entry of the host's list cannot be taken as it is written; empty if it can."""
    path, size = entry.get("path"), entry.get("size")
    why = name_fault(path)
    if why or not isinstance(path, str):
        return why
    if entry.get("type", "f") != "f":
        return "it is no regular file"
    if isinstance(size, bool) or not isinstance(size, int) or not 0 <= size < 1 << 60:
        return "the host gives it an impossible size"
    if path.lower() == LOCK_NAME:
        return "its name is that of the lock of the folder that it is pulled into"
    if path in taken or any(taken.get(above) == "f" for above in _parents(path)):
        return "the host's list has another file in its place"
    return ""


def in_the_way(to: Path, path: str, *, only_last: bool = False) -> str:
    """Why a file cannot be put there: a link on the way (unless `only_last`) or in its place, a folder in its place."""
    here = str(to)
    parts = path.split("/")
    for number, part in enumerate(parts, 1):
        here = os.path.join(here, local_name(part))
        if only_last and number < len(parts):
            continue
        try:
            mode = os.lstat(here).st_mode
        except (FileNotFoundError, NotADirectoryError):
            return ""
        except (OSError, ValueError) as error:
            return str(error)
        last = number == len(parts)
        if stat.S_ISLNK(mode) or getattr(os.path, "isjunction", lambda _: False)(here):
            return f"{shown(here)} is a link: remove it, or pull into another folder"
        if not last and not stat.S_ISDIR(mode):
            return f"{shown(here)} is no folder"
        if last and not stat.S_ISREG(mode):
            return f"{shown(here)} is in its place and no file"
    return ""


class Folders:
    """The folders of a pull, made where they are missing. One that was in order a moment ago is not looked at again."""

    def __init__(self, to: Path) -> None:
        self._to = to
        self._good: dict[str, float] = {}

    def make(self, path: str) -> None:
        """The folders of a file. Raises OSError."""
        if self._is_good(path):
            return
        here = self._to
        for part in path.split("/")[:-1]:
            here = here / local_name(part)
            with suppress(FileExistsError):
                here.mkdir()

    def in_the_way(self, path: str) -> str:
        """As `in_the_way`."""
        why = in_the_way(self._to, path, only_last=self._is_good(path))
        if not why:
            self._good.setdefault(path.rpartition("/")[0], time.monotonic())
        return why

    def _is_good(self, path: str) -> bool:
        folder = path.rpartition("/")[0]
        if time.monotonic() - self._good.get(folder, -GOOD_S) < GOOD_S:
            return True
        self._good.pop(folder, None)
        return False


def _item(index: int, entry: Mapping[str, Any], to: Path) -> Item:
    path, size, mtime, digest, mode = (entry.get(key) for key in ("path", "size", "mtime", "sha256", "mode"))
    assert isinstance(path, str) and isinstance(size, int)
    folder, _, name = path.rpartition("/")
    above = os.path.join(to, *(local_name(part) for part in folder.split("/")))
    raw = path.encode("utf-8", "surrogateescape")
    which = hashlib.sha256(raw).hexdigest()[:16]
    version = hashlib.sha256(f"{size} {mtime} {digest}".encode("ascii", "backslashreplace")).hexdigest()[:8]
    return Item(
        index=index,
        path=path,
        local=Path(above, local_name(name)),
        part=Path(above, f".{which}-{version}.part"),
        size=size,
        mtime=mtime if isinstance(mtime, str) else None,
        executable=isinstance(mode, int) and bool(mode & 0o100),
        sha256=digest if isinstance(digest, str) else None,
    )


def _parents(path: str) -> Iterator[str]:
    while path := path.rpartition("/")[0]:
        yield path


def local_name(part: str) -> str:
    """A name as this machine writes it: its own bytes where names are bytes."""
    return os.fsdecode(part.encode("utf-8", "surrogateescape")) if os.name == "posix" else part
