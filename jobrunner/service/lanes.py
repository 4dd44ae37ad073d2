"""A big file in ranges over several channels: what fetches the ranges, what hashes them, what waits for both.

One channel gives no more than its window in a round trip, so a far host is asked over several at once. Ranges arrive in
about the file's order; the hash follows as far as there is no gap, and what has arrived is brought to the disk
meanwhile. The host tells the hash of the whole file over a channel of its own.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from jobrunner.agent import parted
from jobrunner.core.errors import HostError, JobrunnerError, LinkLostError

if TYPE_CHECKING:
    from jobrunner.transport.link import HostLink
    from jobrunner.transport.session import Session as Stream

Parted: Any = parted.Parted  # written for Python 3.6, so without types
_read_at: Any = parted.read_at
BIG = 32 * 1024 * 1024
"""A file of so many bytes is worth more than one channel."""
NEAR_S, FAR_S = 0.004, 0.02
ASKED = 2  # ranges that a channel is asked for at once
BLOCK = 1024 * 1024
SYNC_EVERY = 64 * 1024 * 1024
BEAT_S = 30.0


class NoLanes(Exception):
    """The host gives no channel for this; there is one already over which the file can be had."""


def wanted_lanes(link: HostLink) -> int:
    """How many channels fill the way to a host: one where it is near."""
    if link.round_trip < NEAR_S:
        return 1
    if link.kind == "fabric":
        return 2  # its windows are big, and more of it is all the work of one thread
    return 3 if link.round_trip < FAR_S else 6


class Crew:
    """Threads that work on one file, and what went wrong in them. `wait` raises the worst of it."""

    def __init__(self) -> None:
        self.stop = threading.Event()
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def start(self, work: Callable[..., None], *args: Any) -> None:
        """Run `work` beside the others; its error is kept."""
        thread = threading.Thread(target=self._run, args=(work, args), name="lane", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _run(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            work(*args)
        except BaseException as error:  # told by `wait`, in the thread that waits
            self.errors.append(error)
            if not isinstance(error, HostError):
                self.stop.set()

    def wait(self, beat: Callable[[], None]) -> None:
        """Wait until all have ended; `beat` is called now and then meanwhile."""
        at = time.monotonic() + BEAT_S
        try:
            for thread in self._threads:
                while thread.is_alive():
                    thread.join(0.5)
                    if time.monotonic() > at:
                        beat()
                        at = time.monotonic() + BEAT_S
        except BaseException:
            self.stop.set()
            raise

    def worst(self) -> BaseException | None:
        """Troubles of this machine before those of the host, a lost link before a refusal."""
        return min(self.errors, key=lambda e: 2 * isinstance(e, HostError) - isinstance(e, LinkLostError), default=None)


class Fetched(NamedTuple):
    """`digest` of what is there now; `sha256`: what the host says it is, None if it changed there meanwhile; `fetched`
    bytes came."""

    digest: str
    sha256: str | None
    fetched: int


class Lanes:
    """Channels to one job's files on its host, opened when the first big file is wanted; a context manager.

    `came` is told how many bytes have come; `beat` keeps the channel open that waits meanwhile.
    """

    least = BIG

    def __init__(
        self, link: Callable[[], HostLink], job: str, came: Callable[[int], None], beat: Callable[[], None]
    ) -> None:
        self._bulk, self._job, self._came, self._beat = link, job, came, beat
        self._open: dict[str, Stream] = {}
        self._lock = threading.Lock()

    def fetch(self, entry: Mapping[str, Any], handle: int, advance: Callable[[int], None]) -> Fetched:
        """Bring a file of the host's list into a part. Raises NoLanes, LinkLostError, HostError, or OSError."""
        part = Parted(handle, int(entry["size"]))
        advance(part.there)
        return _Fetching(self, entry, part, advance).run()

    def fetched(self, count: int) -> None:
        """So many bytes have come."""
        self._came(count)

    def beat(self) -> None:
        """Whoever waits for this gives a sign of life."""
        self._beat()

    def count(self) -> int:
        """How many channels are worth it. Connects."""
        link = self._bulk()
        link.open()
        return wanted_lanes(link)

    def stream(self, name: str) -> Stream:
        """The channel of this name, opened if it is not yet. One thread at a time uses it."""
        with self._lock:
            known = self._open.get(name)
        if known is not None and known.usable:
            return known
        fresh = self._bulk().stream("ranges", at_once=True, id=self._job)
        with self._lock:
            self._open[name] = fresh
        return fresh

    def __enter__(self) -> Lanes:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._open.values():
            stream.close()


