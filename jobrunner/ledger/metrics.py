"""Numbers that jobs told, over their steps.

`metric_offsets` has a row for each job whose request declares metrics: how far its host's journal of them is read, and
whether that is all (`done`). `metric_marks` names, for each job and metric, its last, least and greatest sample, so
that a sweep of thousands of trials is ranked without reading their curves.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from jobrunner.core.values import dataclass
from jobrunner.ledger.records import plain, whole
from jobrunner.ledger.rows import Writer
from jobrunner.ledger.store import Store
from jobrunner.ledger.writing import forget_metrics

Direction = Literal["min", "max"]
_COLUMNS = "m.name, m.step, m.value, m.at, m.attempt"
_MANY = 500  # SQLite's least limit of places in a statement is 999
_ADD = "INSERT INTO metrics (job, name, attempt, step, value, at) VALUES (?, ?, ?, ?, ?, ?)"
_MARKS = "count, last_seq, low_seq, low, high_seq, high"


@dataclass(frozen=True)
class Sample:
    """One value of a metric. `value` may be NaN or infinite; `step` is None where nothing told one. Times are UTC."""

    name: str
    step: float | None
    value: float
    at: str | None = None
    attempt: int = 1


@dataclass(frozen=True)
class OpenJournal:
    """A job whose host may have more samples. `offset`: where to read on; `final`: the job itself has ended."""

    job: str
    offset: int
    final: bool
    instance: str | None


class Metrics:
    """The part of the ledger about metrics. Every method raises LedgerError as `Ledger` does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, job: str, offset: int, next: int, samples: Iterable[Sample], *, done: bool = False) -> bool:
        """Append what a host's journal has between two offsets; False if that does not go on where the ledger stopped.

        A journal read from its beginning replaces what is there. The same batch twice adds nothing. `done`: the job has
        ended and this was the rest.
        """
        with self._store.write("noting metrics in the ledger") as db:
            return take(db, job, offset, next, samples, done=done)

    def open_by_host(self) -> dict[str, builtins.list[OpenJournal]]:
        """Jobs that declare metrics and whose journal is not known to be read to its end, by host alias."""
        found: dict[str, list[OpenJournal]] = {}
        sql = (
            'SELECT j.host, o.job, o."offset", j.final, j.instance FROM metric_offsets o JOIN jobs j ON j.id = o.job'
            " WHERE o.done = 0 AND j.host IS NOT NULL ORDER BY j.seq"
        )
        with self._store.read() as connection:
            for host, job, offset, final, instance in connection.execute(sql):
                found.setdefault(host, []).append(OpenJournal(job, offset, bool(final), instance))
        return found

    def close(self, job: str) -> None:
        """Nothing more will come of this job: its host no longer has it."""
        with self._store.write() as db:
            db.execute("UPDATE metric_offsets SET done = 1 WHERE job = ?", (job,))

    def series(self, job: str, name: str) -> builtins.list[Sample]:
        """All samples of a metric in the order in which they were seen, over all attempts."""
        sql = f"SELECT {_COLUMNS} FROM metrics m WHERE job = ? AND name = ? ORDER BY seq"
        with self._store.read() as connection:
            return [_sample(row) for row in connection.execute(sql, (job, name))]

    def names(self, job: str) -> builtins.list[str]:
        """The metrics of which the job told at least one value, in the order of their first."""
        sql = "SELECT name FROM metric_marks WHERE job = ? ORDER BY seq"
        with self._store.read() as connection:
            return [str(row[0]) for row in connection.execute(sql, (job,))]

    def count(self, job: str, name: str) -> int:
        """How many samples of a metric are kept."""
        with self._store.read() as connection:
            row = connection.execute(
                "SELECT count FROM metric_marks WHERE job = ? AND name = ?", (job, name)
            ).fetchone()
        return int(row[0]) if row else 0

    def last(self, jobs: Sequence[str], name: str) -> dict[str, Sample]:
        """The last value of a metric by job; jobs that told none are left out."""
        return self._marked(jobs, name, "last_seq")

    def best(self, jobs: Sequence[str], name: str, direction: Direction) -> dict[str, Sample]:
        """The best value of a metric by job, the earliest of equals; NaN never is, so a job of NaN only is left out."""
        return self._marked(jobs, name, "low_seq" if direction == "min" else "high_seq")

    def curves(self, jobs: Sequence[str], name: str) -> dict[str, builtins.list[tuple[float | None, float]]]:
        """Steps and values of a metric by job, in the order in which they were seen; of many jobs at once."""
        found: dict[str, list[tuple[float | None, float]]] = {}
        with self._store.read() as connection:
            for at in range(0, len(jobs), _MANY):
                some = jobs[at : at + _MANY]
                chosen = f"name = ? AND job IN ({','.join('?' * len(some))})"
                sql = f"SELECT job, step, value FROM metrics WHERE {chosen} ORDER BY seq"
                for job, step, value in connection.execute(sql, (name, *some)):
                    found.setdefault(job, []).append((step, math.nan if value is None else value))
        return found

    def _marked(self, jobs: Sequence[str], name: str, column: str) -> dict[str, Sample]:
        found: dict[str, Sample] = {}
        with self._store.read() as connection:
            for at in range(0, len(jobs), _MANY):
                some = jobs[at : at + _MANY]
                sql = (
                    f"SELECT m.job, {_COLUMNS} FROM metric_marks k JOIN metrics m ON m.seq = k.{column}"
                    f" WHERE k.name = ? AND k.job IN ({','.join('?' * len(some))})"
                )
                for row in connection.execute(sql, (name, *some)):
                    found[row[0]] = _sample(tuple(row)[1:])
        return found


