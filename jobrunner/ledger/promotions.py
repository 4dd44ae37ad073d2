"""Promoted models, and what else is done with jobs once they have ended, as the ledger remembers it."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from jobrunner.core.values import dataclass
from jobrunner.ledger.store import Store


@dataclass(frozen=True)
class Promotion:
    """A decision about a model. `decision` is `promoted`, `kept` (the old one), `failed` or `rolled_back`.

    `target` is the spec's `promote.to`, `path` the model on the host, `version` its folder's name there, `value` the
    model's metric, `against` that of the model kept before; `current` if it is the one that is kept now.
    """

    target: str
    at: str
    decision: str
    why: str | None = None
    job: str | None = None
    host: str | None = None
    checkpoint: str | None = None
    path: str | None = None
    version: str | None = None
    sha256: str | None = None
    metric: str | None = None
    direction: str | None = None
    value: float | None = None
    against: float | None = None
    schedule: str | None = None
    pulled_to: str | None = None
    current: bool = False
    seq: int | None = None


@dataclass(frozen=True)
class Followup:
    """Something that is to be done with a job that has ended: `kind` is `pull` or `promote`."""

    job: str
    kind: str
    done: bool
    tries: int
    tried_at: str
    why: str | None = None


class Promotions:
    """The part of the ledger about promoted models. Every method raises LedgerError as `Ledger` does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, item: Promotion) -> None:
        """Note a decision; one that is `current` takes the place of the target's current one."""
        record = {**asdict(item), "current": int(item.current)}
        del record["seq"]
        with self._store.write("noting a promotion in the ledger") as db:
            if item.current:
                db.execute("UPDATE promotions SET current = 0 WHERE target = ?", (item.target,))
            db.insert("promotions", [record])

    def set_pulled(self, seq: int, path: str) -> None:
        """Remember where a model was fetched to."""
        with self._store.write() as db:
            db.execute("UPDATE promotions SET pulled_to = ? WHERE seq = ?", (path, seq))

    def list(self, target: str | None = None) -> builtins.list[Promotion]:
        """Decisions, newest first; of one target, or of all."""
        return self._rows("1" if target is None else "target = ?", () if target is None else (target,))

    def current(self, target: str) -> Promotion | None:
        """The model that is kept for a target; None if none was ever promoted."""
        found = self._rows("target = ? AND current = 1", (target,))
        return found[0] if found else None

    def of_jobs(self, jobs: Sequence[str]) -> dict[str, Promotion]:
        """The newest decision about each of these jobs' models (rollbacks are none)."""
        found: dict[str, Promotion] = {}
        for start in range(0, len(jobs), 500):
            some = jobs[start : start + 500]
            marks = ", ".join("?" * len(some))
            for item in self._rows(f"job IN ({marks}) AND decision <> 'rolled_back'", some):
                if item.job is not None:
                    found.setdefault(item.job, item)
        return found

    def ended_jobs(self, kind: str, since: str) -> builtins.list[str]:
        """Jobs that ended at `since` or later and that have not been followed up in this way, oldest first."""
        sql = (
            "SELECT id FROM jobs WHERE final = 1 AND ended_at >= ? AND NOT EXISTS (SELECT 1 FROM followups"
            " WHERE followups.job = jobs.id AND kind = ? AND done = 1) ORDER BY ended_at, seq"
        )
        with self._store.read() as connection:
            return [str(row[0]) for row in connection.execute(sql, (since, kind))]

    def followup(self, job: str, kind: str) -> Followup | None:
        """What was tried so far; None for nothing."""
        sql = "SELECT job, kind, done, tries, tried_at, why FROM followups WHERE job = ? AND kind = ?"
        with self._store.read() as connection:
            row = connection.execute(sql, (job, kind)).fetchone()
        return None if row is None else Followup(**{**dict(row), "done": bool(row["done"])})

    def note_followup(self, job: str, kind: str, at: str, *, done: bool, why: str | None = None) -> None:
        """Note that it was done, or tried in vain."""
        sql = (
            "INSERT INTO followups (job, kind, done, tries, tried_at, why) VALUES (?, ?, ?, 1, ?, ?) ON CONFLICT"
            " (job, kind) DO UPDATE SET done = excluded.done, tries = tries + 1, tried_at = excluded.tried_at,"
            " why = excluded.why"
        )
        with self._store.write() as db:
            db.execute(sql, (job, kind, int(done), at, why))

    def note_done(self, jobs: Sequence[str], kind: str, at: str) -> None:
        """Note of many jobs that there is nothing to do (any more)."""
        if not jobs:
            return
        sql = "INSERT OR IGNORE INTO followups (job, kind, done, tries, tried_at) VALUES (?, ?, 1, 0, ?)"
        with self._store.write() as db:
            for job in jobs:
                db.execute(sql, (job, kind, at))

    def _rows(self, condition: str, values: Sequence[Any]) -> builtins.list[Promotion]:
        names = ", ".join(item.name for item in fields(Promotion))
        with self._store.read() as connection:
            rows = connection.execute(
                f"SELECT {names} FROM promotions WHERE {condition} ORDER BY seq DESC", tuple(values)
            ).fetchall()
        return [Promotion(**{**dict(row), "current": bool(row["current"])}) for row in rows]
