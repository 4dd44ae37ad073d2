"""Jobs that are on their way from one host to another: noted before the first step, until the last one is done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, field, fields
from typing import Any

from jobrunner.core.values import dataclass
from jobrunner.ledger import writing
from jobrunner.ledger.records import dump, load
from jobrunner.ledger.store import Store

Json = Mapping[str, Any]
_KEY = "move:"


@dataclass(frozen=True)
class Move:
    """A job that leaves `source` for `target`, for the `moves`-th time. `placed`: the old host has let go of it, and
    the ledger says that it is being sent to the new one. `share` is what its sweep may run at once there
    (`before`: on the source); `home`: it goes back to where it came from, because the other host did not take it.

    `submitter` is the process that does it. A move that was cut is gone on with by the next visit."""

    id: str
    source: str
    target: str
    moves: int
    placed: bool = False
    share: int | None = None
    before: int | None = None
    home: bool = False
    submitter: Json = field(default_factory=dict)


_PLANNED = (
    "run.after", "run.card_ids", "run.cards", "run.device", "sweep.parallel", "retry_of", "spec.hosts", "spec.tags",
)  # fmt: skip


@dataclass(frozen=True)
class Candidate:
    """A live job as plans of moves need it; of its request only what `_PLANNED` names."""

    id: str
    host: str
    state: str
    sweep: str | None
    cancelled: bool
    hold: bool
    not_before: str | None
    attempt: int | None
    code_digest: str | None
    request: dict[str, Any]


class Moves:
    """The part of the ledger about moves. Every method raises LedgerError as `Ledger` does."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def all(self) -> dict[str, Move]:
        """Every move that is not done, by job."""
        with self._store.read() as connection:
            rows = connection.execute("SELECT key, value FROM meta WHERE key >= 'move:' AND key < 'move;'").fetchall()
        names = {item.name for item in fields(Move)}
        found = [load(value, None) for _, value in rows]
        return {
            item["id"]: Move(**{key: value for key, value in item.items() if key in names}) for item in found if item
        }

    def begin(self, moves: Sequence[Move]) -> list[Move]:
        """Note moves of jobs that are queued on their source; those that somebody else moves already are left out."""
        begun = []
        with self._store.write("noting moves in the ledger") as db:
            for move in moves:
                sql = (
                    "INSERT OR IGNORE INTO meta (key, value) SELECT ?, ? FROM jobs"
                    " WHERE id = ? AND state = 'QUEUED' AND host = ?"
                )
                if db.execute(sql, (_KEY + move.id, _text(move), move.id, move.source)).rowcount:
                    begun.append(move)
        return begun

    def note(self, move: Move) -> None:
        """Note a move that a host tells of, unless one of that job is noted."""
        with self._store.write() as db:
            db.execute("INSERT OR IGNORE INTO meta (key, value) VALUES (?, ?)", (_KEY + move.id, _text(move)))

    def take_over(self, old: Move, new: Move) -> bool:
        """Change a move; False if somebody else has changed it meanwhile."""
        with self._store.write() as db:
            sql = "UPDATE meta SET value = ? WHERE key = ? AND value = ?"
            return bool(db.execute(sql, (_text(new), _KEY + old.id, _text(old))).rowcount)

    def place(self, move: Move, request: Json, at: str) -> None:
        """The job is on its way to the target: STAGING there, with this request."""
        with self._store.write("noting a move in the ledger") as db:
            changed = db.execute(
                "UPDATE jobs SET host = ?, instance = NULL, state = 'STAGING', phase = NULL, confirmed = 0,"
                " progress = 0, offset = 0, unreachable = 0, error = NULL, updated_at = ? WHERE id = ? AND final = 0",
                (move.target, at, move.id),
            ).rowcount
            if not changed:
                return
            db.execute(
                "UPDATE requests SET request = ?, submitter = ? WHERE job = ?",
                (dump(request), dump(move.submitter), move.id),
            )
            db.execute("UPDATE meta SET value = ? WHERE key = ?", (_text(move), _KEY + move.id))
            writing.add_event(db, move.id, "moved", {"from": move.source, "to": move.target}, at)

    def end(self, ids: Sequence[str]) -> None:
        """These moves are done, or came to nothing."""
        with self._store.write() as db:
            for id_ in ids:
                db.execute("DELETE FROM meta WHERE key = ?", (_KEY + id_,))

    def queued_trials(self) -> bool:
        """True if a trial waits in some host's queue."""
        with self._store.read() as connection:
            sql = "SELECT 1 FROM jobs WHERE final = 0 AND state = 'QUEUED' AND sweep IS NOT NULL LIMIT 1"
            return connection.execute(sql).fetchone() is not None

    def queued(self) -> set[str]:
        """The ids of what waits in some host's queue."""
        with self._store.read() as connection:
            return {row[0] for row in connection.execute("SELECT id FROM jobs WHERE final = 0 AND state = 'QUEUED'")}

    def candidates(self) -> list[Candidate]:
        """What is queued, and the live trials, in the order in which they start on their hosts."""
        sql = (
            "SELECT id, host, state, sweep, cancel_requested_at, hold, not_before, attempt, code_digest,"
            f" json_extract(request, {', '.join(repr('$.' + path) for path in _PLANNED)}) AS part"
            " FROM jobs JOIN requests ON job = id WHERE final = 0 AND host IS NOT NULL"
            " AND (state = 'QUEUED' OR sweep IS NOT NULL)"
            " ORDER BY priority DESC, submitted_at, seq"
        )
        with self._store.read() as connection:
            rows = connection.execute(sql).fetchall()
        return [
            Candidate(
                row["id"], row["host"], row["state"], row["sweep"], row["cancel_requested_at"] is not None,
                bool(row["hold"]), row["not_before"], row["attempt"], row["code_digest"], _part(load(row["part"], [])),
            )
            for row in rows
        ]  # fmt: skip


def _part(values: Sequence[Any]) -> dict[str, Any]:
    """The part of a request that `_PLANNED` names, in its shape."""
    request: dict[str, Any] = {}
    for path, value in zip(_PLANNED, values, strict=False):
        outer, _, inner = path.partition(".")
        if not inner:
            request[outer] = value
        else:
            request.setdefault(outer, {})[inner] = value
    return request


def _text(move: Move) -> str:
    return json.dumps(asdict(move), sort_keys=True, separators=(",", ":"))
