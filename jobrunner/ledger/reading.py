"""The ledger's questions. Each takes an open connection; none changes anything."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from jobrunner.core.errors import NotFoundError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger.records import (
    ROW_COLUMNS,
    Attempt,
    Checkpoint,
    Event,
    HostRow,
    JobDetail,
    LiveJob,
    StagedJob,
    Wish,
    job_row,
    load,
)

RECENT = 100
"""A listing shows every job that is not final, and so many of the newest final ones."""

_NEWEST = "ORDER BY submitted_at DESC, seq DESC"


def jobs(
    connection: sqlite3.Connection,
    *,
    states: Sequence[JobState] = (),
    name: str | None = None,
    host: str | None = None,
    sweep: str | None = None,
    everything: bool = False,
    limit: int | None = None,
) -> list[JobRow]:
    """Matching jobs, newest first: see `Ledger.list`."""
    conditions, values = ["1"], list[Any]()
    if states:
        conditions.append(f"state IN ({','.join('?' * len(states))})")
        values += [state.value for state in states]
    for condition, value in (("name GLOB ?", name), ("host = ?", host), ("sweep = ?", sweep)):
        if value is not None:
            conditions.append(condition)
            values.append(value)
    where = " AND ".join(conditions)
    if everything or sweep is not None:
        sql = f"SELECT {ROW_COLUMNS} FROM jobs WHERE {where} {_NEWEST} LIMIT ?"
        rows = connection.execute(sql, (*values, -1 if limit is None else limit)).fetchall()
        return [job_row(row) for row in rows]
    half = f"SELECT {ROW_COLUMNS}, seq FROM jobs WHERE final = {{}} AND {where} {_NEWEST} LIMIT ?"
    sql = f"SELECT * FROM ({half.format(0)}) UNION ALL SELECT * FROM ({half.format(1)}) {_NEWEST} LIMIT ?"
    most = -1 if limit is None else limit
    recent = RECENT if limit is None else min(limit, RECENT)
    rows = connection.execute(sql, (*values, most, *values, recent, most)).fetchall()
    return [job_row(tuple(row)[:-1]) for row in rows]


def job(connection: sqlite3.Connection, id_: str) -> JobRow:
    """The row of one job by its whole id. NotFoundError."""
    row = connection.execute(f"SELECT {ROW_COLUMNS} FROM jobs WHERE id = ?", (id_,)).fetchone()
    if row is None:
        raise no_job(id_)
    return job_row(row)


def detail(connection: sqlite3.Connection, id_: str) -> JobDetail:
    """Everything about one job but its history. NotFoundError."""
    found = stored(connection, id_)
    if found is None:
        raise no_job(id_)
    asked = connection.execute("SELECT * FROM requests WHERE job = ?", (id_,)).fetchone()
    return JobDetail(
        row=job(connection, id_),
        request=load(asked["request"], {}) if asked else {},
        instance=found["instance"],
        spec_digest=asked["spec_digest"] if asked else None,
        code_digest=asked["code_digest"] if asked else None,
        submitter=load(asked["submitter"], {}) if asked else {},
        priority=found["priority"],
        hold=bool(found["hold"]),
        not_before=found["not_before"],
        evidence=load(found["evidence"], None),
        log_bytes=found["log_bytes"],
        launcher=found["launcher"],
        warnings=load(found["warnings"], []),
        error=found["error"],
        offset=found["offset"],
        confirmed=bool(found["confirmed"]),
        updated_at=found["updated_at"],
    )


def stored(connection: sqlite3.Connection, id_: str) -> dict[str, Any] | None:
    """All columns of one job's row; None if there is none."""
    row = connection.execute("SELECT * FROM jobs WHERE id = ?", (id_,)).fetchone()
    return None if row is None else dict(row)


def no_job(id_: str) -> NotFoundError:
    """The error for an id that the ledger does not hold."""
    return NotFoundError(f"no job has the id {id_!r}", code="no_such_job", remedy="See `jobrunner ls --all`.")


def live_by_host(connection: sqlite3.Connection) -> dict[str, list[LiveJob]]:
    """The jobs that are not final, by host alias, oldest first. Jobs that have no host yet are left out."""
    found: dict[str, list[LiveJob]] = {}
    columns = "host, id, name, state, instance, offset, confirmed"
    sql = f"SELECT {columns} FROM jobs WHERE final = 0 AND host IS NOT NULL ORDER BY seq"
    for host, id_, name, state, instance, offset, confirmed in connection.execute(sql):
        found.setdefault(host, []).append(LiveJob(id_, name, JobState(state), instance, offset, bool(confirmed)))
    return found


def waits(connection: sqlite3.Connection) -> dict[str, list[str]]:
    """The live jobs whose request has `after`, with the ids that it names."""
    sql = (
        "SELECT id, json_extract(request, '$.run.after') FROM jobs JOIN requests ON job = id"
        ' WHERE final = 0 AND request NOT LIKE \'%"after":[],"retry":%\''
    )
    found: dict[str, list[str]] = {}
    for id_, text in connection.execute(sql):
        jobs = [item.get("job") for item in load(text, []) or [] if isinstance(item, dict)]
        if jobs:
            found[id_] = [str(job) for job in jobs]
    return found


