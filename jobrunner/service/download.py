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
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from jobrunner.core.errors import HostError, UsageError
from jobrunner.service.lanes import NoLanes
from jobrunner.service.localdisk import check_space, local_troubles
from jobrunner.service.locks import FileLock
from jobrunner.service.names import shown
from jobrunner.service.progress import NoProgress, Progress
from jobrunner.service.pullplan import DownloadPlan, Item, Refused, have, in_the_way, local_name, plan

if TYPE_CHECKING:
    from jobrunner.service.lanes import Lanes

__all__ = ["DownloadPlan", "Fetch", "Pulled", "Refused", "Saved", "Transfer", "have", "plan", "save"]

PIECE = 1024 * 1024
SYNC_FROM = 1024 * 1024
LOCK_NAME = ".jobrunner-pull.lock"
AHEAD_FILES, AHEAD_BYTES = 128, 4 * 1024 * 1024
"""So much is asked for before it is wanted, so that small files do not cost a round trip each."""


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
    ahead: Callable[[int], None] | None = None,
    lanes: Lanes | None = None,
) -> Pulled:
    """Fetch the files of the host's list (`path`, `size`, `sha256` or None, `mtime`, `mode`) into the folder `to`.

    `ahead` is told the files that `fetch` will be called for next, in order and from their first byte on; big files
    come over `lanes` instead. Files that
    are refused, or change on the host while they are read, are reported and the others taken. Raises UsageError
    `disk_full`, `not_writable` or `busy` for this machine's own troubles, HostError `hash_mismatch` if what arrives is
    twice not what the host says; errors of `fetch` pass through. What arrived stays for next time.
    """
    shows = progress or NoProgress()
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
    number = shows.start(f"pulling {len(chosen.items)} file{'' if len(chosen.items) == 1 else 's'}", chosen.size)
    try:
        return _save(chosen, _Way(files, fetch, lanes), shows, number, ahead)
    finally:
        shows.finish(number)
        lock.release()


def _save(
    chosen: DownloadPlan,
    way: _Way,
    progress: Progress,
    number: int,
    ahead: Callable[[int], None] | None,
) -> Pulled:
    saved: list[Saved] = []
    refused = list(chosen.refused)
    with local_troubles(chosen.to):
        wanted = [(item, _already_here(item)) for item in chosen.items]
        check_space(chosen.to, sum(_missing(item) for item, digest in wanted if digest is None))
    ours: set[tuple[int, int]] = set()
    parts = _parts_in(chosen)
    foretold = _Foretold([item for item, digest in wanted if digest is None and not way.is_wide(item)], ahead)
    for item, digest in wanted:
        if digest is not None:
            with local_troubles(item.local):
                _drop_parts(item, parts, but=None)
            progress.advance(number, item.size)
            saved.append(Saved(item.path, item.local, item.size, digest, fetched=0))
            continue
        if not way.is_wide(item):
            foretold.go_on()
        outcome = _Arrival(item, way, chosen.to, progress, number, ours, parts).run()
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
    """Tells what will be fetched: as far as nothing of it is here yet, and not too much at once."""

    def __init__(self, items: list[Item], ahead: Callable[[int], None] | None) -> None:
        self._items, self._ahead = items, ahead
        self._now = self._told = 0

    def go_on(self) -> None:
        """The next file is about to be fetched."""
        if self._ahead is None:
            return
        self._told = max(self._told, self._now)
        few = self._told - self._now <= AHEAD_FILES // 2  # many are told at once, so that they go in one packet
        while (
            few and self._told < len(self._items) and self._fits() and not os.path.lexists(self._items[self._told].part)
        ):
            self._ahead(self._items[self._told].index)
            self._told += 1
        self._now += 1

    def _fits(self) -> bool:
        waiting = self._items[self._now + 1 : self._told + 1]
        return len(waiting) <= AHEAD_FILES and sum(item.size for item in waiting) <= AHEAD_BYTES


