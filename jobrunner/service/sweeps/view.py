"""Sweeps as people see them: how far each is, its trials by rank, its best one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError, NotFoundError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.ledger.sweeps import SweepRow, Tally, Trial
from jobrunner.service import submitters
from jobrunner.service.clock import now
from jobrunner.service.reconcile import Reconciled, reconcile
from jobrunner.service.session import Session
from jobrunner.service.submitresult import Result
from jobrunner.service.sweeps.sending import unsent

if TYPE_CHECKING:
    from jobrunner.ledger.metrics import Sample

ENDED_EARLY = ("stopped", "paused")


@dataclass(frozen=True)
class TrialView:
    """A trial with the job that runs it, its objective so far, and its place among those that have one (from 1)."""

    trial: Trial
    row: JobRow | None = None
    objective: Sample | None = None
    rank: int | None = None

    @property
    def state(self) -> str:
        """The job's state; `UNSENT` while no host has it."""
        return "UNSENT" if self.row is None or unsent(self.trial, self.row) else self.row.state.value

    @property
    def completed(self) -> bool:
        """True if it ran to its end, or early stopping ended it."""
        return self.state == JobState.COMPLETED.value or (self.trial.status == "stopped" and self.state == "CANCELLED")

    def as_json(self) -> dict[str, Any]:
        """One trial of `sweep show --json`."""
        from jobrunner.service.metrics import spelled

        row, found = self.row, self.objective
        return {
            "number": self.trial.number,
            "point": self.trial.point,
            "parameters": dict(self.trial.parameters),
            "rank": self.rank,
            "objective": spelled(found.value if found else None),
            "step": spelled(found.step if found else None),
            "state": self.state,
            "status": self.trial.status,
            "rung": self.trial.rung,
            "job": self.trial.job,
            "host": row.host if row else None,
            "unreachable": bool(row and row.unreachable and not row.state.final),
            "reason": row.reason if row else None,
            "exit_code": row.exit_code if row else None,
            "attempt": row.attempt if row else None,
            "started_at": row.started_at if row else None,
            "ended_at": row.ended_at if row else None,
        }


@dataclass(frozen=True)
class SweepView(Result):
    """A sweep with its trials, best first; those without an objective follow by number."""

    sweep: SweepRow
    tally: Tally
    trials: list[TrialView] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """`data` of `sweep show`."""
        return {"sweep": sweep_json(self.sweep, self.tally), "trials": [view.as_json() for view in self.trials]}


@dataclass(frozen=True)
class SweepList(Result):
    """Every sweep, newest first, and how far each is."""

    sweeps: list[tuple[SweepRow, Tally]] = field(default_factory=list)


def sweep_json(row: SweepRow, tally: Tally) -> dict[str, Any]:
    """A sweep in JSON; `counts` has its trials by state."""
    return {
        "id": row.id,
        "name": row.name,
        "method": row.method,
        "state": row.state,
        "why": row.why,
        "objective": row.objective,
        "planned": row.planned,
        "made": tally.made,
        "completed": tally.completed,
        "failed": tally.failed,
        "stopped_early": tally.stopped,
        "paused": tally.paused,
        "counts": dict(tally.states),
        "created_at": row.created_at,
        "ended_at": row.ended_at,
        "host": row.host,
        "file": row.file,
    }


def settle(session: Session, sweep_id: str) -> SweepRow:
    """Bring a sweep's state up to what its trials show: `running` once all are sent, `done` once all have ended.

    A paused trial may go on, so a sweep that has one is not done: whoever judges early stopping makes it `stopped`.
    """
    row = session.ledger.sweeps.get(sweep_id)
    tally = session.ledger.sweeps.tallies(sweep_id).get(sweep_id, Tally())
    state = row.state
    whole = tally.made and not tally.states.get("UNSENT") and not tally.states.get("STAGING")
    if state == "staging" and whole and not submitters.is_alive(session.home, dict(row.submitter)):
        state = "running"
    if state == "running" and tally.final >= max(row.planned or 0, tally.made) and not tally.paused:
        state = "done"
    if state == row.state:
        return row
    at = now()
    ended = at if state == "done" else None
    session.ledger.sweeps.change(sweep_id, at, state=state, ended_at=ended)
    return replace(row, state=state, ended_at=ended)


