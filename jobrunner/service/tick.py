"""One pass of everything that is due: what `tick` does once and `serve` again and again.

Each part stands alone: an error in one is told, and the others are done. Two passes at once are safe (a due time has
one row and one claim in the ledger), but there is nothing to win by them: while one is at work, another says so and
ends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jobrunner.core.duetimes import instant, stamp
from jobrunner.core.errors import HostError, JobrunnerError
from jobrunner.core.values import dataclass
from jobrunner.service import definitions, firing, followups
from jobrunner.service.clock import now
from jobrunner.service.locks import FileLock
from jobrunner.service.reconcile import Reconciled, reconcile
from jobrunner.service.session import Session
from jobrunner.service.submitresult import Result

if TYPE_CHECKING:
    from jobrunner.core.jobs import JobRow
    from jobrunner.ledger.schedules import Run


@dataclass(frozen=True)
class TickResult(Result):
    """What a pass did. `busy`: another one was at work, so nothing was done. `next_at`: when something is due next.

    `runs` by what became of them (`fired`, `waiting`, `skipped`, `failed`): dicts of `schedule name due job sweep why`;
    `ended`: rows of jobs that were seen to have ended; `sweeps`: sentences; `moved`: dicts of `job from to`;
    `pulled`: dicts of `job to`; `promotions`: decisions about models.
    """

    at: str
    busy: bool = False
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    ended: list[JobRow] = field(default_factory=list)
    sweeps: list[str] = field(default_factory=list)
    moved: list[dict[str, str]] = field(default_factory=list)
    pulled: list[dict[str, str]] = field(default_factory=list)
    promotions: list[dict[str, Any]] = field(default_factory=list)
    next_at: str | None = None
    live: int = 0

    @property
    def did_something(self) -> bool:
        """True if there is something to tell."""
        runs = any(self.runs.get(kind) for kind in ("fired", "skipped", "failed"))
        return bool(runs or self.ended or self.sweeps or self.moved or self.pulled or self.promotions or self.errors)


@dataclass
class _Pass:
    """A pass as it comes about."""

    session: Session
    at: datetime
    found: Reconciled = field(default_factory=Reconciled)
    errors: list[JobrunnerError] = field(default_factory=list)
    told: dict[str, Any] = field(default_factory=dict)

    def part(self, what: str, do: Callable[[], None]) -> None:
        """Do one part; what goes wrong in it becomes an error of the pass."""
        try:
            do()
        except JobrunnerError as error:
            self.errors.append(error)
        except Exception as error:  # a fault of our own in one part must not keep the others from being done
            text = f"{what}: something unforeseen happened: {type(error).__name__}: {error}"
            self.errors.append(JobrunnerError(text, code="internal", remedy="please report it"))


def tick(session: Session, at: str | None = None) -> TickResult:
    """Do everything that is due at a time (default: now). Safe to be run at any moment, by several at once."""
    at = at or now()
    with _alone(session) as ours:
        if not ours:
            return TickResult(at=at, busy=True, warnings=session.warnings)
        work = _Pass(session, instant(at))
        for what, part in _PARTS:
            work.part(what, lambda part=part: part(work))  # type: ignore[misc]
        live = sum(len(jobs) for jobs in session.ledger.live_by_host().values())
        upcoming = firing.next_start(session, instant(at))
    return TickResult(
        at=at,
        next_at=None if upcoming is None else stamp(upcoming),
        live=live,
        errors=_distinct(work),
        warnings=session.warnings,
        hosts_asked=work.found.asked,
        hosts_answered=work.found.answered,
        **work.told,
    )


@contextmanager
def _alone(session: Session) -> Iterator[bool]:
    """True inside if no other pass is at work on this state folder."""
    lock = FileLock(session.home / "locks" / "tick.lock")
    try:
        ours = lock.acquire()
    except OSError as error:
        from jobrunner.ledger.guard import translate

        raise translate(lock.path, "writing", error) from error
    try:
        yield ours
    finally:
        lock.release()


def _reconcile(work: _Pass) -> None:
    """Every host with live jobs is asked; kept cancels go first, numbers come with it, broken submits are closed."""
    session = work.session
    live = {job.id for jobs in session.ledger.live_by_host().values() for job in jobs}
    cards = bool(session.ledger.moves.queued_trials()) if live else False
    work.found = reconcile(session, cards=cards)
    ended = [session.ledger.get(id_) for id_ in sorted(live)]
    work.told["ended"] = [row for row in ended if row.state.final]


def _schedules(work: _Pass) -> None:
    done = firing.fire_due(work.session, work.at)
    work.errors += done.errors
    names = {row.id: row.name for row in work.session.ledger.schedules.list(removed=True)}
    kinds = {"fired": done.fired, "waiting": done.waiting, "skipped": done.skipped, "failed": done.failed}
    work.told["runs"] = {kind: [_told(run, names) for run in runs] for kind, runs in kinds.items()}
    lost = definitions.unknown(work.session, set(names))
    if lost:
        work.session.warn(
            f"{len(lost)} schedules of the state folder are not in the ledger ({lost[0]}…): "
            "`jobrunner adopt` brings them back"
        )


def _told(run: Run, names: dict[str, str]) -> dict[str, Any]:
    return {
        "schedule": run.schedule,
        "name": names.get(run.schedule),
        "due": run.due,
        "job": run.job if run.outcome == "fired" else None,
        "sweep": run.sweep,
        "why": run.why,
    }


def _sweeps(work: _Pass) -> None:
    """Adaptive sweeps ask for further trials, early stopping is judged, sweeps that failed too often end."""
    session = work.session
    if not any(sweep.state in ("staging", "running") for sweep in session.ledger.sweeps.list()):
        return
    from jobrunner.service.sweeps import adaptive, early, manage, view

    told = work.told["sweeps"] = []
    for what, do in (
        ("sweeps that failed", lambda: told.extend(manage.enforce_on_error(session))),
        ("early stopping", lambda: told.extend(early.judge(session, work.found))),
        ("adaptive sweeps", lambda: told.extend(adaptive.advance(session, work.found))),
    ):
        work.part(what, do)
    for sweep in session.ledger.sweeps.list():
        if sweep.state in ("staging", "running"):
            after = view.settle(session, sweep.id)
            if after.state == "done":
                told.append(f"{after.name} ({after.id}) is done")


def _moves(work: _Pass) -> None:
    if not work.session.ledger.moves.queued_trials():
        return
    from jobrunner.service import moving

    work.told["moved"] = [
        {"job": move.job, "from": move.source, "to": move.target} for move in moving.rebalance(work.session, work.found)
    ]


def _checkpoints(work: _Pass) -> None:
    """Jobs that wait for a job elsewhere get its checkpoint."""
    from jobrunner.service import giving

    giving.bring(work.session, work.found)


def _pulls(work: _Pass) -> None:
    done = followups.pull_ended(work.session, work.at)
    work.errors += done.errors
    work.told["pulled"] = [{"job": job, "to": to} for job, to in done.pulled]


def _promotions(work: _Pass) -> None:
    done = followups.promote_ended(work.session, work.at)
    work.errors += done.errors
    if done.promotions:
        from jobrunner.service.promote import promotion_json

        work.told["promotions"] = [promotion_json(item) for item in done.promotions]


_PARTS: tuple[tuple[str, Callable[[_Pass], None]], ...] = (
    ("asking the hosts", _reconcile),
    ("schedules", _schedules),
    ("sweeps", _sweeps),
    ("moving trials", _moves),
    ("passing checkpoints on", _checkpoints),
    ("fetching checkpoints", _pulls),
    ("promoting models", _promotions),
)


def _distinct(work: _Pass) -> list[JobrunnerError]:
    """The errors of a pass, each once: a host that is away is in the way of several parts."""
    found: dict[tuple[str, str], JobrunnerError] = {}
    for error in (*work.found.errors.values(), *work.errors):
        key = (error.code, error.host) if isinstance(error, HostError) and error.host else (error.code, error.message)
        found.setdefault(key, error)
    return list(found.values())
