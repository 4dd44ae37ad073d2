"""Schedules and their due times, as the ledger remembers them."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from jobrunner.core.errors import NotFoundError, UsageError
from jobrunner.core.values import dataclass
from jobrunner.ledger.records import dump, load
from jobrunner.ledger.store import Store

Json = Mapping[str, Any]
_RUN = "seq, schedule, due, outcome, why, fired_at, job, sweep, claimed_by, manual"
_ADD_RUN = "INSERT OR IGNORE INTO runs (schedule, due, manual, outcome, why, updated_at) VALUES (?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True)
class ScheduleRow:
    """A schedule. `state` is `active`, `paused` or `removed`; due times up to `considered_until` have been decided.

    `spec` is the whole spec (`JobSpec.as_json`), `host` the only host it may use (`--host`), `file` and `folder` where
    the spec and its code lie on this machine, `pinned` the digest of the code that was kept when it was added
    (None: the folder as it is at the time), `code` what is known of that code (`Tree.code`).
    """

    id: str
    name: str
    state: str
    cron: str
    timezone: str
    added_at: str
    considered_until: str
    spec: Json
    removed_at: str | None = None
    host: str | None = None
    file: str | None = None
    folder: str | None = None
    code: Json | None = None
    pinned: str | None = None

    @property
    def settings(self) -> Json:
        """The spec's `schedule`."""
        found: Json = self.spec.get("schedule") or {}
        return found


@dataclass(frozen=True)
class Run:
    """A due time of a schedule, and what came of it.

    `outcome` is `waiting` (why: for what), `firing` (a process is at it: `claimed_by`), `fired` (`job`, or `sweep` and
    no job), `skipped` or `failed` (why). A `manual` run's `due` is when it was asked for.
    """

    seq: int
    schedule: str
    due: str
    outcome: str
    why: str | None = None
    fired_at: str | None = None
    job: str | None = None
    sweep: str | None = None
    claimed_by: Json | None = None
    manual: bool = False