def staged(connection: sqlite3.Connection, spec_digest: str | None, code_digest: str | None) -> list[StagedJob]:
    """STAGING jobs whose host was never seen to have them, oldest first; of one spec and code, or (None) of any."""
    columns = ", ".join(f"jobs.{column.strip()}" for column in ROW_COLUMNS.split(","))
    sql = (
        f"SELECT {columns}, request, submitter FROM jobs JOIN requests ON job = id"
        " WHERE final = 0 AND confirmed = 0 AND state = 'STAGING'"
    )
    values: tuple[str | None, ...] = ()
    if spec_digest is not None:
        sql += " AND spec_digest = ? AND code_digest IS ?"
        values = (spec_digest, code_digest)
    rows = connection.execute(sql + " ORDER BY seq", values).fetchall()
    return [StagedJob(job_row(tuple(row)[:-2]), load(row[-2], {}), load(row[-1], {})) for row in rows]


def events(connection: sqlite3.Connection, id_: str) -> list[Event]:
    """A job's timeline: what its host noted in the host's own order, whatever its clock did meanwhile.

    What this machine noted stands before the first of the host's events that says a later time.
    """
    sql = "SELECT at, kind, data FROM events WHERE job = ? AND source = ? ORDER BY n"
    host, mine = (
        [Event(row[0], row[1], source, load(row[2], {})) for row in connection.execute(sql, (id_, source)).fetchall()]
        for source in ("host", "client")
    )
    found: list[Event] = []
    for event in host:
        while mine and (mine[0].at or "") < (event.at or ""):
            found.append(mine.pop(0))
        found.append(event)
    return found + mine


def attempts(connection: sqlite3.Connection, id_: str) -> list[Attempt]:
    """A job's attempts, first to last."""
    rows = connection.execute("SELECT * FROM attempts WHERE job = ? ORDER BY number", (id_,)).fetchall()
    keys = ("number", "started_at", "ended_at", "exit_code", "signal", "reason", "log_bytes")
    return [Attempt(**{key: row[key] for key in keys}, cards=load(row["cards"], [])) for row in rows]


def checkpoints(connection: sqlite3.Connection, id_: str) -> list[Checkpoint]:
    """A job's checkpoints, in the order in which its host gave them."""
    rows = connection.execute("SELECT * FROM checkpoints WHERE job = ? ORDER BY position, name", (id_,)).fetchall()
    keys = ("name", "path", "step", "size", "sha256", "modified_at", "attempt", "pulled_to")
    return [
        Checkpoint(
            **{key: row[key] for key in keys},
            complete=bool(row["complete"]),
            removed=bool(row["removed"]),
            metrics=load(row["metrics"], {}),
        )
        for row in rows
    ]


def hosts(connection: sqlite3.Connection, alias: str | None = None) -> list[HostRow]:
    """Every remembered host by alias, or just the one."""
    sql, values = (
        ("SELECT * FROM hosts ORDER BY alias", ())
        if alias is None
        else ("SELECT * FROM hosts WHERE alias = ?", (alias,))
    )
    return [
        HostRow(**{**dict(row), "drained": bool(row["drained"]), "facts": load(row["facts"], {})})
        for row in connection.execute(sql, values).fetchall()
    ]


def pending_wishes(connection: sqlite3.Connection, alias: str) -> list[Wish]:
    """Cancels that the jobs' host has not been told yet, oldest first."""
    rows = connection.execute(
        "SELECT w.job, w.kind, w.at, w.grace_s FROM wishes w JOIN jobs ON jobs.id = w.job"
        " WHERE w.applied_at IS NULL AND jobs.host = ? AND jobs.final = 0 ORDER BY w.seq",
        (alias,),
    ).fetchall()
    return [Wish(*row) for row in rows]


def completions(connection: sqlite3.Connection, prefix: str, limit: int) -> list[str]:
    """Names and ids that begin with a text, newest first, names before ids."""
    end = prefix + "\U0010ffff"
    names = connection.execute(
        "SELECT name FROM jobs WHERE name >= ? AND name < ? GROUP BY name ORDER BY max(submitted_at) DESC LIMIT ?",
        (prefix, end, limit),
    ).fetchall()
    ids = connection.execute(
        f"SELECT id FROM jobs WHERE id >= ? AND id < ? {_NEWEST} LIMIT ?", (prefix, end, limit)
    ).fetchall()
    return list(dict.fromkeys(row[0] for row in (*names, *ids)))[:limit]


def counts(connection: sqlite3.Connection) -> dict[JobState, int]:
    """How many jobs are in each state (states without a job are left out)."""
    rows = connection.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall()
    return {JobState(state): count for state, count in rows}


def meta(connection: sqlite3.Connection, key: str) -> str | None:
    """A remembered value that belongs to no job."""
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return None if row is None else str(row[0])
