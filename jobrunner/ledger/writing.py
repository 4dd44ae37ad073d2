"""The ledger's changes. Each runs inside one transaction of `Store.write`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import reading
from jobrunner.ledger.records import (
    AS_TEXT,
    EventBatch,
    HostRow,
    Outcome,
    card_list,
    dump,
    exact,
    link,
    plain,
    row_values,
    whole,
)
from jobrunner.ledger.rows import Writer
from jobrunner.ledger.sightings import Sighting, merge

Json = Mapping[str, Any]


def insert_job(db: Writer, row: JobRow, at: str, **columns: Any) -> None:
    """A new row. `submitted_at` orders listings, so it is never empty."""
    values = {**row_values(row), "final": int(row.state.final), "updated_at": at, **columns}
    values["submitted_at"] = row.submitted_at or at
    db.insert("jobs", [values])


def insert_request(
    db: Writer, id_: str, request: Json, *, spec_digest: str | None, code_digest: str | None, submitter: Json
) -> None:
    """What a job is to run, kept from the first time on."""
    values = {"job": id_, "request": dump(request), "spec_digest": spec_digest, "code_digest": code_digest}
    db.insert("requests", [{**values, "submitter": dump(submitter)}], "ignore")
    run = request.get("run")
    if isinstance(run, Mapping) and run.get("metrics"):  # its host will have numbers to tell
        db.insert("metric_offsets", [{"job": id_, "offset": 0, "done": 0}], "ignore")


def apply_views(
    db: Writer, views: Mapping[str, Json | None], sighting: Sighting, events: Mapping[str, EventBatch]
) -> dict[str, Outcome]:
    """Take over what one host said about many jobs. A job that the host does not know (None) is passed over."""
    outcomes: dict[str, Outcome] = {}
    for id_, view in views.items():
        if view is None:
            continue
        stored = reading.stored(db.conn, id_)
        if stored is None:
            outcomes[id_] = Outcome.UNKNOWN_JOB
            continue
        batch = events.get(id_)
        seen = Sighting(
            sighting.alias,
            sighting.instance,
            sighting.seen_at,
            start=batch.start if batch else None,
            next=batch.next if batch else None,
        )
        outcome, columns = merge(stored, view, seen)
        outcomes[id_] = outcome
        if outcome in (Outcome.APPLIED, Outcome.FINAL):
            columns["offset"] = take_events(db, id_, stored["offset"], batch)
            save_attempts(db, id_, view.get("attempts"))
            if view.get("cancel_requested_at") or columns.get("final") or stored["final"]:
                applied(db, [id_], sighting.seen_at)
        if columns:  # indexes of what stays as it is need not be written again
            new = {name: value for name, value in columns.items() if stored[name] != value}
            db.update("jobs", "id", id_, {**new, "updated_at": sighting.seen_at})
    return outcomes


def take_events(db: Writer, id_: str, offset: int, batch: EventBatch | None) -> int:
    """Append a batch that goes on where the ledger stopped; returns where to go on from next time.

    An event's number is its batch's first byte plus its place in the batch, so the same batch twice adds nothing.
    A journal read from its beginning replaces what is there; a batch that overlaps or leaves a gap is not taken.
    """
    if batch is None or batch.next <= offset or batch.start not in (offset, 0):
        return offset
    if batch.start == 0:
        db.execute("DELETE FROM events WHERE job = ? AND source = 'host'", (id_,))
    rows = [
        _event_values(id_, "host", batch.start + place, item)
        for place, item in enumerate(batch.items)
        if isinstance(item, Mapping)
    ]
    if rows:
        db.insert("events", rows, "ignore")
    return batch.next


def _event_values(id_: str, source: str, n: int, item: Json) -> dict[str, Any]:
    data = {key: value for key, value in item.items() if key not in ("at", "kind")}
    kind = plain(item.get("kind")) or "unknown"
    return {"job": id_, "source": source, "n": n, "at": plain(item.get("at")), "kind": kind, "data": dump(data)}


def add_event(db: Writer, id_: str, kind: str, data: Json, at: str) -> None:
    """Something that this machine did or saw."""
    last = db.execute("SELECT max(n) FROM events WHERE job = ? AND source = 'client'", (id_,)).fetchone()[0]
    db.insert("events", [_event_values(id_, "client", (last or 0) + 1, {**data, "kind": kind, "at": at})])


def save_attempts(db: Writer, id_: str, attempts: Any) -> None:
    """The attempts of a view; what is no attempt in it is passed over."""
    rows = []
    for item in attempts if isinstance(attempts, list) else []:
        number = whole(item.get("number")) if isinstance(item, Mapping) else None
        if number is None:
            continue
        values: dict[str, Any] = {"job": id_, "number": number, "cards": dump(card_list(item.get("cards")))}
        values.update({key: plain(item.get(key)) for key in ("started_at", "ended_at", "signal", "reason")})
        values.update({key: whole(item.get(key)) for key in ("exit_code", "log_bytes")})
        rows.append(values)
    if rows:
        db.insert("attempts", rows, "replace")


def replace_checkpoints(db: Writer, id_: str, items: Iterable[Json]) -> None:
    """The job's whole list of checkpoints; where the content is the same, it is still known where it was pulled to."""
    before = {old.name: old for old in reading.checkpoints(db.conn, id_)}
    rows: dict[str, dict[str, Any]] = {}
    for position, item in enumerate(items):
        name = item.get("name")
        if not isinstance(name, str):
            continue
        old = before.get(name)
        size, digest = whole(item.get("size")), plain(item.get("sha256"))
        same = old is not None and old.size == size and (None in (old.sha256, digest) or old.sha256 == digest)
        step, attempt = whole(item.get("step")), whole(item.get("attempt"))
        path = item["path"] if isinstance(item.get("path"), str) else name
        rows[name] = {
            "job": id_, "name": exact(name), "position": position, "path": exact(path),
            "step": step, "size": size, "sha256": digest, "modified_at": plain(item.get("modified_at")),
            "complete": int(bool(item.get("complete"))), "metrics": dump(item.get("metrics") or {}), "attempt": attempt,
            "removed": int(bool(item.get("removed"))), "pulled_to": exact(old.pulled_to) if old and same else None,
        }  # fmt: skip
    db.execute("DELETE FROM checkpoints WHERE job = ?", (id_,))
    if rows:
        conversions = {"name": AS_TEXT, "path": AS_TEXT, "pulled_to": AS_TEXT}
        db.insert("checkpoints", rows.values(), conversions=conversions)