class _Arrival:
    """One file on its way."""

    def __init__(
        self,
        item: Item,
        way: _Way,
        to: Path,
        progress: Progress,
        number: int,
        ours: set[tuple[int, int]],
        parts: dict[Path, list[str]],
    ) -> None:
        self._item, self._way, self._to, self._parts = item, way, to, parts
        self._progress, self._number, self._ours = progress, number, ours
        self._came = 0

    def run(self) -> Saved | Refused:
        """Fetch, verify, name. A part from an earlier pull that proves wrong is fetched anew, once."""
        item = self._item
        with local_troubles(item.local):
            _make_folders(self._to, item.path)
            resumed = _drop_parts(item, self._parts, but=item.part)
        digest, said = self._receive()
        if said is None:
            with local_troubles(item.local):
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
        with local_troubles(item.local):
            return self._publish(digest)

    def _receive(self) -> tuple[str, str | None]:
        """Append what is missing to the part: the hash of what is there now, and what the host says it should be."""
        item, seen = self._item, hashlib.sha256()
        mode = 0o777 if item.executable else 0o666  # less the umask
        with local_troubles(item.local):
            handle = os.open(item.part, os.O_RDWR | os.O_CREAT | _SAFE, mode)
        with open(handle, "r+b", buffering=0) as part:
            if self._way.is_wide(item):
                try:
                    return self._receive_wide(part.fileno())
                except NoLanes:
                    _plain(part.fileno(), item)
            offset = _hash_from_start(part.fileno(), seen, item.size)
            self._progress.advance(self._number, offset)
            transfer = self._way.fetch(item.index, offset)
            for piece in transfer:
                offset += len(piece)
                self._came += len(piece)
                if offset > item.size:
                    continue  # longer than when it was listed; heard to its end, so that the next can be asked for
                seen.update(piece)
                with local_troubles(item.local):
                    _write_all(part.fileno(), piece)
                self._progress.advance(self._number, len(piece))
            if item.size >= SYNC_FROM:
                os.fsync(part.fileno())
        return seen.hexdigest(), transfer.sha256 if offset <= item.size else None

    def _receive_wide(self, part: int) -> tuple[str, str | None]:
        """The same, in ranges over several channels."""
        assert self._way.lanes is not None

        def advance(count: int) -> None:
            self._progress.advance(self._number, count)

        with local_troubles(self._item.local):
            outcome = self._way.lanes.fetch(self._way.files[self._item.index], part, advance)
            os.fsync(part)
        self._came += outcome.fetched
        return outcome.digest, outcome.sha256

    def _publish(self, digest: str) -> Saved | Refused:
        item = self._item
        why = in_the_way(self._to, item.path)  # looked at again: the transfer may have taken hours
        with suppress(FileNotFoundError):
            old = os.lstat(item.local)
            if (old.st_dev, old.st_ino) in self._ours:
                why = "this machine takes its name for that of another file of the list (upper and lower case)"
        if why:
            with suppress(OSError):
                item.part.unlink()
            return Refused(item.path, why)
        _set_time(item.part, item.mtime)
        os.replace(item.part, item.local)
        now = os.lstat(item.local)
        self._ours.add((now.st_dev, now.st_ino))
        return Saved(item.path, item.local, item.size, digest, fetched=self._came)


_SAFE = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def _already_here(item: Item) -> str | None:
    """The hash of a file that is there already and the same; None if it is to be fetched."""
    try:
        seen = os.lstat(item.local)
        if item.sha256 is None or not stat.S_ISREG(seen.st_mode) or seen.st_size != item.size:
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


def _make_folders(to: Path, path: str) -> None:
    here = to
    for part in path.split("/")[:-1]:
        here = here / local_name(part)
        with suppress(FileExistsError):
            here.mkdir()


def _parts_in(chosen: DownloadPlan) -> dict[Path, list[str]]:
    """The names of all parts that lie in the folders of a plan, of whatever file."""
    found: dict[Path, list[str]] = {}
    for folder in {item.part.parent for item in chosen.items}:
        with suppress(OSError):
            names = [name for name in os.listdir(folder) if name.endswith(".part")]
            if names:
                found[folder] = names
    return found


def _drop_parts(item: Item, parts: Mapping[Path, list[str]], but: Path | None) -> bool:
    """Remove parts of a file, those of earlier states of it too, except one; True if that one is there to go on from.

    It has to be a plain file with no other name: bytes are appended to it. `parts` is what lay in each folder.
    """
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


def _set_time(path: Path, stamp: str | None) -> None:
    """Give a file its time on the host; one that makes no sense is left away."""
    with suppress(ValueError, OverflowError, OSError):
        moment = datetime.strptime(stamp or "", "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
        os.utime(path, (moment.timestamp(), moment.timestamp()))


def _missing(item: Item) -> int:
    """How many bytes of a file are still to come."""
    with suppress(OSError):
        seen = item.part.stat()
        blocks = getattr(seen, "st_blocks", None)  # one that arrived in ranges is as long as the file, with holes
        return max(0, item.size - (seen.st_size if blocks is None else min(seen.st_size, blocks * 512)))
    return item.size


def _plain(part: int, item: Item) -> None:
    """Make a part that arrived in ranges a plain beginning of its file."""
    from jobrunner.service.lanes import Parted

    Parted(part, item.size).shorten()
