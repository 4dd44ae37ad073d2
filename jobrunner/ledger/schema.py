"""The ledger's schema, as named steps. A step that was released is never edited; a change is a further step.

Each step ends by setting `user_version` to its number (see store.VERSION), in the same transaction.
Large texts (requests) have a table of their own, so that a listing reads small rows only.
"""

from __future__ import annotations

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

MIGRATIONS = Migrations("jobrunner")


@MIGRATIONS(name="0001_jobs_and_hosts")
def _jobs_and_hosts(db: Database) -> None:
    _create_jobs(db)
    _create_history(db)
    _create_others(db)
    db.execute("PRAGMA user_version=1")


def _create_jobs(db: Database) -> None:
    jobs = db.table("jobs")
    texts = "id name state phase reason signal host device cards submitted_at started_at ended_at last_seen"
    texts += (
        " cancel_requested_at sweep schedule retry_of instance not_before evidence launcher warnings error updated_at"
    )
    numbers = "seq exit_code attempt unreachable final confirmed priority hold log_bytes progress offset"
    jobs.create(
        {**dict.fromkeys(numbers.split(), int), **dict.fromkeys(texts.split(), str)},
        pk="seq",
        not_null={"id", "name", "state", "submitted_at"},
        defaults={
            "cards": "[]",
            "unreachable": 0,
            "final": 0,
            "confirmed": 0,
            "priority": 0,
            "hold": 0,
            "offset": 0,
            "progress": 0,
        },
    )
    jobs.create_index(["id"], unique=True)
    jobs.create_index(["final", "submitted_at", "seq"])
    jobs.create_index(["name", "submitted_at"])
    jobs.create_index(["sweep"])
    db.table("requests").create(
        {"job": str, "request": str, "spec_digest": str, "code_digest": str, "submitter": str},
        pk="job",
        not_null={"request"},
    )
    db.table("requests").create_index(["spec_digest", "code_digest"])


def _create_history(db: Database) -> None:
    events = db.table("events")
    events.create(
        {"seq": int, "job": str, "source": str, "n": int, "at": str, "kind": str, "data": str},
        pk="seq",
        not_null={"job", "source", "n", "kind"},
    )
    events.create_index(["job", "source", "n"], unique=True)
    db.table("attempts").create(
        {
            **dict.fromkeys(("job", "started_at", "ended_at", "signal", "reason", "cards"), str),
            **dict.fromkeys(("number", "exit_code", "log_bytes"), int),
        },
        pk=("job", "number"),
    )
    db.table("checkpoints").create(
        {
            **dict.fromkeys(("job", "name", "path", "sha256", "modified_at", "metrics", "pulled_to"), str),
            **dict.fromkeys(("position", "step", "size", "complete", "attempt", "removed"), int),
        },
        pk=("job", "name"),
    )


def _create_others(db: Database) -> None:
    texts = "alias address instance hostname machine_id agent device tool_version last_seen error facts"
    db.table("hosts").create({**dict.fromkeys(texts.split(), str), "drained": int}, pk="alias")
    wishes = db.table("wishes")
    wishes.create(
        {"seq": int, "job": str, "kind": str, "at": str, "grace_s": float, "applied_at": str},
        pk="seq",
        not_null={"job", "kind", "at"},
    )
    wishes.create_index(["job", "kind"], unique=True)
    db.table("meta").create({"key": str, "value": str}, pk="key")


@MIGRATIONS(name="0002_sweeps_and_metrics")
def _sweeps_and_metrics(db: Database) -> None:
    texts = "id name method objective state why created_at ended_at host spec file folder"
    texts += " spec_digest code_digest code client submitter updated_at"
    db.table("sweeps").create(
        {"seq": int, **dict.fromkeys(texts.split(), str), "planned": int},
        pk="seq",
        not_null={"id", "name", "state", "created_at", "spec"},
    )
    db.table("sweeps").create_index(["id"], unique=True)
    db.table("sweeps").create_index(["spec_digest", "code_digest"])
    trials = db.table("trials")
    trials.create(
        {
            **dict.fromkeys(("sweep", "point", "parameters", "job", "status", "note", "updated_at"), str),
            **dict.fromkeys(("number", "rung"), int),
        },
        pk=("sweep", "point"),
        not_null={"number", "parameters"},
    )
    trials.create_index(["sweep", "number"], unique=True)
    trials.create_index(["job"])
    metrics = db.table("metrics")
    metrics.create(
        {"seq": int, "job": str, "name": str, "attempt": int, "step": float, "value": float, "at": str},
        pk="seq",
        not_null={"job", "name"},
    )
    metrics.create_index(["job", "name", "seq"])
    db.table("metric_offsets").create(
        {"job": str, "offset": int, "done": int}, pk="job", defaults={"offset": 0, "done": 0}
    )
    marks = db.table("metric_marks")
    marks.create(
        {
            **dict.fromkeys(("seq", "count", "last_seq", "low_seq", "high_seq"), int),
            **dict.fromkeys(("job", "name"), str),
            **dict.fromkeys(("low", "high"), float),
        },
        pk="seq",
        not_null={"job", "name"},
    )
    marks.create_index(["job", "name"], unique=True)
    db.execute("PRAGMA user_version=2")


@MIGRATIONS(name="0003_schedules_and_promotions")
def _schedules_and_promotions(db: Database) -> None:
    texts = "id name state cron timezone added_at considered_until removed_at host spec file folder"
    texts += " code pinned updated_at"
    db.table("schedules").create(
        {"seq": int, **dict.fromkeys(texts.split(), str)},
        pk="seq",
        not_null={"id", "name", "state", "cron", "timezone", "added_at", "spec"},
    )
    db.table("schedules").create_index(["id"], unique=True)
    texts = "schedule due outcome why fired_at job sweep claimed_by updated_at"
    runs = db.table("runs")
    runs.create(
        {"seq": int, **dict.fromkeys(texts.split(), str), "manual": int},
        pk="seq",
        not_null={"schedule", "due", "outcome"},
        defaults={"manual": 0},
    )
    runs.create_index(["schedule", "due", "manual"], unique=True)  # a due time fires once, whoever asks
    runs.create_index(["outcome"])
    runs.create_index(["job"])
    _create_promotions(db)
    db.execute("PRAGMA user_version=3")


def _create_promotions(db: Database) -> None:
    texts = "target job host checkpoint path version sha256 metric direction at decision why schedule pulled_to"
    db.table("promotions").create(
        {"seq": int, **dict.fromkeys(texts.split(), str), "value": float, "against": float, "current": int},
        pk="seq",
        not_null={"target", "at", "decision"},
        defaults={"current": 0},
    )
    db.table("promotions").create_index(["target", "seq"])
    db.table("promotions").create_index(["job"])
    # What is to be done with a job once it has ended (pull, promote): a row per job when it was, or was tried.
    db.table("followups").create(
        {"job": str, "kind": str, "done": int, "tries": int, "tried_at": str, "why": str}, pk=("job", "kind")
    )
