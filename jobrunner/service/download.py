"""Pulled files: where they go, resumed, verified, and never outside of the folder that was named.

Names come from the host and are not believed. A file arrives in a hidden `.….part` beside its place and takes its name
only when its hash is right, so a file under its own name is always whole. A transfer that is cut leaves the part; the
next pull goes on from its last byte. Nothing else is left in the folder, and what lies there otherwise is not touched:
only a file of the same name gives way, once its successor is complete.
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jobrunner.core.errors import HostError, UsageError
from jobrunner.core.values import dataclass
from jobrunner.service.lanes import NoLanes
from jobrunner.service.localdisk import check_space, local_troubles
from jobrunner.service.locks import FileLock
from jobrunner.service.names import shown
from jobrunner.service.progress import NoProgress, Progress
from jobrunner.service.pullplan import LOCK_NAME, DownloadPlan, Folders, Item, Refused, have, is_empty, plan

if TYPE_CHECKING:
    from jobrunner.service.lanes import Lanes

__all__ = ["DownloadPlan", "Fetch", "Pulled", "Refused", "Saved", "Transfer", "have", "is_empty", "plan", "save"]

PIECE = 1024 * 1024
SYNC_FROM = 1024 * 1024
AHEAD_FILES, AHEAD_BYTES = 1024, 16 * 1024 * 1024
"""So much is asked for at once, before it is wanted: small files do not cost a round trip each."""
Parts = dict[Path, set[str]]
"""By folder: the names of what is left there of earlier pulls."""


class Transfer(Protocol):
    """The bytes of one file from an offset on. Once they have ended, `sha256` is the hash of the whole file, or None
    if it changed on the host meanwhile."""

    def __iter__(self) -> Iterator[bytes | memoryview]: ...

    @property
    def sha256(self) -> str | None: ...


class Fetch(Protocol):
    """Asks the host for the file at `index` of its list, from byte `offset` on."""

    def __call__(self, index: int, offset: int) -> Transfer: ...


@dataclass(frozen=True)
class Saved:
    """A file that is now whole at `local`; `fetched` bytes came from the host now (0: it was there)."""

    path: str
    local: Path
    size: int
    sha256: str
    fetched: int


@dataclass(frozen=True)
class Pulled:
    """What became of a list of files."""

    saved: list[Saved] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)


def save(
    files: Sequence[Mapping[str, Any]],
    fetch: Fetch,
    to: Path,
    progress: Progress | None = None,
    ahead: Callable[[list[int]], None] | None = None,
    lanes: Lanes | None = None,
    coming: int = 0,
) -> Pulled:
    """Fetch the files of the host's list (`path`, `size`, `sha256` or None, `mtime`, `mode`) into the folder `to`.

    `ahead` is told the indexes that `fetch` will be called for next, in order and from the first byte on; the first
    `coming` files of the list are on their way already; big files come over `lanes` instead. Files that are refused, or
    change on the host while they are read, are reported and the others taken. Raises UsageError `disk_full`,
    `not_writable` or `busy` for this machine's own troubles, HostError `hash_mismatch` if what arrives is twice not
    what the host says; errors of `fetch` pass through. What arrived stays for next time.
    """
    with local_troubles(to):
        to.mkdir(parents=True, exist_ok=True)
        lock = FileLock(to / LOCK_NAME)
        if not lock.acquire():
            raise UsageError(
                f"pulling into {to}: another pull into it is under way",
                code="busy",
                remedy="Wait for it, or name another folder with --to.",
            )
    chosen = plan(files, to)
    shows = progress if progress is not None and chosen.items else NoProgress()
    number = shows.start(f"pulling {len(chosen.items)} file{'' if len(chosen.items) == 1 else 's'}", chosen.size)
    try:
        return _save(chosen, _Way(files, fetch, lanes), shows, number, ahead, coming)
    finally:
        shows.finish(number)
        lock.release()


def _save(
    chosen: DownloadPlan,
    way: _Way,
    progress: Progress,
    number: int,
    ahead: Callable[[list[int]], None] | None,
    coming: int,
) -> Pulled:
    saved: list[Saved] = []
    refused = list(chosen.refused)
    with local_troubles(chosen.to):
        wanted = [(item, _already_here(item)) for item in chosen.items]
        parts = _parts_in(chosen)
        check_space(chosen.to, sum(_missing(item, parts) for item, digest in wanted if digest is None))
    ours: set[tuple[int, int]] = set()
    folders = Folders(chosen.to)
    small = [item for item, digest in wanted if digest is None and not way.is_wide(item)]
    foretold = _Foretold(small, ahead, parts, coming)
    for item, digest in wanted:
        if digest is not None:
            with local_troubles(item.local):
                _drop_parts(item, parts, but=None)
            progress.advance(number, item.size)
            saved.append(Saved(item.path, item.local, item.size, digest, fetched=0))
            continue
        if not way.is_wide(item):
            foretold.go_on()
        outcome = _Arrival(item, way, folders, progress, number, ours, parts).run()
        if isinstance(outcome, Saved):
            saved.append(outcome)
        else:
            refused.append(outcome)
    return Pulled(saved, refused)


@dataclass(frozen=True)
class _Way:
    """How files come: the host's list, one file after the other, and the big ones over several channels."""

    files: Sequence[Mapping[str, Any]]
    fetch: Fetch
    lanes: Lanes | None

    def is_wide(self, item: Item) -> bool:
        """True for a file that comes over several channels."""
        entry = self.files[item.index]
        return self.lanes is not None and item.size >= self.lanes.least and "inner" in entry and "mark" in entry


