"""Sweeps and their trials, as the ledger remembers them."""

from __future__ import annotations

import builtins
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, field, fields
from typing import Any

from jobrunner.core.errors import NotFoundError, UsageError
from jobrunner.core.jobs import JobRow
from jobrunner.core.values import dataclass
from jobrunner.ledger import writing
from jobrunner.ledger.records import dump, load
from jobrunner.ledger.store import Store

Json = Mapping[str, Any]
_PLAIN = ("spec", "code", "client", "submitter")
_LIVE = ("UNSENT", "STAGING", "QUEUED", "RUNNING")
_TALLY = (
    "SELECT t.sweep, CASE WHEN j.id IS NULL OR (j.state = 'FAILED' AND j.reason = 'interrupted') THEN 'UNSENT'"
    " ELSE j.state END AS seen, t.status, count(*) FROM trials t LEFT JOIN jobs j ON j.id = t.job"
)
_ADD_TRIAL = (
    "INSERT OR IGNORE INTO trials (sweep, number, point, parameters, job, status, rung, note, updated_at)"
    " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)"
)


@dataclass(frozen=True)
class SweepRow:
    """A sweep. `state` is `staging` (its trials are being sent), `running`, `done` or `stopped`; `why` says why it
    stopped. `spec` is the whole spec (`JobSpec.as_json`), `host` the only host it may use (`--host`), `file` and
    `folder` where the spec and its code lie on this machine, `planned` how many trials it is to have in all."""

    id: str
    name: str
    method: str
    state: str
    created_at: str
    spec: Json
    objective: str | None = None
    planned: int | None = None
    why: str | None = None
    ended_at: str | None = None
    host: str | None = None
    file: str | None = None
    folder: str | None = None
    spec_digest: str | None = None
    code_digest: str | None = None
    code: Json | None = None
    client: Json = field(default_factory=dict)
    submitter: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One point of a sweep. `job` is the job that runs it now (None: not sent yet), `point` the hash of `parameters`.

    `status` is None, or what early stopping decided: `stopped`, `paused`, `promoted`; `rung` the rung it reached.
    """

    sweep: str
    number: int
    point: str
    parameters: Mapping[str, str]
    job: str | None = None
    status: str | None = None
    rung: int | None = None
    note: Json = field(default_factory=dict)


@dataclass(frozen=True)
class Tally:
    """How far a sweep's trials are. `states` counts the trials by their jobs' states, those that no host has (never
    sent, or their sending was broken off) as `UNSENT`; `stopped` and `paused` early stopping has ended."""

    states: Mapping[str, int] = field(default_factory=dict)
    stopped: int = 0
    paused: int = 0

    @property
    def made(self) -> int:
        """How many trials there are."""
        return sum(self.states.values())

    @property
    def final(self) -> int:
        """How many have ended."""
        return sum(count for state, count in self.states.items() if state not in _LIVE)

    @property
    def failed(self) -> int:
        """How many failed, ran out of time or were lost."""
        return sum(self.states.get(state, 0) for state in ("FAILED", "TIMEOUT", "LOST"))

    @property
    def completed(self) -> int:
        """How many ran to their end, or were stopped early."""
        return self.states.get("COMPLETED", 0) + self.stopped


@dataclass(frozen=True)
class Sending:
    """A trial that is about to be sent as `row`; `before` is the job that ran it until now, if any."""

    trial: Trial
    row: JobRow
    request: Json
    before: str | None = None


class Sweeps:
    """The part of the ledger about sweeps. Every method raises LedgerError as `Ledger` does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, row: SweepRow) -> None:
        """Remember a sweep before its first trial is sent; one that is known already is replaced."""
        record = {**asdict(row), **{key: dump(getattr(row, key)) for key in _PLAIN}, "updated_at": row.created_at}
        with self._store.write("noting a sweep in the ledger") as db:
            db.execute("DELETE FROM sweeps WHERE id = ?", (row.id,))
            db.insert("sweeps", [record])

    def forget(self, id_: str) -> None:
        """Remove a sweep that never sent anything."""
        with self._store.write() as db:
            db.execute("DELETE FROM trials WHERE sweep = ?", (id_,))
            db.execute("DELETE FROM sweeps WHERE id = ?", (id_,))

    def take_over(self, id_: str, expected: Json, submitter: Json) -> bool:
        """Become the submitter of a sweep in place of a dead one; False if somebody else was quicker."""
        with self._store.write() as db:
            sql = "UPDATE sweeps SET submitter = ? WHERE id = ? AND submitter = ?"
            return bool(db.execute(sql, (dump(submitter), id_, dump(expected))).rowcount)

    def stage(
        self, items: Iterable[Sending], *, spec_digest: str, code_digest: str | None, submitter: Json, at: str
    ) -> builtins.list[str]:
        """Remember jobs of trials before any host hears of them, in one transaction; returns the jobs' ids.

        A trial that another process has given to a job meanwhile (it is not `before` any more) is left out.
        """
        staged: builtins.list[str] = []
        with self._store.write("noting trials in the ledger") as db:
            for item in items:
                sql = "UPDATE trials SET job = ?, updated_at = ? WHERE sweep = ? AND point = ? AND job IS ?"
                values = (item.row.id, at, item.trial.sweep, item.trial.point, item.before)
                if not db.execute(sql, values).rowcount:
                    continue
                writing.insert_job(db, item.row, at)
                writing.insert_request(
                    db, item.row.id, item.request,
                    spec_digest=spec_digest, code_digest=code_digest, submitter=submitter,
                )  # fmt: skip
                staged.append(item.row.id)
        return staged

    def requests(self, sweep: str) -> dict[str, dict[str, Any]]:
        """What hosts were told of the sweep (`request.sweep`), by job."""
        sql = "SELECT id, json_extract(request, '$.sweep') FROM jobs JOIN requests ON job = id WHERE sweep = ?"
        with self._store.read() as connection:
            return {row[0]: load(row[1], {}) for row in connection.execute(sql, (sweep,))}

    def change(self, id_: str, at: str, **changes: Any) -> None:
        """Change fields of a sweep."""
        values = {key: dump(value) if key in _PLAIN else value for key, value in changes.items()}
        unknown = set(values) - {item.name for item in fields(SweepRow)}
        if unknown:
            raise TypeError(f"a sweep has no {', '.join(sorted(unknown))}")
        values["updated_at"] = at
        with self._store.write() as db:
            names = ", ".join(f"{name} = ?" for name in values)
            db.execute(f"UPDATE sweeps SET {names} WHERE id = ?", (*values.values(), id_))

    def get(self, id_: str) -> SweepRow:
        """A sweep by its whole id. NotFoundError."""
        found = self._rows("id = ?", (id_,))
        if not found:
            raise _unknown(id_)
        return found[0]

    def list(self) -> builtins.list[SweepRow]:
        """Every sweep, newest first."""
        return self._rows("1", ())

    def same(self, spec_digest: str, code_digest: str | None) -> builtins.list[SweepRow]:
        """Sweeps of this very spec and code that are still being sent (`staging`), oldest first."""
        found = self._rows("spec_digest = ? AND code_digest IS ? AND state = 'staging'", (spec_digest, code_digest))
        return found[::-1]

    def resolve(self, word: str) -> str:
        """The sweep that a person means by an id, its unique beginning, or a name (the newest of that name)."""
        with self._store.read() as connection:
            if connection.execute("SELECT 1 FROM sweeps WHERE id = ?", (word,)).fetchone():
                return word
            sql = "SELECT id FROM sweeps WHERE name = ? ORDER BY created_at DESC, seq DESC"
            named = connection.execute(sql, (word,)).fetchone()
            if named:
                return str(named[0])
            found = connection.execute("SELECT id FROM sweeps WHERE substr(id, 1, ?) = ?", (len(word), word)).fetchall()
        if len(found) > 1:
            ids = ", ".join(str(row[0]) for row in found[:5])
            raise UsageError(f"{word!r} begins the ids of several sweeps: {ids}", code="ambiguous_id")
        if not found or not word:
            raise _unknown(word)
        return str(found[0][0])

    def add_trials(self, trials: Iterable[Trial], at: str) -> int:
        """Add points; those that the sweep has already stay as they are. Returns how many are new."""
        with self._store.write("noting trials in the ledger") as db:
            return sum(db.execute(_ADD_TRIAL, _stored(trial, at)).rowcount for trial in trials)

    def change_trial(self, sweep: str, point: str, at: str, **changes: Any) -> None:
        """Change `job`, `status`, `rung` or `note` of a trial."""
        unknown = set(changes) - {"job", "status", "rung", "note"}
        if unknown:
            raise TypeError(f"a trial cannot change its {', '.join(sorted(unknown))}")
        values = {key: dump(value) if key == "note" else value for key, value in changes.items()}
        values["updated_at"] = at
        with self._store.write() as db:
            names = ", ".join(f"{name} = ?" for name in values)
            db.execute(f"UPDATE trials SET {names} WHERE sweep = ? AND point = ?", (*values.values(), sweep, point))

    def unread(self, sweeps: Iterable[str]) -> builtins.list[str]:
        """Jobs of these sweeps that have ended and whose numbers are not known to be here wholly; without those on
        hosts that did not answer last time."""
        wanted = set(sweeps)
        sql = (
            "SELECT j.id, j.sweep FROM metric_offsets o JOIN jobs j ON j.id = o.job JOIN hosts h ON h.alias = j.host"
            " WHERE o.done = 0 AND j.final = 1 AND j.sweep IS NOT NULL AND h.error IS NULL"
        )
        with self._store.read() as connection:
            return [str(row[0]) for row in connection.execute(sql) if row[1] in wanted]

    def trials(self, sweep: str) -> builtins.list[Trial]:
        """A sweep's trials by number."""
        return self._trials("sweep = ? ORDER BY number", (sweep,))

    def tallies(self, sweep: str | None = None) -> dict[str, Tally]:
        """How far each sweep (or just this one) is, by sweep."""
        where, values = (" WHERE t.sweep = ?", (sweep,)) if sweep is not None else ("", ())
        found: dict[str, dict[str, Any]] = {}
        with self._store.read() as connection:
            for id_, state, status, count in connection.execute(f"{_TALLY}{where} GROUP BY 1, 2, 3", values):
                known = found.setdefault(id_, {"states": {}, "stopped": 0, "paused": 0})
                known["states"][state] = known["states"].get(state, 0) + count
                if status in ("stopped", "paused") and state not in ("COMPLETED", *_LIVE):
                    known[status] += count
        return {id_: Tally(**known) for id_, known in found.items()}

    def _rows(self, condition: str, values: Sequence[Any]) -> builtins.list[SweepRow]:
        names = [item.name for item in fields(SweepRow)]
        sql = f"SELECT {', '.join(names)} FROM sweeps WHERE {condition} ORDER BY created_at DESC, seq DESC"
        with self._store.read() as connection:
            rows = connection.execute(sql, values).fetchall()
        return [
            SweepRow(**{name: load(row[name], None) if name in _PLAIN else row[name] for name in names}) for row in rows
        ]

    def _trials(self, condition: str, values: Sequence[Any]) -> builtins.list[Trial]:
        sql = f"SELECT sweep, number, point, parameters, job, status, rung, note FROM trials WHERE {condition}"
        with self._store.read() as connection:
            return [_trial(row) for row in connection.execute(sql, values)]


def _stored(trial: Trial, at: str) -> tuple[Any, ...]:
    plain = (trial.sweep, trial.number, trial.point, dump(trial.parameters), trial.job, trial.status, trial.rung)
    return (*plain, dump(trial.note), at)


def _trial(row: sqlite3.Row) -> Trial:
    return Trial(**{**dict(row), "parameters": load(row["parameters"], {}), "note": load(row["note"], {})})


def _unknown(word: str) -> NotFoundError:
    return NotFoundError(
        f"there is no sweep {word!r}", code="no_such_sweep", remedy="`jobrunner sweep ls` shows those that there are."
    )