def request_cancel(db: Writer, ids: Sequence[str], at: str, grace_s: float | None) -> list[str]:
    """Keep the wish to cancel for those of the jobs that are not final; returns these."""
    wished = []
    for id_ in ids:
        row = db.execute("SELECT final FROM jobs WHERE id = ?", (id_,)).fetchone()
        if row is None:
            raise reading.no_job(id_)
        if row[0]:
            continue
        wish = {"job": id_, "kind": "cancel", "at": at, "grace_s": grace_s}
        db.insert("wishes", [wish], "ignore")
        db.execute("UPDATE wishes SET grace_s = ?, applied_at = NULL WHERE job = ? AND kind = 'cancel'", (grace_s, id_))
        db.execute(
            "UPDATE jobs SET cancel_requested_at = coalesce(cancel_requested_at, ?), updated_at = ? WHERE id = ?",
            (at, at, id_),
        )
        wished.append(id_)
    return wished


def withdraw_cancel(db: Writer, id_: str) -> bool:
    """Forget the wish to cancel a job, unless its host was told."""
    sql = "DELETE FROM wishes WHERE job = ? AND kind = 'cancel' AND applied_at IS NULL"
    if not db.execute(sql, (id_,)).rowcount:
        return False
    db.execute("UPDATE jobs SET cancel_requested_at = NULL WHERE id = ? AND final = 0", (id_,))
    return True


def applied(db: Writer, ids: Iterable[str], at: str) -> None:
    """The host knows of these wishes now."""
    for id_ in ids:
        db.execute("UPDATE wishes SET applied_at = ? WHERE job = ? AND applied_at IS NULL", (at, id_))


