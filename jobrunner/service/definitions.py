"""Schedules as files in the state folder: `schedules/ID.json`, from which `adopt` brings them back.

The ledger is what is worked with; a file says the same, and up to when due times have been decided.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError
from jobrunner.ledger.schedules import ScheduleRow

if TYPE_CHECKING:
    from jobrunner.service.session import Session

VERSION = 1


def folder(session: Session) -> Path:
    """Where the definitions lie."""
    return session.home / "schedules"


def code_folder(session: Session) -> Path:
    """Where the code of schedules with `code: pinned` is kept."""
    return folder(session) / "code"


def write(session: Session, row: ScheduleRow) -> None:
    """Write or rewrite a schedule's file."""
    path = folder(session) / f"{row.id}.json"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    text = json.dumps({"v": VERSION, **asdict(row)}, indent=1)
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", encoding="ascii") as out:
        out.write(text + "\n")
    os.replace(aside, path)


def remove(session: Session, id_: str) -> None:
    """Remove a schedule's file."""
    (folder(session) / f"{id_}.json").unlink(missing_ok=True)


def unknown(session: Session, known: set[str]) -> list[str]:
    """Ids of files that no known schedule belongs to."""
    try:
        names = os.listdir(folder(session))
    except OSError:
        return []
    ids = [name.removesuffix(".json") for name in names if name.endswith(".json") and not name.startswith(".")]
    return sorted(set(ids) - known)


def adopt(session: Session) -> list[ScheduleRow]:
    """Take schedules whose files are there into the ledger.

    Due times that were decided before are not decided again. What cannot be read is a warning.
    """
    known = {row.id for row in session.ledger.schedules.list(removed=True)}
    added = []
    for id_ in unknown(session, known):
        path = folder(session) / f"{id_}.json"
        try:
            row = _read(json.loads(path.read_bytes()))
        except (OSError, ValueError, TypeError, LookupError, JobrunnerError) as error:
            session.warn(f"the schedule {path} cannot be taken over: {error}")
            continue
        if row.id == id_ and session.ledger.schedules.add(row):
            added.append(row)
    return added


def _read(data: dict[str, Any]) -> ScheduleRow:
    from jobrunner.core.duetimes import instant, timing_of
    from jobrunner.core.spec import spec_from_json

    names = {item.name for item in fields(ScheduleRow)}
    row = ScheduleRow(**{name: value for name, value in data.items() if name in names})
    spec = spec_from_json(dict(row.spec))
    timing_of(row.id, row.settings)
    for moment in (row.added_at, row.considered_until):
        instant(moment)
    if spec.schedule is None or row.state not in ("active", "paused"):
        raise ValueError("it is no schedule that could go on")
    return row


def restore_runs(session: Session) -> None:
    """Take into the ledger what jobs tell of the due times that they were submitted for."""
    for row in session.ledger.list(all=True):
        if row.schedule is None:
            continue
        told = session.ledger.detail(row.id).request.get("schedule")
        if isinstance(told, dict) and isinstance(told.get("due"), str) and row.submitted_at:
            session.ledger.schedules.restore_run(
                row.schedule, told["due"], row.submitted_at, manual=bool(told.get("manual")), job=row.id
            )
