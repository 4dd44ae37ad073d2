"""The checkpoint of a job goes to the host of another that waits for it: fetched here, and brought there."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError, NotFoundError
from jobrunner.service import afters
from jobrunner.service.clock import now
from jobrunner.service.data import fetch_checkpoint

if TYPE_CHECKING:
    from jobrunner.core.jobs import JobRow
    from jobrunner.service.reconcile import Reconciled
    from jobrunner.service.session import Session
    from jobrunner.upload import Tree


def bring(session: Session, found: Reconciled) -> list[str]:
    """Bring what queued jobs wait for from jobs on other hosts that have ended; the ids of the jobs that got all.

    Only hosts that have just answered are concerned. A checkpoint that was fetched before is not fetched again, and
    one that was brought is not brought again. What goes wrong is an error of that host; the next call tries again.
    """
    done: list[str] = []
    waits = session.ledger.waits()
    if not waits:
        return done
    for alias, jobs in session.ledger.live_by_host().items():
        for job in jobs:
            if alias in found.errors or alias not in found.answers:
                continue
            ready = [row for row in afters.needed(session, job.id, waits) if row.state.final]
            try:
                if ready and _bring_all(session, alias, job.id, ready):
                    done.append(job.id)
            except JobrunnerError as error:
                found.errors.setdefault(getattr(error, "host", None) or alias, error)
    return done


def _bring_all(session: Session, alias: str, id_: str, ready: list[JobRow]) -> bool:
    key = f"given:{id_}"
    given: dict[str, str | None] = json.loads(session.ledger.meta(key) or "{}")
    for row in ready:
        if row.id in given:
            continue
        tree = _fetched(session, row)
        given[row.id] = None if tree is None else _give(session, alias, id_, row.id, tree)
        session.ledger.set_meta(key, json.dumps(given))
    told = {row.id: row.state.value for row in ready}
    paths = {job: path for job, path in given.items() if path}
    return afters.resolve(session, alias, id_, told, paths)


def _fetched(session: Session, row: JobRow) -> Tree | None:
    """The job's newest checkpoint, alone in a folder of the state folder; None if it left none."""
    folder = session.home / "artifacts" / row.id / "passed-on"
    try:
        fetch_checkpoint(session, row, folder)
    except NotFoundError:
        session.warn(f"{row.name} ({row.id}) ended without a checkpoint to pass on")
        return None
    return _tree(folder)


def _tree(folder: Path) -> Tree | None:
    """All that lies in a folder; None if that is nothing."""
    from jobrunner.upload import Entry, Tree

    entries: list[Entry] = []
    for top, folders, files in os.walk(folder):
        folders.sort()
        for name in sorted([*folders, *files]):
            path = os.path.join(top, name)
            seen = os.lstat(path)
            inside = os.path.relpath(path, folder).replace(os.sep, "/")
            stamp = (seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, seen.st_dev)
            kind = "d" if stat.S_ISDIR(seen.st_mode) else "f"
            entries.append(
                Entry(kind, inside, stat.S_IMODE(seen.st_mode), seen.st_size if kind == "f" else 0, "", stamp)
            )
    entries.sort(key=lambda entry: entry.path.split("/"))
    return Tree(os.fsencode(folder), tuple(entries)) if entries else None


def _give(session: Session, alias: str, id_: str, other: str, tree: Tree) -> str:
    """Bring a tree to the folder of a job on its host; the path of the checkpoint there."""
    from jobrunner.upload import iter_blobs

    link = session.link(alias)
    with link.bulk().stream("give", id=id_, job=other, manifest=tree.manifest) as stream:
        answer: dict[str, Any] = stream.read_json()
        need = [index for index in answer.get("need") or () if 0 <= index < len(tree.contents)]
        task = session.progress.start(f"passing a checkpoint on to {alias}", sum(tree.contents[n][2] for n in need))
        try:
            for _, pieces in iter_blobs(tree, need):
                for piece in pieces:
                    stream.send_bytes(piece)
                    session.progress.advance(task, len(piece))
                stream.send_end()
        finally:
            session.progress.finish(task)
        path = stream.read_json()["data"]["path"]
    session.ledger.add_event(id_, "given", now(), {"checkpoint_of": other, "path": path})
    return str(path)