def mark_unreachable(db: Writer, alias: str, ids: Sequence[str] | None, error: str, at: str) -> None:
    """No answer from a host: the rows of its live jobs say so, and nothing else about them changes."""
    sql = "UPDATE jobs SET unreachable = 1, error = ?, updated_at = ? WHERE host = ? AND final = 0"
    shown = plain(error)
    if ids is None:
        db.execute(sql, (shown, at, alias))
    for id_ in ids or ():
        db.execute(sql + " AND id = ?", (shown, at, alias, id_))


def save_host(db: Writer, alias: str, changes: Json) -> None:
    """Change what is known of a host, adding it if it is new."""
    found = reading.hosts(db.conn, alias)
    old = found[0] if found else HostRow(alias)
    values = {**vars(old), **changes, "alias": alias}
    values["drained"], values["facts"] = int(bool(values["drained"])), dump(values["facts"])
    texts = {key: plain(value) for key, value in values.items() if key not in ("drained", "facts", "alias")}
    db.insert("hosts", [{**values, **texts}], "replace")


def put_record(db: Writer, sighting: Sighting, record: Json) -> Outcome:
    """A job as its host tells it in full (`adopt`): added if it is new here, else brought up to date."""
    request, view = dict(record.get("request") or {}), dict(record.get("view") or {})
    id_ = plain(view.get("id") or request.get("id")) or ""
    if not _is_id(id_):
        return Outcome.UNKNOWN_JOB
    stored = reading.stored(db.conn, id_)
    if stored is None:
        insert_job(db, _adopted(id_, sighting, request, view), sighting.seen_at, instance=sighting.instance)
    elif stored["instance"] == sighting.instance and stored["host"] != sighting.alias:
        db.execute("UPDATE jobs SET host = ? WHERE id = ?", (sighting.alias, id_))
    journal, batch = record.get("events"), None
    if isinstance(journal, Mapping):  # as `look` gives it: with the place to read on from
        batch = EventBatch(0, whole(journal.get("next")) or 0, journal.get("items") or [])
    elif isinstance(journal, list) and stored is None:
        rows = [
            _event_values(id_, "host", place, item) for place, item in enumerate(journal) if isinstance(item, Mapping)
        ]
        db.insert("events", rows, "ignore")
    if isinstance(record.get("attempts"), list):
        view["attempts"] = record["attempts"]
    outcome = apply_views(db, {id_: view}, sighting, {id_: batch} if batch else {})[id_]
    if outcome in (Outcome.APPLIED, Outcome.FINAL):
        insert_request(db, id_, request, spec_digest=None, code_digest=None, submitter={})
        if isinstance(record.get("checkpoints"), list):
            replace_checkpoints(db, id_, record["checkpoints"])
    elif stored is None:
        forget(db, [id_])
    return outcome


def _adopted(id_: str, sighting: Sighting, request: Json, view: Json) -> JobRow:
    """The row that a host's record begins with here, before its view is taken over."""
    return JobRow(
        id=id_,
        name=plain(view.get("name") or request.get("name")) or id_,
        state=JobState.STAGING,
        host=sighting.alias,
        submitted_at=plain(view.get("submitted_at") or request.get("submitted_at")),
        sweep=link(request.get("sweep")),
        schedule=link(request.get("schedule")),
        retry_of=plain(request.get("retry_of")),
    )


def _is_id(text: str) -> bool:
    """True for 8 to 16 letters and digits (ASCII, lower case) that begin with a letter: ids become file names here."""
    return 8 <= len(text) <= 16 and text.isascii() and text.isalnum() and text == text.lower() and text[0].isalpha()


def forget(db: Writer, ids: Iterable[str]) -> None:
    """Remove every trace of these jobs."""
    for id_ in ids:
        db.execute("DELETE FROM jobs WHERE id = ?", (id_,))
        for table in ("requests", "events", "attempts", "checkpoints", "wishes"):
            db.execute(f"DELETE FROM {table} WHERE job = ?", (id_,))
        forget_metrics(db, id_)


def forget_metrics(db: Writer, id_: str) -> None:
    """Remove every sample of a job."""
    for table in ("metrics", "metric_marks", "metric_offsets"):
        db.execute(f"DELETE FROM {table} WHERE job = ?", (id_,))