class Schedules:
    """The part of the ledger about schedules. Every method raises LedgerError as `Ledger` does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, row: ScheduleRow) -> bool:
        """Remember a schedule; False if there is one of that id already, which stays as it is."""
        record = {**asdict(row), "spec": dump(row.spec), "code": dump(row.code), "updated_at": row.added_at}
        with self._store.write("noting a schedule in the ledger") as db:
            if db.execute("SELECT 1 FROM schedules WHERE id = ?", (row.id,)).fetchone():
                return False
            db.insert("schedules", [record])
            return True

    def set_state(self, id_: str, state: str, at: str) -> None:
        """Make a schedule active, paused or removed."""
        removed = at if state == "removed" else None
        with self._store.write() as db:
            sql = "UPDATE schedules SET state = ?, removed_at = ?, updated_at = ? WHERE id = ?"
            db.execute(sql, (state, removed, at, id_))

    def get(self, id_: str) -> ScheduleRow:
        """A schedule by its whole id. NotFoundError."""
        found = self._schedules("id = ?", (id_,))
        if not found:
            raise _unknown(id_)
        return found[0]

    def list(self, *, removed: bool = False) -> builtins.list[ScheduleRow]:
        """Every schedule that was not removed (with `removed`: those too), newest first."""
        return self._schedules("1" if removed else "state <> 'removed'", ())

    def resolve(self, word: str) -> str:
        """The schedule that a person means by an id, a name (the newest; one that is not removed first) or a part of
        an id. NotFoundError; UsageError if it may mean several."""
        with self._store.read() as connection:
            if connection.execute("SELECT 1 FROM schedules WHERE id = ?", (word,)).fetchone():
                return word
            sql = "SELECT id FROM schedules WHERE name = ? ORDER BY state = 'removed', added_at DESC, seq DESC LIMIT 1"
            named = connection.execute(sql, (word,)).fetchone()
            if named:
                return str(named[0])
            sql = "SELECT id FROM schedules WHERE substr(id, 1, ?) = ? ORDER BY seq DESC"
            found = [str(row[0]) for row in connection.execute(sql, (len(word), word))] if word else []
        if len(found) > 1:
            raise UsageError(f"{word!r} begins the ids of several schedules: {', '.join(found[:5])}", code="ambiguous")
        if not found:
            raise _unknown(word)
        return found[0]

    def consider(self, id_: str, until: str, runs: Iterable[tuple[str, str, str | None]], at: str) -> int:
        """Note what was decided about due times up to `until`: `(due, outcome, why)`. Times that have a run already
        keep it. Returns how many are new."""
        with self._store.write("noting due times in the ledger") as db:
            added = sum(db.execute(_ADD_RUN, (id_, due, 0, outcome, why, at)).rowcount for due, outcome, why in runs)
            db.execute("UPDATE schedules SET considered_until = ?, updated_at = ? WHERE id = ?", (until, at, id_))
        return added

    def add_manual(self, id_: str, due: str) -> Run:
        """Note a run that a person asked for now."""
        with self._store.write("noting a run in the ledger") as db:
            db.execute(_ADD_RUN, (id_, due, 1, "waiting", "asked for", due))
        return self._runs("schedule = ? AND due = ? AND manual = 1", (id_, due))[0]

    def restore_run(self, id_: str, due: str, fired_at: str, *, manual: bool, job: str) -> None:
        """A run that a host's job tells of, unless it is known."""
        sql = (
            "INSERT OR IGNORE INTO runs (schedule, due, manual, outcome, why, fired_at, job, updated_at)"
            " VALUES (?, ?, ?, 'fired', 'known from its job', ?, ?, ?)"
        )
        with self._store.write() as db:
            db.execute(sql, (id_, due, int(manual), fired_at, job, fired_at))

    def claim(self, run: Run, claimed_by: Json, at: str, *, job: str | None = None) -> bool:
        """Become the one who fires a run that waits, under the id that its job is going to have; False if somebody
        else was quicker."""
        return self.settle(run, "firing", at, run.why, claimed_by=claimed_by, job=job)

    def settle(self, run: Run, outcome: str, at: str, why: str | None = None, **changes: Any) -> bool:
        """Note what came of a run; nothing changes, and False, if it is not as it was read (`run`) any more.

        Further changes: `fired_at`, `job`, `sweep`, `claimed_by`; without the last nobody has a claim any more.
        """
        unknown = set(changes) - {"fired_at", "job", "sweep", "claimed_by"}
        if unknown:
            raise TypeError(f"a run cannot change its {', '.join(sorted(unknown))}")
        claimed = changes.pop("claimed_by", None)
        values = {"outcome": outcome, "why": why, "claimed_by": _text(claimed), "updated_at": at, **changes}
        names = ", ".join(f"{name} = ?" for name in values)
        sql = f"UPDATE runs SET {names} WHERE seq = ? AND outcome = ? AND claimed_by IS ?"
        with self._store.write("noting a run in the ledger") as db:
            found = db.execute(sql, (*values.values(), run.seq, run.outcome, _text(run.claimed_by)))
            return bool(found.rowcount)

    def run(self, seq: int) -> Run:
        """A run as it is now."""
        return self._runs("seq = ?", (seq,))[0]

    def open_runs(self, id_: str | None = None) -> builtins.list[Run]:
        """Runs that are still to fire, of one schedule or of all, the oldest due time first."""
        marks = "outcome IN ('waiting', 'firing')"
        return self._runs(marks if id_ is None else f"{marks} AND schedule = ?", () if id_ is None else (id_,))

    def runs(self, id_: str, limit: int | None = None) -> builtins.list[Run]:
        """A schedule's runs, the newest due time first."""
        return self._runs("schedule = ?", (id_,), newest=limit or -1)

    def unfinished(self, id_: str) -> builtins.list[Run]:
        """Runs of a schedule that were fired and whose job or sweep is not over, the newest first."""
        live = (
            "schedule = ? AND outcome = 'fired' AND (job IN (SELECT id FROM jobs WHERE final = 0)"
            " OR sweep IN (SELECT id FROM sweeps WHERE state IN ('staging', 'running')))"
        )
        return self._runs(live, (id_,), newest=-1)

    def sweep_sent(self, spec_digest: str) -> str | None:
        """The sweep that was submitted under a digest; None if none was."""
        with self._store.read() as connection:
            sql = "SELECT id FROM sweeps WHERE spec_digest = ? ORDER BY seq DESC LIMIT 1"
            row = connection.execute(sql, (spec_digest,)).fetchone()
        return None if row is None else str(row[0])

    def last_fired(self, id_: str) -> Run | None:
        """The run of a schedule that was fired last; None if none was."""
        found = self._runs("schedule = ? AND outcome = 'fired'", (id_,), newest=1)
        return found[0] if found else None

    def _schedules(self, condition: str, values: Sequence[Any]) -> builtins.list[ScheduleRow]:
        names = [item.name for item in fields(ScheduleRow)]
        sql = f"SELECT {', '.join(names)} FROM schedules WHERE {condition} ORDER BY added_at DESC, seq DESC"
        with self._store.read() as connection:
            rows = connection.execute(sql, values).fetchall()
        return [
            ScheduleRow(**{**dict(row), "spec": load(row["spec"], {}), "code": load(row["code"], None)}) for row in rows
        ]

    def _runs(self, condition: str, values: Sequence[Any], newest: int | None = None) -> builtins.list[Run]:
        order = "due, seq" if newest is None else f"due DESC, seq DESC LIMIT {newest:d}"
        with self._store.read() as connection:
            rows = connection.execute(f"SELECT {_RUN} FROM runs WHERE {condition} ORDER BY {order}", values).fetchall()
        return [_run(row) for row in rows]


def _text(claim: Json | None) -> str | None:
    return None if claim is None else dump(claim)


def _run(row: sqlite3.Row) -> Run:
    return Run(**{**dict(row), "claimed_by": load(row["claimed_by"], None), "manual": bool(row["manual"])})


def _unknown(word: str) -> NotFoundError:
    return NotFoundError(
        f"there is no schedule {word!r}",
        code="no_such_schedule",
        remedy="`jobrunner schedule ls` shows those that there are; `jobrunner adopt` brings back lost ones.",
    )
