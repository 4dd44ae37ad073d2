"""A job's files: checkpoints listed and fetched, outputs fetched; resumed at the byte, verified by hash."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import ConnectError, HostError, JobrunnerError, LinkLostError, NotFoundError, UsageError
from jobrunner.core.jobs import JobRow
from jobrunner.service.jobs import checkpoint_json, refresh_checkpoints
from jobrunner.service.reconcile import Reconciled, reconcile
from jobrunner.service.results import CheckpointList, PullResult
from jobrunner.service.session import Session

if TYPE_CHECKING:
    from jobrunner.service.download import Pulled, Transfer
    from jobrunner.transport.session import Session as Stream

EXCESS = 64 * 1024 * 1024
"""So much more than it listed may come of a file: it is heard to its end and refused, and the others are taken."""
TRIES, PAUSE_S = 5, 0.5
"""So often in a row a transfer may break without a byte having come; the pauses between double."""


def checkpoints(session: Session, word: str) -> CheckpointList:
    """A job's checkpoints, newest first, as its host has them now; as remembered if it does not answer."""
    id_ = session.ledger.resolve(word)
    found = reconcile(session, only=[id_])
    refresh_checkpoints(session, id_, found)
    return CheckpointList(
        row=session.ledger.get(id_),
        checkpoints=_listed(session, id_),
        errors=list(found.errors.values()),
        warnings=session.warnings,
        hosts_asked=found.asked,
        hosts_answered=found.answered,
    )


def _listed(session: Session, id_: str) -> list[dict[str, Any]]:
    return [checkpoint_json(item) for item in session.ledger.checkpoints(id_) if not item.removed]


def pull_checkpoints(session: Session, word: str, which: str, to: Path | None = None) -> PullResult:
    """Fetch `last`, `best`, `all` or a named checkpoint into a folder (default: in the state folder)."""
    id_ = session.ledger.resolve(word)
    row = _reachable(session, id_)
    folder = to or session.home / "artifacts" / id_ / "checkpoints"
    pulled = _pull(session, row, folder, checkpoint=which)
    refresh_checkpoints(session, id_, Reconciled(), again=True)
    names = {item["name"] for item in _listed(session, id_)}
    for saved in pulled.saved:
        for name in names:
            if saved.path == name or saved.path.startswith(name + "/"):
                session.ledger.set_pulled(id_, name, str((folder / name).absolute()))
    return _result(session, row, folder, pulled, _listed(session, id_))


def fetch_checkpoint(session: Session, row: JobRow, to: Path) -> Pulled:
    """Fetch a job's newest checkpoint into a folder of its own. NotFoundError if there is none."""
    return _pull(session, row, to, checkpoint="last")


def pull(session: Session, word: str, paths: Sequence[str], to: Path | None = None) -> PullResult:
    """Fetch files of a job by path or pattern (default: the spec's `outputs`, else all of JOBRUNNER_OUTPUT_DIR)."""
    id_ = session.ledger.resolve(word)
    row = _reachable(session, id_)
    folder = to or session.home / "artifacts" / id_ / "outputs"
    return _result(session, row, folder, _pull(session, row, folder, paths=list(paths) or None), [])


def pull_as_asked(session: Session, row: JobRow) -> PullResult | None:
    """Fetch what the spec's `checkpoints.pull` asks for of a job that has ended; None if it asks for nothing.

    A failed or cancelled job's checkpoints are fetched too. What goes wrong is a warning: the job itself is fine.
    """
    wanted = session.ledger.detail(row.id).request.get("spec", {}).get("checkpoints") or {}
    which = wanted.get("pull", "none")
    if not row.state.final or which == "none" or row.host is None or row.started_at is None:
        return None
    try:
        return pull_checkpoints(session, row.id, which)
    except NotFoundError:
        return None  # it has written none
    except JobrunnerError as error:
        again = f"jobrunner checkpoints {row.id} --pull {which}"
        session.warn(f"its checkpoints were not fetched: {error.message} (again with `{again}`)")
        return None


def _reachable(session: Session, id_: str) -> JobRow:
    """The row of a job whose host can be asked for files; the status is brought up to date on the way."""
    session.be_patient()
    found = reconcile(session, only=[id_])
    row = session.ledger.get(id_)
    if row.host is None or row.submitted_at is None:
        raise NotFoundError(f"{row.name} ({id_}) is on no host, so it has no files", code="no_files")
    if row.host in found.errors:
        raise found.errors[row.host]
    return row


@dataclass
class _Arriving:
    """The bytes of one file as the host sends them (`download.Transfer`)."""

    stream: Stream
    moved: _Moved
    most: int
    sha256: str | None = field(default=None)

    def __iter__(self) -> Iterator[memoryview]:
        for piece in self.stream.pieces(self.most):
            self.moved.add(len(piece))
            yield piece
        self.sha256 = self.stream.await_json("sha256")["sha256"]