class _Fetching:
    """One file on its way."""

    def __init__(self, lanes: Lanes, entry: Mapping[str, Any], part: Any, advance: Callable[[int], None]) -> None:
        self._lanes, self._entry, self._part, self._advance = lanes, entry, part, advance
        self._named = {"inner": entry["inner"], "mark": entry["mark"]}
        self._left: deque[tuple[int, int]] = deque(part.missing())
        self._crew, self._digest = Crew(), Follower(part)
        self._said: str | None = entry.get("sha256")
        self._changed = False

    def run(self) -> Fetched:
        """See `Lanes.fetch`."""
        crew, before = self._crew, self._part.there
        known = self._said
        for number in range(min(self._lanes.count(), len(self._left))):
            crew.start(self._lane, str(number))
        if known is None:
            crew.start(self._sum, "sum")
        follower = Crew()
        follower.start(self._digest.run)
        follower.start(self._digest.keep)
        try:
            crew.wait(self._lanes.beat)
        finally:
            self._digest.over()
            follower.wait(self._lanes.beat)
        self._judge(follower)
        digest = self._digest.hexdigest
        if not self._changed and (self._said is None or (known is not None and digest != known)):
            self._sum("0")
        if not self._changed:
            self._part.finish()
        return Fetched(digest, None if self._changed else self._said, self._part.there - before)

    def _judge(self, follower: Crew) -> None:
        """Raise what keeps the file from being whole."""
        wrong = follower.worst() or self._crew.worst()
        done = self._changed or (not follower.errors and self._part.reached == self._part.size)
        if done and isinstance(wrong, HostError | None):
            return  # another channel did it
        if isinstance(wrong, JobrunnerError) and wrong.code == "sessions_full":
            raise NoLanes from wrong
        raise wrong or HostError("not all of the file came", code="bad_answer")

    def _take(self) -> tuple[int, int] | None:
        try:
            return self._left.popleft()
        except IndexError:
            return None

    def _lane(self, name: str) -> None:
        stream = self._lanes.stream(name)
        asked: deque[tuple[int, int]] = deque()
        stream.send_json(self._named)
        while not self._crew.stop.is_set():
            while len(asked) < ASKED and (wanted := self._take()) is not None:
                stream.send_json({"from": wanted[0], "to": wanted[1]})
                asked.append(wanted)
            if not asked:
                return
            self._receive(stream, *asked.popleft())

    def _receive(self, stream: Stream, at: int, end: int) -> None:
        for piece in stream.pieces(end - at):
            if self._crew.stop.is_set():
                stream.close()
                return
            self._lanes.fetched(len(piece))
            if not self._part.put(at, piece):
                raise HostError("the host sent other bytes than it was asked for", code="bad_answer")
            at += len(piece)
            self._digest.came.set()
            self._advance(len(piece))
        if not stream.await_json("range")["range"]:
            self._changed = True
            self._crew.stop.set()
        elif at != end:
            raise HostError("the host sent less than it was asked for", code="bad_answer")

    def _sum(self, name: str) -> None:
        stream = self._lanes.stream(name)
        stream.send_json(self._named)
        stream.send_json({"sum": True})
        self._said = stream.await_json("sha256")["sha256"]
        self._changed = self._changed or self._said is None


class Follower:
    """Hashes a part as far as it has come, and brings that to the disk, so that little is left to do at the end."""

    def __init__(self, part: Any) -> None:
        self.came = threading.Event()
        self.hexdigest = ""
        self._part = part
        self._over = False

    def over(self) -> None:
        """Nothing more comes."""
        self._over = True
        self.came.set()

    def run(self) -> None:
        """Hash until nothing more comes, or all has come."""
        seen, at = hashlib.sha256(), 0
        while at < self._part.size:
            over, reached = self._over, self._part.reached
            while at < reached:
                block = _read_at(self._part.handle, min(BLOCK, reached - at), at)
                seen.update(block)
                at += len(block)
            if over:
                break
            if at < self._part.size:
                self.came.wait(0.5)
                self.came.clear()
        self.hexdigest = seen.hexdigest()

    def keep(self) -> None:
        """Bring what has arrived to the disk, now and then."""
        sync, at = getattr(os, "fdatasync", os.fsync), self._part.there
        while not self._over:
            if self._part.there - at >= SYNC_EVERY:
                at = self._part.there
                sync(self._part.handle)
            time.sleep(0.05)