class _Foretold:
    """Tells in batches what will be fetched: as far as nothing of it is here yet, and not too much at once."""

    def __init__(self, items: list[Item], ahead: Callable[[list[int]], None] | None, parts: Parts, coming: int) -> None:
        self._items, self._ahead, self._parts = items, ahead, parts
        self._now = 0
        self._told = sum(item.index < coming for item in items)
        self._half = self._told // 2

    def go_on(self) -> None:
        """The next file is about to be fetched."""
        if self._ahead is not None and self._now >= self._half:
            self._tell(self._ahead)
        self._now += 1

    def _tell(self, ahead: Callable[[list[int]], None]) -> None:
        begin = end = max(self._told, self._now)
        room = AHEAD_BYTES
        for item in self._items[begin : begin + AHEAD_FILES]:
            room -= item.size
            if (room < 0 and end > begin) or _begun(item, self._parts):
                break
            end += 1
        if end > begin:
            ahead([item.index for item in self._items[begin:end]])
        self._told, self._half = end, (begin + end + 1) // 2


class _Arrival:
    """One file on its way."""

    def __init__(
        self,
        item: Item,
        way: _Way,
        folders: Folders,
        progress: Progress,
        number: int,
        ours: set[tuple[int, int]],
        parts: Parts,
    ) -> None:
        self._item, self._way, self._folders, self._parts = item, way, folders, parts
        self._progress, self._number, self._ours = progress, number, ours
        self._came = 0
        self._identity = (0, 0)

    def run(self) -> Saved | Refused:
        """Fetch, verify, name. A part from an earlier pull that proves wrong is fetched anew, once."""
        with local_troubles(self._item.local):
            return self._run()

    def _run(self) -> Saved | Refused:
        item = self._item
        self._folders.make(item.path)
        resumed = _drop_parts(item, self._parts, but=item.part)
        digest, said = self._receive()
        if said is None:
            item.part.unlink(missing_ok=True)
            return Refused(item.path, "it changed on the host while it was read; pull it again")
        if digest != said and resumed:
            item.part.unlink(missing_ok=True)
            digest, said = self._receive()
        if digest != said:
            item.part.unlink(missing_ok=True)
            raise HostError(
                f"pulling {shown(item.path)}: what arrived has the SHA-256 {digest}, the host says {said}",
                code="hash_mismatch",
                remedy="Pull again; if it happens again, look at the host's disk and at the way to it.",
            )
        return self._publish(digest)

    def _receive(self) -> tuple[str, str | None]:
        """Append what is missing to the part: the hash of what is there now, and what the host says it should be."""
        handle, fresh = self._open_part()
        try:
            if self._way.is_wide(self._item):
                try:
                    outcome = self._receive_wide(handle)
                except NoLanes:
                    _plain(handle, self._item)
                    outcome = self._receive_plain(handle, fresh=False)
            else:
                outcome = self._receive_plain(handle, fresh)
            _set_time(handle, self._item.mtime)
            seen = os.fstat(handle)
            self._identity = (seen.st_dev, seen.st_ino)
            return outcome
        finally:
            os.close(handle)

    def _open_part(self) -> tuple[int, bool]:
        """The part, opened, and True if it has just been made."""
        item = self._item
        flags, mode = os.O_RDWR | os.O_CREAT | _SAFE, 0o777 if item.executable else 0o666  # less the umask
        if not _begun(item, self._parts):
            with suppress(FileExistsError):
                return os.open(item.part, flags | os.O_EXCL, mode), True
        return os.open(item.part, flags, mode), False

    def _receive_plain(self, part: int, fresh: bool) -> tuple[str, str | None]:
        """The same over the one channel."""
        item, seen = self._item, hashlib.sha256()
        offset = 0 if fresh else _hash_from_start(part, seen, item.size)
        self._progress.advance(self._number, offset)
        transfer = self._way.fetch(item.index, offset)
        for piece in transfer:
            offset += len(piece)
            self._came += len(piece)
            if offset > item.size:
                continue  # longer than when it was listed; heard to its end, so that the next can be asked for
            seen.update(piece)
            _write_all(part, piece)
            self._progress.advance(self._number, len(piece))
        if item.size >= SYNC_FROM:
            os.fsync(part)
        return seen.hexdigest(), transfer.sha256 if offset == item.size else None

    def _receive_wide(self, part: int) -> tuple[str, str | None]:
        """The same, in ranges over several channels."""
        assert self._way.lanes is not None

        def advance(count: int) -> None:
            self._progress.advance(self._number, count)

        outcome = self._way.lanes.fetch(self._way.files[self._item.index], part, advance)
        os.fsync(part)
        self._came += outcome.fetched
        return outcome.digest, outcome.sha256

    def _publish(self, digest: str) -> Saved | Refused:
        item = self._item
        why = self._folders.in_the_way(item.path)  # looked at again: the transfer may have taken hours
        with suppress(FileNotFoundError):
            old = os.lstat(item.local)
            if (old.st_dev, old.st_ino) in self._ours:
                why = "this machine takes its name for that of another file of the list (upper and lower case)"
        if why:
            with suppress(OSError):
                item.part.unlink()
            return Refused(item.path, why)
        if os.utime not in os.supports_fd:
            _set_time(item.part, item.mtime)
        os.replace(item.part, item.local)
        self._ours.add(self._identity)
        return Saved(item.path, item.local, item.size, digest, fetched=self._came)


