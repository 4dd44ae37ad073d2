"""Sweeps whose points follow from results: ask for as many trials as may run, whenever somebody looks.

Nothing is kept but the ledger: what the method knows is rebuilt from the trials each time (sampler.py). A point is
noted there before any host hears of it, so a visit that is killed is finished by the next one.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, JobrunnerError
from jobrunner.core.jobs import JobRow
from jobrunner.core.points import point_id
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.ledger.sweeps import SweepRow, Trial
from jobrunner.service.clock import now
from jobrunner.service.locks import FileLock
from jobrunner.service.reconcile import Reconciled
from jobrunner.service.session import Session
from jobrunner.service.sweeps.sampler import Seen, ask, require
from jobrunner.service.sweeps.sending import ADAPTIVE, send_trials, unsent, unsent_row
from jobrunner.service.sweeps.view import settle

if TYPE_CHECKING:
    from jobrunner.core.spec import JobSpec
    from jobrunner.ledger.metrics import Sample

SILENT = 5
"""So many trials that completed without telling their objective, and none that did: the sweep stops."""


@dataclass(frozen=True)
class State:
    """A sweep as far as it has come: its trials and their jobs, and what these told of the objective."""

    sweep: SweepRow
    spec: JobSpec
    trials: Sequence[Trial]
    jobs: Mapping[str, JobRow]
    told: Mapping[str, Sample]
    pending: frozenset[str]

    def row(self, trial: Trial) -> JobRow | None:
        """The job that runs a trial now."""
        return self.jobs.get(trial.job or "")

    def open(self, trial: Trial) -> bool:
        """True if a trial waits or runs, or is still to be sent."""
        row = self.row(trial)
        return row is None or unsent(trial, row) or not row.state.final


def advance(session: Session, found: Reconciled) -> list[str]:
    """Ask for further trials of every running adaptive sweep, and send them. Returns a sentence for each that went on.

    What one sweep runs into is a warning, and does not keep the others from going on.
    """
    told: list[str] = []
    for sweep in session.ledger.sweeps.list():
        if sweep.method not in ADAPTIVE or sweep.state in ("done", "stopped"):
            continue
        try:
            told += _advance(session, settle(session, sweep.id), found)
        except JobrunnerError as error:
            session.warn(f"sweep {sweep.name} ({sweep.id}) did not go on: {error.message}. {error.remedy}".rstrip(". "))
    return told


def first_points(session: Session, sweep: SweepRow) -> list[Trial]:
    """The trials that a new sweep begins with, all in the ledger; of one whose submit was cut, those that it has."""
    require(sweep.method)
    state = read(session, sweep)
    if not state.trials:
        _more(session, state, room(session, state.spec, sweep.host, Reconciled()))
    return session.ledger.sweeps.trials(sweep.id)


def read(session: Session, sweep: SweepRow) -> State:
    """What the ledger knows of a sweep."""
    from jobrunner.core.spec import spec_from_json
    from jobrunner.service.metrics import objective_of

    trials = session.ledger.sweeps.trials(sweep.id)
    jobs = {row.id: row for row in session.ledger.list(sweep=sweep.id)}
    ids = [trial.job for trial in trials if trial.job in jobs]
    told = objective_of(session, sweep, [id_ for id_ in ids if id_ is not None]) if ids else {}
    open_ = session.ledger.metrics.open_by_host()
    pending = frozenset(item.job for items in open_.values() for item in items)
    return State(sweep, spec_from_json(dict(sweep.spec)), trials, jobs, told, pending)


@contextlib.contextmanager
def alone(session: Session, sweep: SweepRow) -> Any:
    """True inside if no other process is going on with the sweep just now."""
    lock = FileLock(session.home / "sweeps" / f"{sweep.id}.lock")
    ours = lock.acquire()
    try:
        yield ours
    finally:
        lock.release()


def _advance(session: Session, sweep: SweepRow, found: Reconciled) -> list[str]:
    if sweep.state != "running":
        return []
    with alone(session, sweep) as ours:
        if not ours:
            return []
        state = read(session, sweep)
        why = silent(state)
        if why is not None:
            at = now()
            session.ledger.sweeps.change(sweep.id, at, state="stopped", why=why, ended_at=at)
            return [f"{sweep.name} ({sweep.id}) was stopped: {why}"]
        live = sum(state.open(trial) for trial in state.trials)
        if len(state.trials) < (sweep.planned or 0):
            width = room(session, state.spec, sweep.host, found)
            if live < width:
                _more(session, state, width - live)
        return _send_open(session, sweep)


def _send_open(session: Session, sweep: SweepRow) -> list[str]:
    """Send what no host has yet: trials just asked for, and those of a visit that was cut."""
    jobs = {row.id: row for row in session.ledger.list(sweep=sweep.id)}
    waiting = []
    for trial in session.ledger.sweeps.trials(sweep.id):
        row = jobs.get(trial.job or "")
        if row is None or unsent_row(row):
            waiting.append(trial)
    if not waiting:
        settle(session, sweep.id)
        return []
    rows = send_trials(session, sweep, waiting, at=now())
    numbers = {trial.job: trial.number for trial in session.ledger.sweeps.trials(sweep.id)}
    sent = ", ".join(str(numbers.get(row.id)) for row in rows)
    return [f"{sweep.name} ({sweep.id}): sent trial{'s' if len(rows) > 1 else ''} {sent}"] if rows else []


def _more(session: Session, state: State, count: int) -> None:
    """Ask the method for so many points, and note them. A space that has no more ends the sweep's planning."""
    sweep, spec = state.sweep, state.spec
    assert spec.sweep is not None
    first = max((trial.number for trial in state.trials), default=-1) + 1
    count = min(count, (sweep.planned or 0) - len(state.trials))
    numbers = range(first, first + count)
    found = ask(spec.sweep, [seen(state, trial) for trial in state.trials], numbers)
    fresh = [Trial(sweep.id, number, point_id(point), point) for number, point in zip(numbers, found, strict=False)]
    at = now()
    session.ledger.sweeps.add_trials(fresh, at)
    if len(found) < count:
        planned = len(state.trials) + len(found)
        session.ledger.sweeps.change(sweep.id, at, planned=planned, why=f"the space has no more than {planned} points")


