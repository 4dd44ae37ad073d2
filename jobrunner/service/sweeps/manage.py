"""Change a sweep that has been submitted: more points, failed trials again, an end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError, SpecError, UsageError
from jobrunner.core.jobs import JobRow
from jobrunner.core.points import point_id, points
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.ledger.sweeps import SweepRow, Tally, Trial
from jobrunner.service.clock import now
from jobrunner.service.session import Session
from jobrunner.service.submitresult import Result
from jobrunner.service.sweeps.failing import end, enforce_on_error
from jobrunner.service.sweeps.sending import ADAPTIVE, send_trials, unsent
from jobrunner.service.sweeps.submit import trials_of
from jobrunner.service.sweeps.view import settle, visit

if TYPE_CHECKING:
    from jobrunner.core.spec import JobSpec

__all__ = ["SweepChange", "enforce_on_error", "extend", "retry", "stop"]

FAILED = (JobState.FAILED, JobState.TIMEOUT, JobState.LOST)
_FREE = ("sweep", "name", "hosts", "tags", "priority")
"""Keys of a spec in which the trials of one sweep may differ."""


@dataclass(frozen=True)
class SweepChange(Result):
    """What became of a sweep: its row now, and the jobs that were sent, or ended."""

    sweep: SweepRow
    tally: Tally
    rows: list[JobRow] = field(default_factory=list)
    added: int = 0


def extend(session: Session, word: str, path: Path, overrides: Sequence[str] = ()) -> SweepChange:
    """Add the points of a spec that the sweep does not have, and send those only.

    Points that are in the sweep already stay as they are, whatever state they are in. Raises UsageError for a spec
    whose trials would run something else.
    """
    session.be_patient()
    sweep = session.ledger.sweeps.get(session.ledger.sweeps.resolve(word))
    spec = _loaded(session, path, overrides)
    _check_same(sweep, spec)
    assert spec.sweep is not None
    known = session.ledger.sweeps.trials(sweep.id)
    at, added = now(), 0
    if spec.sweep.method in ADAPTIVE:
        planned = max(spec.sweep.trials or 0, len(known))
        added = max(0, planned - (sweep.planned or 0))
    else:
        have = {trial.point for trial in known}
        fresh = [point for point in points(spec.sweep) if point_id(point) not in have]
        first = max((trial.number for trial in known), default=-1) + 1
        added = session.ledger.sweeps.add_trials(trials_of(sweep.id, fresh, first), at)
        planned = len(session.ledger.sweeps.trials(sweep.id))
    changes: dict[str, Any] = {"planned": planned, "spec": spec.as_json(), "state": "running"}
    changes.update(why=None, ended_at=None)
    session.ledger.sweeps.change(sweep.id, at, **changes)
    return _sent(session, replace(sweep, **changes), at, [], added=added)


def retry(session: Session, word: str, *, reason: str | None = None) -> SweepChange:
    """Run trials again that failed, ran out of time or were lost (or those with this reason or state), as new jobs.

    Trials whose sending was broken off are sent, too. Raises UsageError if there are none.
    """
    session.be_patient()
    id_ = session.ledger.sweeps.resolve(word)
    visit(session, [session.ledger.sweeps.get(id_)])
    sweep = session.ledger.sweeps.get(id_)
    jobs = {row.id: row for row in session.ledger.list(sweep=id_)}
    trials = session.ledger.sweeps.trials(id_)
    chosen = [trial for trial in trials if _is_meant(trial, jobs.get(trial.job or ""), reason)]
    missing = [trial for trial in trials if unsent(trial, jobs.get(trial.job or ""))]
    if not chosen and not missing:
        newest = [jobs[trial.job] for trial in trials if trial.job in jobs]
        reasons = sorted({row.reason or row.state.value for row in newest if row.state in FAILED})
        raise UsageError(
            f"no trial of {sweep.name} ({id_}) ended {f'with {reason}' if reason else 'badly'}",
            code="nothing_to_retry",
            remedy=f"trials ended with: {', '.join(reasons)}" if reasons else f"see `jobrunner sweep show {id_}`",
        )
    at = now()
    changes: dict[str, Any] = {"state": "running", "why": None, "ended_at": None}
    session.ledger.sweeps.change(id_, at, **changes)
    return _sent(session, replace(sweep, **changes), at, chosen)


def stop(session: Session, word: str) -> SweepChange:
    """End a sweep: no trial of it starts any more, and those that run are cancelled, wholly."""
    from jobrunner.service.control import cancel

    sweep = session.ledger.sweeps.get(session.ledger.sweeps.resolve(word))
    if sweep.state != "done":
        end(session, sweep, "somebody stopped it")
    live = [row.id for row in session.ledger.list(sweep=sweep.id) if not row.state.final]
    if not live:
        return _change(session, sweep.id, [])
    done = cancel(session, live)
    return _change(
        session, sweep.id, done.rows,
        errors=done.errors, hosts_asked=done.hosts_asked, hosts_answered=done.hosts_answered,
    )  # fmt: skip


def _is_meant(trial: Trial, row: JobRow | None, reason: str | None) -> bool:
    """True for a trial that a retry is about. `interrupted` ones are sent anyway; early stopping was no failure."""
    if row is None or not row.state.final or trial.status in ("stopped", "paused"):
        return False
    if reason is None:
        return row.state in FAILED
    wanted = reason.lower()
    return row.state is not JobState.COMPLETED and wanted in ((row.reason or "").lower(), row.state.value.lower())


def _loaded(session: Session, path: Path, overrides: Sequence[str]) -> JobSpec:
    from jobrunner.service.specs import load_specs

    [item] = load_specs(
        [path],
        overrides=overrides,
        environ=session.environ,
        secrets_file=session.secrets_file,
        hosts=session.hosts,
        find_job=lambda word: session.ledger.resolve(word),
    )
    return item.spec


def _check_same(sweep: SweepRow, spec: JobSpec) -> None:
    """The trials of a sweep run the same but for their parameters; UsageError says what differs."""
    told, before = spec.as_json(), dict(sweep.spec)
    if told.get("sweep") is None:
        raise UsageError("this spec has no `sweep`, so there is nothing to extend by", code="no_sweep")
    odd = [key for key in told if key not in _FREE and told[key] != before.get(key)]
    space, earlier = told["sweep"]["parameters"], (before.get("sweep") or {})
    if told["sweep"]["method"] != earlier.get("method"):
        odd.append("sweep.method")
    if _names(space) != _names(earlier.get("parameters")):
        odd.append("the parameters' names")
    if odd:
        raise UsageError(
            f"{', '.join(odd)}: not as in sweep {sweep.name} ({sweep.id}), whose trials all run the same",
            code="another_sweep",
            remedy="submit this spec as a sweep of its own",
        )


def _names(space: Any) -> set[str]:
    if isinstance(space, Mapping):
        return set(space)
    return set(space[0]) if space else set()


def _sent(session: Session, sweep: SweepRow, at: str, again: Sequence[Trial], *, added: int = 0) -> SweepChange:
    """Send the given trials anew, and every other one that no host has."""
    errors: list[JobrunnerError] = []
    rows: list[JobRow] = []
    jobs = {row.id: row for row in session.ledger.list(sweep=sweep.id)}
    missing = [trial for trial in session.ledger.sweeps.trials(sweep.id) if _may_send(trial, jobs.get(trial.job or ""))]
    for trials, anew in ((missing, False), (again, True)):
        if not trials:
            continue
        try:
            rows += send_trials(session, sweep, trials, at=at, again=anew)
        except SpecError:
            raise
        except JobrunnerError as error:
            errors.append(error)
    if sweep.method in ADAPTIVE and added:
        session.warn("its further trials are asked for by `jobrunner tick`, or `jobrunner serve`")
    return _change(session, sweep.id, rows, added=added, errors=errors, hosts_answered=len({row.host for row in rows}))


def _may_send(trial: Trial, row: JobRow | None) -> bool:
    return unsent(trial, row) or (row is not None and row.state is JobState.STAGING)


def _change(session: Session, id_: str, rows: Sequence[JobRow], **more: Any) -> SweepChange:
    sweep = settle(session, id_)
    tally = session.ledger.sweeps.tallies(id_).get(id_, Tally())
    return SweepChange(sweep=sweep, tally=tally, rows=list(rows), warnings=session.warnings, **more)
