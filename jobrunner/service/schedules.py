"""Schedules: add, list, pause, remove, look at. What fires them is firing.py, at every tick."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import field
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.duetimes import instant, stamp, timing_of
from jobrunner.core.errors import UsageError
from jobrunner.core.ids import new_id
from jobrunner.core.values import dataclass
from jobrunner.ledger.schedules import Run, ScheduleRow
from jobrunner.service import definitions, firing
from jobrunner.service.clock import now
from jobrunner.service.session import Session
from jobrunner.service.submitresult import Result

if TYPE_CHECKING:
    from jobrunner.core.jobs import JobRow
    from jobrunner.service.specs import LoadedSpec
    from jobrunner.upload import Tree


@dataclass(frozen=True)
class ScheduleResult(Result):
    """Schedules as dicts of the project's JSON (`schedule_json`)."""

    schedules: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class NextResult(Result):
    """Times to come: dicts of `due` and `starts` (later by the jitter), UTC, and `local` in the schedule's zone."""

    schedule: dict[str, Any]
    times: list[dict[str, str]] = field(default_factory=list)


@dataclass(frozen=True)
class HistoryResult(Result):
    """Due times of a schedule, newest first: dicts of `run_json`."""

    schedule: dict[str, Any]
    runs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class RunResult(Result):
    """A run that was asked for: its dict (`run_json`) and the job that came of it, if one did."""

    schedule: dict[str, Any]
    run: dict[str, Any]
    rows: list[JobRow] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """What the errors call for; 3 where the run waits for a host."""
        return super().exit_code or (0 if self.run["outcome"] == "fired" else 3)


def add(
    session: Session,
    paths: Sequence[Path],
    *,
    host: str | None = None,
    overrides: Sequence[str] = (),
    large: bool = False,
) -> ScheduleResult:
    """Make schedules of specs that have `schedule`. From now on `tick` submits them at their times.

    Every fault of every spec is told at once. The code is read, so that what cannot be sent is refused now.
    """
    from jobrunner.core.specdoc import ENABLED
    from jobrunner.service.specs import load_specs

    loaded = load_specs(
        paths,
        overrides=overrides,
        environ=session.environ,
        secrets_file=session.secrets_file,
        hosts=session.hosts,
        enabled=ENABLED | {"schedule"},
        want_secrets=False,
    )
    for item in loaded:
        if item.spec.schedule is None:
            raise UsageError(
                f"{item.path} has no `schedule`, so it has no times to run at",
                code="no_schedule",
                remedy="add `schedule: {cron: ..., timezone: ...}`, or `jobrunner submit` it",
            )
    trees = [_read_code(session, item, large) for item in loaded]
    rows = [_add(session, item, tree, host) for item, tree in zip(loaded, trees, strict=True)]
    return ScheduleResult(schedules=[schedule_json(session, row) for row in rows], warnings=session.warnings)


def _read_code(session: Session, item: LoadedSpec, large: bool) -> Tree | None:
    from jobrunner.service import staging

    if item.code_dir is None or item.spec.code is None:
        return None
    return staging.read_code(session, item.code_dir, item.spec.code, large=large)


def _add(session: Session, item: LoadedSpec, tree: Tree | None, host: str | None) -> ScheduleRow:
    schedule = item.spec.schedule
    assert schedule is not None
    pinned = None
    if schedule.code == "pinned" and tree is not None:
        from jobrunner.upload.pinned import keep

        pinned = keep(tree, definitions.code_folder(session))
    at = now()
    row = ScheduleRow(
        id=new_id(os.urandom(16)),
        name=item.spec.name,
        state="active",
        cron=schedule.cron,
        timezone=schedule.timezone,
        added_at=at,
        considered_until=at,
        spec=item.spec.as_json(),
        host=host,
        file=str(item.path.absolute()),
        folder=os.path.normpath(item.code_dir) if item.code_dir is not None else None,
        code=tree.code() if pinned is not None and tree is not None else None,
        pinned=pinned,
    )
    _warn(session, row, item)
    definitions.write(session, row)
    session.ledger.schedules.add(row)
    return row


def _warn(session: Session, row: ScheduleRow, item: LoadedSpec) -> None:
    twins = [other.id for other in session.ledger.schedules.list() if other.name == row.name]
    if twins:
        session.warn(
            f"another schedule is called {row.name}: {', '.join(twins)}; both will run "
            f"(`jobrunner schedule rm {twins[0]}` removes it)"
        )
    missing = [name for name in item.spec.secrets if name not in firing.secrets_at_hand(session, item.spec.secrets)]
    if missing:
        session.warn(
            f"{', '.join(missing)}: not in {session.secrets_file}, where a tick that nobody watches looks for secrets"
        )


def ls(session: Session, *, removed: bool = False) -> ScheduleResult:
    """Schedules, newest first."""
    rows = session.ledger.schedules.list(removed=removed)
    return ScheduleResult(schedules=[schedule_json(session, row) for row in rows], warnings=session.warnings)


def next_times(session: Session, word: str, count: int) -> NextResult:
    """The next `count` times of a schedule, whether it is paused or not."""
    row = session.ledger.schedules.get(session.ledger.schedules.resolve(word))
    timing = timing_of(row.id, row.settings)
    times = [
        {"due": stamp(due), "starts": stamp(timing.start(due)), "local": due.astimezone(timing.zone).isoformat()}
        for due in islice(timing.after(instant(now())), count)
    ]
    return NextResult(schedule=schedule_json(session, row), times=times, warnings=session.warnings)


