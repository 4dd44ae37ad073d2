"""A big content on its way to a host, in ranges over several channels: a server's window is what bounds one.

The host says which ranges it has from an earlier try, hashes what comes, and gives the content its name only by the
hash of the whole. So the file need not be hashed here once more: one that changed meanwhile has another hash there.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import AgentError, ConnectError, HostError
from jobrunner.service.lanes import BIG, FAR_S, NEAR_S, Crew

if TYPE_CHECKING:
    from jobrunner.transport.link import HostLink
    from jobrunner.transport.session import Session as Stream
    from jobrunner.upload import Tree

BLOCK = 256 * 1024
SILENCE_S = 60.0
LEAST = BIG
NEAR, NOT_FAR, FAR = 1, 3, 6
Gap = tuple[int, int]


class Uploads:
    """Big contents of one tree to one host, one after the other. `beat` keeps the channel open that waits meanwhile."""

    def __init__(
        self, bulk: Callable[[], HostLink], tree: Tree, beat: Callable[[], None], advance: Callable[[int], None]
    ) -> None:
        self._bulk, self._tree, self._beat, self._advance = bulk, tree, beat, advance
        self._possible = True
        self.bytes = 0
        self._lock = threading.Lock()

    def send(self, index: int) -> bool:
        """Bring a content to the host; False if it is to go the plain way: it is small, or channels are scarce.

        Raises LinkLostError (what has come is kept), ChangedError, HostError.
        """
        digest, path, size = self._tree.contents[index]
        if size < LEAST or not self._possible:
            return False
        link = self._bulk()
        link.open()
        asked = {"sha256": digest, "size": size}
        try:
            with link.stream("parts", SILENCE_S, at_once=True, keep=True, **asked) as keeper:
                first = keeper.read_json()
                if "lack" not in first:
                    return False  # another submit is sending the same
                return self._spread(link, keeper, _gaps(link.alias, first["lack"], size), path, asked)
        except ConnectError as error:
            if error.code != "sessions_full":
                raise
            self._possible = False
            return False
        except AgentError as error:
            if error.code != "changed":
                raise
            from jobrunner.upload.reader import ChangedError

            raise ChangedError(path, "other content") from error

    def _spread(self, link: HostLink, keeper: Stream, gaps: list[Gap], path: str, asked: dict[str, Any]) -> bool:
        size, left, crew = int(asked["size"]), deque(gaps), Crew()
        self._advance(size - sum(end - begin for begin, end in gaps))
        near = link.round_trip
        for _ in range(min(len(gaps), NEAR if near < NEAR_S else NOT_FAR if near < FAR_S else FAR)):
            crew.start(self._lane, crew, link, left, path, asked)
        crew.wait(self._beat)
        worst = crew.worst()
        if worst is not None and (left or not isinstance(worst, ConnectError)):
            raise worst
        while "ok" not in (message := keeper.read_json(SILENCE_S)):
            keeper.sign_of_life(message)
            self._beat()  # it is hashing the last of it
        return bool(message["data"].get("kept"))

    def _lane(self, crew: Crew, link: HostLink, left: deque[Gap], path: str, asked: dict[str, Any]) -> None:
        from jobrunner.upload.hashing import open_file
        from jobrunner.upload.reader import ChangedError

        with link.stream("parts", SILENCE_S, at_once=True, **asked) as stream:
            try:
                handle = open_file(self._tree.root, path)
            except OSError as error:
                raise ChangedError(path, error.strerror or str(error)) from error
            try:
                while not crew.stop.is_set():
                    try:
                        at, end = left.popleft()
                    except IndexError:
                        break
                    stream.send_json({"from": at})
                    while at < end and not crew.stop.is_set():
                        if stream.answered:
                            stream.read_json()  # before its time: it says what went wrong there
                        count = min(BLOCK, end - at)
                        if not stream.send_range(handle, at, count):
                            raise ChangedError(path, "it is shorter")
                        at += count
                        self._count(count)
            finally:
                os.close(handle)
            stream.send_json({"done": True})
            stream.result()

    def _count(self, count: int) -> None:
        self._advance(count)
        with self._lock:
            self.bytes += count


def _gaps(alias: str, lack: list[list[int]], size: int) -> list[Gap]:
    """What a host says that it lacks of a content: one place after the other. Raises HostError if that cannot be."""
    ends = [0, *(place for gap in lack for place in gap), size]
    if any(len(gap) != 2 or gap[0] >= gap[1] for gap in lack) or ends != sorted(ends):
        raise HostError(
            f"{alias} asks for parts of a file that are none",
            host=alias,
            code="bad_answer",
            remedy="Use the same version of jobrunner everywhere.",
        )
    return [(begin, end) for begin, end in lack]