class _Asking:
    """Asks for files of the host's list one after another; what was asked for ahead comes in that order."""

    def __init__(self, stream: Stream, files: Sequence[Mapping[str, Any]], moved: _Moved, coming: int = 0) -> None:
        self._stream, self._files, self._moved = stream, files, moved
        self._asked: deque[tuple[int, int]] = deque((index, 0) for index in range(coming))

    def ahead(self, indexes: list[int]) -> None:
        """These files will be wanted next, in this order and from their first byte on."""
        self._stream.add_json({"each": indexes})
        self._asked.extend((index, 0) for index in indexes)

    def __call__(self, index: int, offset: int) -> Transfer:
        while self._asked and self._asked[0] != (index, offset):
            self._pass_over()  # not wanted that way after all
        if self._asked:
            self._asked.popleft()
        else:
            self._stream.send_json({"get": index, "offset": offset})
        return self._arriving(index)

    def finish(self) -> None:
        """Hear to its end what was asked for and is not wanted; then say that this is all."""
        while self._asked:
            self._pass_over()
        self._stream.send_json({"done": True})

    def _pass_over(self) -> None:
        index, _ = self._asked.popleft()
        for _ in self._arriving(index):
            pass

    def _arriving(self, index: int) -> _Arriving:
        return _Arriving(self._stream, self._moved, _size(self._files[index]) + EXCESS)


def _pull(session: Session, row: JobRow, to: Path, **wanted: Any) -> Pulled:
    """Collect files, big ones over a connection of their own; a cut link is taken up where it broke, if that helps."""
    in_vain, pause, begun, moved = 0, PAUSE_S, False, _Moved()
    while True:
        try:
            return _pull_once(session, row, to, wanted, moved)
        except (LinkLostError, ConnectError) as error:
            session.links.forget(row.host or "")
            if isinstance(error, ConnectError) and not begun:
                raise
            begun = True
            in_vain, pause = (0, PAUSE_S) if moved.taken() else (in_vain + 1, pause * 2)
            if in_vain >= TRIES:
                raise
            session.progress.note(f"link to {row.host} lost while pulling ({error.message}); going on")
            time.sleep(pause)
        except HostError as error:
            raise _named(error) from error


@dataclass
class _Moved:
    """Bytes that have come: they show that a pull gets on, unless they are ever the same ones."""

    bytes: int = 0
    most: int = 0
    seen: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def expect(self, files: Sequence[Mapping[str, Any]]) -> None:
        """These are to come. More than twice as much does not get them on."""
        self.most = max(self.most, 2 * sum(map(_size, files)))

    def add(self, count: int) -> None:
        """So many more; from any thread."""
        with self.lock:
            self.bytes += count

    def taken(self) -> bool:
        """True if some have come since this was asked last."""
        seen, self.seen = self.seen, min(self.bytes, self.most)
        return self.seen > seen


def _size(entry: Mapping[str, Any]) -> int:
    """The size that the host's list gives a file; 0 where that is none."""
    size = entry.get("size")
    return size if isinstance(size, int) else 0


def _named(error: HostError) -> JobrunnerError:
    """What the host says of a file that is not there is no trouble with the host."""
    if error.code in ("no_such_checkpoint", "no_such_file", "no_such_job", "not_complete"):
        return NotFoundError(error.message, remedy=error.remedy, code=error.code)
    if error.code == "bad_pattern":
        return UsageError(
            error.message, remedy="name it as it lies below the job's work/ or $JOBRUNNER_OUTPUT_DIR", code=error.code
        )
    return error


def _pull_once(session: Session, row: JobRow, to: Path, wanted: dict[str, Any], moved: _Moved) -> Pulled:
    from jobrunner.service.download import AHEAD_BYTES, AHEAD_FILES, have, is_empty, save
    from jobrunner.service.lanes import Lanes

    assert row.host is not None
    link = session.link(row.host, bulk=_is_big(session, row.id))
    ahead = {"files": AHEAD_FILES, "bytes": AHEAD_BYTES} if is_empty(to) else None
    with link.stream("collect", id=row.id, have=have(to), ahead=ahead, **wanted) as stream:
        listed = stream.await_json("files")
        moved.expect(listed["files"])
        for entry in listed.get("skipped", []):
            session.warn(f"{entry.get('path')}: not fetched: {entry.get('why')}")
        coming = max(0, min(listed.get("coming", 0), len(listed["files"])))
        asking = _Asking(stream, listed["files"], moved, coming)
        with Lanes(link.bulk, row.id, moved.add, lambda: stream.send_json({"tick": True})) as lanes:
            pulled = save(listed["files"], asking, to, session.progress, asking.ahead, lanes, coming)
        asking.finish()
        stream.await_json("ok")
    for refused in pulled.refused:
        session.warn(f"{refused.path}: not fetched: {refused.why}")
    return pulled


def _is_big(session: Session, id_: str) -> bool:
    """True if a checkpoint is known that is going to come over a connection for big transfers anyway."""
    from jobrunner.service.lanes import BIG

    return any((item.size or 0) >= BIG for item in session.ledger.checkpoints(id_))


def _result(session: Session, row: JobRow, to: Path, pulled: Pulled, checkpoints: list[dict[str, Any]]) -> PullResult:
    errors: list[JobrunnerError] = []
    if pulled.refused:
        names = ", ".join(item.path for item in pulled.refused)
        errors.append(
            NotFoundError(f"not everything was fetched: {names}", code="not_fetched", remedy="see the warnings above")
        )
    return PullResult(
        row=row,
        to=str(to),
        files=[
            {"path": item.path, "size": item.size, "sha256": item.sha256, "fetched": item.fetched}
            for item in pulled.saved
        ],
        checkpoints=checkpoints,
        errors=errors,
        warnings=session.warnings,
        hosts_asked=1,
        hosts_answered=1,
    )