def seen(state: State, trial: Trial) -> Seen:
    """A trial as the method sees it. Pure.

    A failed, lost, timed out or cancelled one teaches nothing; one that was stopped early, what it told last. A job
    that has ended counts as running until its numbers are here.
    """
    row = state.row(trial)
    plain = Seen(trial.number, trial.parameters)
    if row is None or state.open(trial):
        return plain
    sample = state.told.get(row.id)
    if sample is None and row.id in state.pending and row.state is JobState.COMPLETED:
        return plain
    value, step = (sample.value, sample.step) if sample is not None else (None, None)
    if row.state is JobState.COMPLETED:
        return replace(plain, status="completed", value=value)
    if row.state is JobState.CANCELLED and trial.status in ("stopped", "paused"):
        return replace(plain, status="stopped", value=value, step=step)
    return replace(plain, status="failed")


def silent(state: State) -> str | None:
    """Why a sweep cannot learn anything: its trials complete and never tell their objective. Pure."""
    ended = [row for trial in state.trials if (row := state.row(trial)) is not None and row.state is JobState.COMPLETED]
    known = [row for row in ended if row.id not in state.pending]
    if len(known) < SILENT or any(row.id in state.told for row in state.jobs.values()):
        return None
    metric = (state.sweep.objective or "").split()[0]
    return f"{len(known)} trials have completed and none told {metric}; see `metrics` in the spec, and a trial's log"


def room(session: Session, spec: JobSpec, only: str | None, found: Reconciled) -> int:
    """How many trials of a sweep may wait or run at once: `parallel`, else as many as the cards of its hosts allow."""
    from jobrunner.core.placement import Demand, place
    from jobrunner.core.spread import at_once

    assert spec.sweep is not None
    if spec.sweep.parallel is not None:
        return spec.sweep.parallel
    demand, total = Demand.of(spec, only), 0
    for alias in [only] if only is not None else list(spec.hosts) or session.known_aliases():
        if alias in found.errors:
            continue
        facts = _facts(session, alias, found, cores=not demand.cards)
        if place(demand, [facts]).host is not None:
            total += max(1, at_once(demand, facts))
    return max(1, total)


def _facts(session: Session, alias: str, found: Reconciled, *, cores: bool) -> Any:
    """What is remembered of a host, as if nobody used it. `cores`: what it lets run without cards counts."""
    from jobrunner.core.placement import HostFacts

    declared, known = session.hosts.get(alias), session.ledger.host(alias)
    cards = tuple(known.facts.get("cards", ())) if known else ()
    cards = cards or tuple(range(declared.cards or 0))
    return HostFacts(
        alias,
        device=declared.device or (known.device if known else None),
        cards=cards,
        free=cards,
        only_cards=declared.only_cards,
        max_cards=declared.max_cards,
        cpu_jobs=declared.cpu_jobs if declared.cpu_jobs is not None or not cores else _cpu_jobs(session, alias, found),
        tags=declared.tags,
        drained=known.drained if known else False,
    )


def _cpu_jobs(session: Session, alias: str, found: Reconciled) -> int:
    """A host's own rule for jobs without cards: a quarter of its cores."""
    host: Mapping[str, Any] = (found.answers.get(alias) or {}).get("host") or {}
    if not host:
        with contextlib.suppress(HostError):
            host = session.link(alias).host_facts
    cpus = host.get("cpus")
    return max(1, math.floor(cpus / 4)) if isinstance(cpus, int) else 1