def visit(session: Session, sweeps: Sequence[SweepRow]) -> Reconciled:
    """What any look at sweeps does on the way: ask the hosts, let waiting trials go to idle hosts, end what has to.

    Trials that have ended are asked about, too, as long as their hosts may have numbers of them that are not here.
    """
    from jobrunner.service import moving
    from jobrunner.service.sweeps.failing import enforce_on_error

    live = [row for sweep in sweeps if sweep.state != "done" for row in _live(session, sweep.id)]
    unread = session.ledger.sweeps.unread(sweep.id for sweep in sweeps)
    if not live and not unread:
        return Reconciled()
    waits = any(row.state is JobState.QUEUED for row in live)
    found = reconcile(session, only=[*(row.id for row in live), *unread], cards=waits)
    enforce_on_error(session)
    if waits:
        moving.rebalance(session, found)
    return found


def ls(session: Session, *, offline: bool = False) -> SweepList:
    """Every sweep, as the hosts see its trials now."""
    rows = session.ledger.sweeps.list()
    found = Reconciled() if offline else visit(session, rows)
    settled = [row if row.state in ("done", "stopped") else settle(session, row.id) for row in rows]
    tallies = session.ledger.sweeps.tallies()
    return SweepList(
        sweeps=[(row, tallies.get(row.id, Tally())) for row in settled],
        errors=list(found.errors.values()),
        warnings=session.warnings,
        hosts_asked=found.asked,
        hosts_answered=found.answered,
    )


def show(session: Session, word: str, *, offline: bool = False) -> SweepView:
    """A sweep and its trials by rank. NotFoundError."""
    id_ = session.ledger.sweeps.resolve(word)
    found = Reconciled() if offline else visit(session, [session.ledger.sweeps.get(id_)])
    sweep = settle(session, id_)
    if sweep.state == "staging" and not submitters.is_alive(session.home, dict(sweep.submitter)):
        session.warn(f"the sending of {sweep.name} was broken off; the same submit again sends the rest: {sweep.file}")
    return view_of(session, sweep, list(found.errors.values()), found)


def view_of(
    session: Session, sweep: SweepRow, errors: Sequence[JobrunnerError] = (), found: Reconciled | None = None
) -> SweepView:
    """The ledger's view of a sweep; no host is asked."""
    jobs = {row.id: row for row in session.ledger.list(sweep=sweep.id)}
    trials = session.ledger.sweeps.trials(sweep.id)
    samples = _objectives(session, sweep, [trial.job for trial in trials if trial.job])
    views = [TrialView(trial, jobs.get(trial.job or ""), samples.get(trial.job or "")) for trial in trials]
    found = found or Reconciled()
    return SweepView(
        sweep=sweep,
        tally=session.ledger.sweeps.tallies(sweep.id).get(sweep.id, Tally()),
        trials=ranked(views, sweep.objective),
        errors=list(errors),
        warnings=session.warnings,
        hosts_asked=found.asked,
        hosts_answered=found.answered,
    )


def best(session: Session, word: str) -> tuple[SweepView, TrialView]:
    """The sweep and its best trial that ran to its end. NotFoundError if there is none such."""
    view = show(session, word)
    found = next((item for item in view.trials if item.rank is not None and item.completed), None)
    if found is None:
        what = f"has told {view.sweep.objective.split()[0]}" if view.sweep.objective else "can be compared"
        raise NotFoundError(
            f"no trial of {view.sweep.name} ({view.sweep.id}) that ran to its end {what}",
            code="no_best",
            remedy=f"`jobrunner sweep show {view.sweep.id}` says how far it is"
            if view.sweep.objective
            else "give the spec's sweep an `objective`, such as `val_loss min`",
        )
    return view, found


def ranked(views: Sequence[TrialView], objective: str | None) -> list[TrialView]:
    """Trials by objective, best first, with their ranks; then those without one, by number.

    NaN ranks nobody; neither does what a failed or cancelled trial told before its end. Pure.
    """
    if objective is None:
        return sorted(views, key=lambda view: view.trial.number)
    sign = -1.0 if objective.split()[1] == "max" else 1.0
    able: list[TrialView] = []
    others: list[TrialView] = []
    for view in views:
        value = view.objective.value if view.objective else math.nan
        fair = view.completed or view.state in ("RUNNING", "QUEUED") or view.trial.status in ENDED_EARLY
        (able if fair and not math.isnan(value) else others).append(view)
    able.sort(key=lambda view: (sign * (view.objective.value if view.objective else 0.0), view.trial.number))
    others.sort(key=lambda view: view.trial.number)
    return [replace(view, rank=place) for place, view in enumerate(able, 1)] + others


def _objectives(session: Session, sweep: SweepRow, jobs: Sequence[str]) -> Mapping[str, Sample]:
    if sweep.objective is None:
        return {}
    from jobrunner.service.metrics import objective_of

    return objective_of(session, sweep, jobs)


def _live(session: Session, sweep: str) -> list[JobRow]:
    return [row for row in session.ledger.list(sweep=sweep) if not row.state.final]