def pause(session: Session, words: Sequence[str]) -> ScheduleResult:
    """Nothing of these schedules is fired until `resume`."""
    return _set_state(session, words, "paused")


def resume(session: Session, words: Sequence[str]) -> ScheduleResult:
    """These schedules go on. What was due meanwhile is not made up for: it was paused."""
    return _set_state(session, words, "active")


def _set_state(session: Session, words: Sequence[str], state: str) -> ScheduleResult:
    schedules = session.ledger.schedules
    rows = [_present(session, word) for word in words]
    changed = []
    for row in rows:
        at = now()
        firing.consider(session, row, instant(at), always=True)  # under the state that it has had up to now
        schedules.set_state(row.id, state, at)
        changed.append(schedules.get(row.id))
        definitions.write(session, changed[-1])
    return ScheduleResult(schedules=[schedule_json(session, row) for row in changed], warnings=session.warnings)


def remove(session: Session, words: Sequence[str]) -> ScheduleResult:
    """End schedules. Their jobs stay as they are, their history too."""
    from jobrunner.upload.pinned import drop_others

    schedules = session.ledger.schedules
    rows = [_present(session, word) for word in words]
    for row in rows:
        at = now()
        schedules.set_state(row.id, "removed", at)
        definitions.remove(session, row.id)
        for run in schedules.open_runs(row.id):
            if run.outcome == "waiting":
                schedules.settle(run, "skipped", at, "the schedule was removed")
    drop_others(definitions.code_folder(session), [row.pinned for row in schedules.list() if row.pinned])
    gone = [schedules.get(row.id) for row in rows]
    return ScheduleResult(schedules=[schedule_json(session, row) for row in gone], warnings=session.warnings)


def _present(session: Session, word: str) -> ScheduleRow:
    row = session.ledger.schedules.get(session.ledger.schedules.resolve(word))
    if row.state == "removed":
        raise UsageError(
            f"the schedule {row.name} ({row.id}) was removed",
            code="removed",
            remedy=f"`jobrunner schedule add {row.file}` makes it anew",
        )
    return row


def run_now(session: Session, word: str) -> RunResult:
    """Fire a schedule now, whether a run of it is on its way or not; its times stay as they are."""
    session.be_patient()
    row = _present(session, word)
    run = session.ledger.schedules.add_manual(row.id, now())
    fired = firing.fire_run(session, row, run)
    if fired.outcome in ("waiting", "failed"):
        session.ledger.schedules.settle(fired, "failed", now(), fired.why)  # a person is there to ask again
        raise firing.error_of(session, row, fired)
    rows = [session.ledger.get(fired.job)] if fired.job else []
    return RunResult(
        schedule=schedule_json(session, row),
        run=run_json(session, [fired])[0],
        rows=rows,
        warnings=session.warnings,
        hosts_asked=1,
        hosts_answered=1,
    )


def history(session: Session, word: str, limit: int | None = None) -> HistoryResult:
    """Each due time: fired, skipped and why, its job, whether its model was promoted."""
    row = session.ledger.schedules.get(session.ledger.schedules.resolve(word))
    runs = session.ledger.schedules.runs(row.id, limit)
    return HistoryResult(schedule=schedule_json(session, row), runs=run_json(session, runs), warnings=session.warnings)


def schedule_json(session: Session, row: ScheduleRow, at: datetime | None = None) -> dict[str, Any]:
    """A schedule with the keys of the project's JSON."""
    timing = timing_of(row.id, row.settings)
    due = None if row.state != "active" else next(timing.after(at or instant(now())), None)
    last = session.ledger.schedules.last_fired(row.id)
    return {
        "id": row.id,
        "name": row.name,
        "state": row.state,
        "cron": row.cron,
        "timezone": row.timezone,
        "overlap": timing.overlap,
        "catch_up": timing.catch_up,
        "code": row.settings.get("code") or "latest",
        "host": row.host,
        "file": row.file,
        "next": None if due is None else stamp(due),
        "last": None if last is None else last.due,
        "last_job": None if last is None else last.job,
        "waiting": len(session.ledger.schedules.open_runs(row.id)),
        "added_at": row.added_at,
        "removed_at": row.removed_at,
    }


def run_json(session: Session, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Runs with the keys of the project's JSON. `late_s` counts from the due time, jitter included."""
    jobs = [run.job for run in runs if run.job]
    promoted = session.ledger.promotions.of_jobs(jobs)
    states = {id_: _state_of(session, id_) for id_ in jobs}
    shown = []
    for run in runs:
        decision = promoted.get(run.job or "")
        shown.append(
            {
                "due": run.due,
                "outcome": run.outcome,
                "why": run.why,
                "fired_at": run.fired_at,
                "late_s": _late(run),
                "manual": run.manual,
                "job": run.job if run.outcome == "fired" else None,
                "state": states.get(run.job or ""),
                "sweep": run.sweep,
                "promoted": None if decision is None else decision.decision == "promoted",
                "promotion": None if decision is None else decision.why,
            }
        )
    return shown


def _late(run: Run) -> float | None:
    if run.fired_at is None:
        return None
    return round((instant(run.fired_at) - instant(run.due)).total_seconds(), 3)


def _state_of(session: Session, id_: str) -> str | None:
    from jobrunner.core.errors import NotFoundError

    try:
        return session.ledger.get(id_).state.value
    except NotFoundError:
        return None