def take(db: Writer, job: str, offset: int, next: int, samples: Iterable[Sample], *, done: bool = False) -> bool:
    """`Metrics.add` inside a transaction."""
    row = db.execute('SELECT "offset" FROM metric_offsets WHERE job = ?', (job,)).fetchone()
    known = int(row[0]) if row else 0
    if offset not in (known, 0) or next < offset:
        return False
    if next > known:
        if offset == 0 and row:
            forget_metrics(db, job)
        _append(db, job, samples)
    elif offset != known:
        return False
    sql = 'INSERT OR REPLACE INTO metric_offsets (job, "offset", done) VALUES (?, ?, ?)'
    db.execute(sql, (job, max(known, next), int(done)))
    return True


def _append(db: Writer, job: str, samples: Iterable[Sample]) -> None:
    marks: dict[str, list[Any]] = {}
    for row in db.execute(f"SELECT name, {_MARKS} FROM metric_marks WHERE job = ?", (job,)):
        marks[row[0]] = list(row)[1:]
    touched: dict[str, None] = {}
    for sample in samples:
        name, value = plain(sample.name) or "", float(sample.value)
        stored = None if math.isnan(value) else value
        step = None if sample.step is None or math.isnan(sample.step) else float(sample.step)
        values = (job, name, whole(sample.attempt), step, stored, plain(sample.at))
        seq = db.execute(_ADD, values).lastrowid
        mark = marks.setdefault(name, [0, None, None, None, None, None])
        mark[0], mark[1] = mark[0] + 1, seq
        if stored is not None and (mark[2] is None or stored < mark[3]):
            mark[2], mark[3] = seq, stored
        if stored is not None and (mark[4] is None or stored > mark[5]):
            mark[4], mark[5] = seq, stored
        touched[name] = None
    for name in touched:
        _save_mark(db, job, name, marks[name])


def _save_mark(db: Writer, job: str, name: str, mark: Sequence[Any]) -> None:
    columns = ", ".join(f"{column} = ?" for column in _MARKS.split(", "))
    if not db.execute(f"UPDATE metric_marks SET {columns} WHERE job = ? AND name = ?", (*mark, job, name)).rowcount:
        row = dict(zip(_MARKS.split(", "), mark, strict=True))
        db.insert("metric_marks", [{"job": job, "name": name, **row}])


def _sample(row: Sequence[Any]) -> Sample:
    name, step, value, at, attempt = row
    return Sample(name, step, math.nan if value is None else value, at, attempt or 1)