_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def _already_here(item: Item) -> str | None:
    """The hash of a file that is there already and the same; None if it is to be fetched."""
    if item.sha256 is None:
        return None
    try:
        seen = os.lstat(item.local)
        if not stat.S_ISREG(seen.st_mode) or seen.st_size != item.size:
            return None
        handle = os.open(item.local, os.O_RDONLY | _SAFE)
    except OSError:
        return None
    digest = hashlib.sha256()
    try:
        _hash_from_start(handle, digest, sys.maxsize)
    finally:
        os.close(handle)
    return item.sha256 if digest.hexdigest() == item.sha256 else None


def _hash_from_start(handle: int, digest: Any, limit: int) -> int:
    """Hash what a file holds, and stand at its end. One that is longer than `limit` cannot be right: it is emptied."""
    if os.fstat(handle).st_size > limit:
        os.ftruncate(handle, 0)
    count = 0
    while piece := os.read(handle, PIECE):
        digest.update(piece)
        count += len(piece)
    return count


def _parts_in(chosen: DownloadPlan) -> Parts:
    """The names of all parts that lie in the folders of a plan, of whatever file."""
    found: Parts = {}
    for folder in {item.part.parent for item in chosen.items}:
        with suppress(OSError):
            names = {name for name in os.listdir(folder) if name.endswith(".part")}
            if names:
                found[folder] = names
    return found


def _begun(item: Item, parts: Parts) -> bool:
    """True if the part of a file lay there when the pull began."""
    return bool(parts) and item.part.name in parts.get(item.part.parent, ())


def _drop_parts(item: Item, parts: Parts, but: Path | None) -> bool:
    """Remove parts of a file, those of earlier states of it too, except one; True if that one is there to go on from.

    It has to be a plain file with no other name: bytes are appended to it. `parts` is what lay in each folder.
    """
    if not parts:
        return False
    kept = False
    mine = item.part.name.partition("-")[0] + "-"
    for name in parts.get(item.part.parent, ()):
        old = item.part.with_name(name)
        if not name.startswith(mine) or not os.path.lexists(old):
            continue
        seen = os.lstat(old)
        if old == but and stat.S_ISREG(seen.st_mode) and seen.st_nlink == 1:
            kept = True
        else:
            old.unlink()
    return kept


def _write_all(handle: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def _set_time(file: int | Path, stamp: str | None) -> None:
    """Give a file its time on the host; one that makes no sense is left away. A descriptor has to be allowed here."""
    with suppress(ValueError, OverflowError, OSError, TypeError, NotImplementedError):
        seconds = datetime.fromisoformat((stamp or "").removesuffix("Z")).replace(tzinfo=timezone.utc).timestamp()
        os.utime(file, (seconds, seconds))


def _missing(item: Item, parts: Parts) -> int:
    """How many bytes of a file are still to come."""
    if _begun(item, parts):
        with suppress(OSError):
            seen = item.part.stat()
            blocks = getattr(seen, "st_blocks", None)  # one that arrived in ranges is as long as the file, with holes
            return max(0, item.size - (seen.st_size if blocks is None else min(seen.st_size, blocks * 512)))
    return item.size


def _plain(part: int, item: Item) -> None:
    """Make a part that arrived in ranges a plain beginning of its file."""
    from jobrunner.service.lanes import Parted

    Parted(part, item.size).shorten()
