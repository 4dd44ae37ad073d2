"""`Ledger`: the methods that commands call. Times come in as arguments, results are frozen values."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import NotFoundError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import reading, words, writing
from jobrunner.ledger.records import (
    AS_TEXT,
    Attempt,
    Checkpoint,
    Event,
    EventBatch,
    HostRow,
    JobDetail,
    LiveJob,
    Outcome,
    StagedJob,
    Wish,
    dump,
    exact,
)
from jobrunner.ledger.sightings import Sighting
from jobrunner.ledger.store import Store

if TYPE_CHECKING:
    from jobrunner.ledger.metrics import Metrics
    from jobrunner.ledger.moves import Moves
    from jobrunner.ledger.promotions import Promotions
    from jobrunner.ledger.schedules import Schedules
    from jobrunner.ledger.sweeps import Sweeps

Json = Mapping[str, Any]


class Ledger:
    """The jobs that this machine knows of. Every method raises LedgerError if the file cannot be read or written.

    One object may be used by several threads; any number of processes may have the file open.
    """

    def __init__(self, path: Path) -> None:
        """Open the ledger at `path`; it is created (0600, its folder 0700) or brought up to date where needed."""
        self._store = Store(path)
        self.path = path

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person should know about where the ledger lies."""
        return tuple(self._store.warnings)

    def close(self) -> None:
        """Close the file."""
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    # Submitting

    def insert_staging(
        self, row: JobRow, request: Json, spec_digest: str, code_digest: str | None, submitter: Json
    ) -> None:
        """Remember a job before anything is sent. `submitter` tells which process sends it (host, pid, its start)."""
        at = row.submitted_at or ""
        with self._store.write("noting a new job in the ledger") as db:
            writing.insert_job(db, row, at)
            writing.insert_request(
                db, row.id, request, spec_digest=spec_digest, code_digest=code_digest, submitter=submitter
            )

    def find_resumable(self, spec_digest: str, code_digest: str | None) -> builtins.list[StagedJob]:
        """Jobs of the same spec and code whose submit never learned that the host had them, oldest first."""
        with self._store.read() as connection:
            return reading.staged(connection, spec_digest, code_digest)

    def unsent(self) -> builtins.list[StagedJob]:
        """All jobs whose submit never learned that the host had them (to find those whose submitter is dead)."""
        with self._store.read() as connection:
            return reading.staged(connection, None, None)

    def take_over(self, id_: str, expected: Json, submitter: Json) -> bool:
        """Become the submitter of a staged job in place of a dead one; False if somebody else was quicker."""
        with self._store.write() as db:
            sql = "UPDATE requests SET submitter = ? WHERE job = ? AND submitter = ?"
            return bool(db.execute(sql, (dump(submitter), id_, dump(expected))).rowcount)

    def place(self, id_: str, alias: str, instance: str | None, at: str) -> None:
        """A staged job goes to this host, or a queued one moves there: STAGING until that host is seen to have it."""
        with self._store.write() as db:
            db.execute(
                "UPDATE jobs SET host = ?, instance = ?, state = 'STAGING', phase = NULL, confirmed = 0, progress = 0,"
                " offset = 0, unreachable = 0, error = NULL, updated_at = ? WHERE id = ? AND final = 0",
                (alias, instance, at, id_),
            )
            db.execute('UPDATE metric_offsets SET "offset" = 0, done = 0 WHERE job = ?', (id_,))

    def delete_unsent(self, id_: str) -> bool:
        """Remove a job that no host was ever seen to have; False if there is none such (then nothing changes)."""
        with self._store.write() as db:
            sql = "SELECT 1 FROM jobs WHERE id = ? AND state = 'STAGING' AND confirmed = 0"
            if not db.execute(sql, (id_,)).fetchone():
                return False
            writing.forget(db, [id_])
            return True

    # What hosts say

    def apply_view(
        self, alias: str, instance: str, view: Json, seen_at: str, events: EventBatch | None = None
    ) -> Outcome:
        """Take over one job view of a host (docs/host.md); see `apply_views`."""
        id_ = str(view["id"])
        return self.apply_views(alias, instance, {id_: view}, seen_at, {id_: events} if events else {})[id_]

    def apply_views(
        self,
        alias: str,
        instance: str,
        views: Mapping[str, Json | None],
        seen_at: str,
        events: Mapping[str, EventBatch] | None = None,
    ) -> dict[str, Outcome]:
        """Take over what one host said about its jobs, in one transaction; tells what became of each view.

        Final states never change, an older sighting changes nothing, and a machine that never had a job has no say.
        """
        with self._store.write("noting what a host said in the ledger") as db:
            sighting = Sighting(alias, instance, seen_at)
            outcomes = writing.apply_views(db, views, sighting, events or {})
            writing.save_host(db, alias, {"instance": instance, "last_seen": seen_at, "error": None})
        return outcomes

    def mark_unreachable(self, alias: str, error: str, at: str, ids: Sequence[str] | None = None) -> None:
        """No answer (or not from the machine that has these jobs): live rows of the alias say so; no state changes."""
        with self._store.write() as db:
            writing.mark_unreachable(db, alias, ids, error, at)
            writing.save_host(db, alias, {"error": error})

    def put_record(self, alias: str, instance: str, record: Json, seen_at: str) -> Outcome:
        """Adopt one job as the host's `records` tells it: request, view, attempts, events, checkpoints."""
        with self._store.write("adopting a job into the ledger") as db:
            return writing.put_record(db, Sighting(alias, instance, seen_at), record)

    # Questions

    def list(
        self,
        *,
        states: Sequence[JobState] = (),
        name: str | None = None,
        host: str | None = None,
        sweep: str | None = None,
        all: bool = False,
        limit: int | None = None,
    ) -> builtins.list[JobRow]:
        """Jobs, newest first: every one that is not final, and the newest 100 final ones of those that match.

        `all` (and a `sweep`) lifts the 100. `name` is a shell pattern (`*`, `?`, `[…]`), case counts.
        """
        with self._store.read() as connection:
            return reading.jobs(
                connection, states=states, name=name, host=host, sweep=sweep, everything=all, limit=limit
            )

    def counts(self) -> dict[JobState, int]:
        """How many jobs are in each state."""
        with self._store.read() as connection:
            return reading.counts(connection)

    def get(self, id_: str) -> JobRow:
        """The row of a job by its whole id. NotFoundError."""
        with self._store.read() as connection:
            return reading.job(connection, id_)

    def detail(self, id_: str) -> JobDetail:
        """Everything about a job but its history. NotFoundError."""
        with self._store.read() as connection:
            return reading.detail(connection, id_)

    def resolve(self, word: str) -> str:
        """The id that a person means by an id, a name or a prefix. NotFoundError; UsageError if it is ambiguous."""
        with self._store.read() as connection:
            return words.resolve(connection, word)

    def completion_ids(self, prefix: str, limit: int = 50) -> builtins.list[str]:
        """Names and ids that begin with a text, newest first, for the shell's completion."""
        with self._store.read() as connection:
            return reading.completions(connection, prefix, limit)

    def live_by_host(self) -> dict[str, builtins.list[LiveJob]]:
        """The jobs that are not final, by host alias."""
        with self._store.read() as connection:
            return reading.live_by_host(connection)

    def waits(self) -> dict[str, builtins.list[str]]:
        """The live jobs that wait for others (`after`), with the ids of those."""
        with self._store.read() as connection:
            return reading.waits(connection)

    def events(self, id_: str) -> builtins.list[Event]:
        """A job's timeline."""
        with self._store.read() as connection:
            return reading.events(connection, id_)

    def attempts(self, id_: str) -> builtins.list[Attempt]:
        """A job's attempts, first to last."""
        with self._store.read() as connection:
            return reading.attempts(connection, id_)

    def checkpoints(self, id_: str) -> builtins.list[Checkpoint]:
        """A job's checkpoints, in the host's order."""
        with self._store.read() as connection:
            return reading.checkpoints(connection, id_)

    # Wishes, notes, files

    def request_cancel(self, ids: Sequence[str], at: str, grace_s: float | None) -> builtins.list[str]:
        """Keep the wish that these jobs end; returns those that are not final already. NotFoundError."""
        with self._store.write() as db:
            return writing.request_cancel(db, ids, at, grace_s)

    def withdraw_cancel(self, id_: str) -> bool:
        """Take a wish back that no host was told of; False if there is none such."""
        with self._store.write() as db:
            return writing.withdraw_cancel(db, id_)

    def pending_wishes(self, alias: str) -> builtins.list[Wish]:
        """Wishes that the host of this alias has not been told yet, oldest first."""
        with self._store.read() as connection:
            return reading.pending_wishes(connection, alias)

    def applied(self, ids: Iterable[str], at: str) -> None:
        """The host has been told of the wishes for these jobs."""
        with self._store.write() as db:
            writing.applied(db, ids, at)

    def add_event(self, id_: str, kind: str, at: str, data: Json | None = None) -> None:
        """Append something that this machine did or saw to a job's timeline."""
        with self._store.write() as db:
            writing.add_event(db, id_, kind, data or {}, at)

    def replace_checkpoints(self, id_: str, items: Iterable[Json]) -> None:
        """The job's whole list of checkpoints, as the host gives it."""
        with self._store.write() as db:
            writing.replace_checkpoints(db, id_, items)

    def set_pulled(self, id_: str, name: str, path: str) -> None:
        """Remember where a checkpoint was fetched to. NotFoundError if the job has no such checkpoint."""
        with self._store.write() as db:
            sql = f"UPDATE checkpoints SET pulled_to = {AS_TEXT} WHERE job = ? AND name = {AS_TEXT}"
            if not db.execute(sql, (exact(path), id_, exact(name))).rowcount:
                raise NotFoundError(
                    f"job {id_} has no checkpoint {name!r}",
                    code="no_such_checkpoint",
                    remedy=f"See `jobrunner checkpoints {id_}`.",
                )

    def forget(self, ids: Iterable[str]) -> None:
        """Remove every trace of jobs from the ledger (their hosts keep what they have)."""
        with self._store.write() as db:
            writing.forget(db, ids)

    # Sweeps, metrics, schedules: see the classes

    @cached_property
    def sweeps(self) -> Sweeps:
        """Sweeps and their trials."""
        from jobrunner.ledger.sweeps import Sweeps

        return Sweeps(self._store)

    @cached_property
    def moves(self) -> Moves:
        """Jobs that are on their way from one host to another."""
        from jobrunner.ledger.moves import Moves

        return Moves(self._store)

    @cached_property
    def metrics(self) -> Metrics:
        """Numbers that jobs told, over their steps."""
        from jobrunner.ledger.metrics import Metrics

        return Metrics(self._store)

    @cached_property
    def schedules(self) -> Schedules:
        """Schedules and their due times."""
        from jobrunner.ledger.schedules import Schedules

        return Schedules(self._store)

    @cached_property
    def promotions(self) -> Promotions:
        """Models that were promoted, and what else is done with jobs once they have ended."""
        from jobrunner.ledger.promotions import Promotions

        return Promotions(self._store)

    # Hosts and the file itself

    def put_host(self, alias: str, **changes: Any) -> HostRow:
        """Change fields of a HostRow, adding the host if it is new; what is not given stays."""
        unknown = set(changes) - set(HostRow.__dataclass_fields__)
        if unknown:
            raise TypeError(f"a host has no {', '.join(sorted(unknown))}")
        with self._store.write() as db:
            writing.save_host(db, alias, changes)
            return reading.hosts(db.conn, alias)[0]

    def host(self, alias: str) -> HostRow | None:
        """What is known of a host; None if nothing."""
        with self._store.read() as connection:
            found = reading.hosts(connection, alias)
        return found[0] if found else None

    def hosts(self) -> builtins.list[HostRow]:
        """Every host that was ever noted, by alias."""
        with self._store.read() as connection:
            return reading.hosts(connection)

    def meta(self, key: str) -> str | None:
        """A remembered value that belongs to no job or host."""
        with self._store.read() as connection:
            return reading.meta(connection, key)

    def set_meta(self, key: str, value: str) -> None:
        """Remember such a value."""
        with self._store.write() as db:
            db.insert("meta", [{"key": key, "value": value}], "replace")

    def integrity_check(self) -> builtins.list[str]:
        """What SQLite finds wrong with the file; empty if it is sound."""
        with self._store.read("checking the ledger") as connection:
            found = [str(row[0]) for row in connection.execute("PRAGMA integrity_check")]
        return [] if found == ["ok"] else found
