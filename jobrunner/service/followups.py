"""What is done with jobs once they have ended: checkpoints that their specs want here, models that are promoted.

Each is done once per job, and tried again later, less and less often, while the job's host does not answer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field
from datetime import datetime, timedelta

from jobrunner.core.duetimes import instant, stamp
from jobrunner.core.errors import HostError, JobrunnerError
from jobrunner.core.values import dataclass
from jobrunner.ledger.promotions import Promotion
from jobrunner.service.clock import now
from jobrunner.service.session import Session

SINCE = timedelta(days=30)
"""Of jobs that ended longer ago nothing is fetched or promoted by itself."""

PAUSE = timedelta(minutes=5)
LONGEST = timedelta(hours=6)


@dataclass
class Followed:
    """What was done: pulled jobs with the folder, decisions about models, and what stood in the way."""

    pulled: list[tuple[str, str]] = field(default_factory=list)
    promotions: list[Promotion] = field(default_factory=list)
    errors: list[JobrunnerError] = field(default_factory=list)


def pull_ended(session: Session, at: datetime) -> Followed:
    """Fetch what ended jobs' specs ask for (`checkpoints.pull`), unless somebody has fetched of it already."""
    done = Followed()

    def pull(id_: str) -> None:
        from jobrunner.service.data import pull_checkpoints

        row = session.ledger.get(id_)
        which = (session.ledger.detail(id_).request.get("spec", {}).get("checkpoints") or {}).get("pull", "none")
        if which == "none" or row.host is None or row.started_at is None:
            return
        if any(item.pulled_to for item in session.ledger.checkpoints(id_)):
            return
        done.pulled.append((id_, pull_checkpoints(session, id_, which).to))

    _each(session, "pull", at, _asks_for(session, "pull"), pull, done)
    return done


def promote_ended(session: Session, at: datetime) -> Followed:
    """Decide about the models of ended jobs whose specs have `promote`."""
    from jobrunner.service import promote

    done = Followed()

    def decide(id_: str) -> None:
        decision = promote.promote_job(session, id_)
        if decision is not None:
            done.promotions.append(decision)

    def give_up(id_: str, error: JobrunnerError) -> None:
        wanted = session.ledger.detail(id_).request["spec"]["promote"]
        if id_ not in session.ledger.promotions.of_jobs([id_]):
            session.ledger.promotions.add(promote.failed(session.ledger.get(id_), wanted, error))

    _each(session, "promote", at, _asks_for(session, "promote"), decide, done, give_up)
    return done


def leave(session: Session, jobs: Sequence[str]) -> None:
    """Do nothing of this with these jobs: somebody else's machine, or an earlier ledger, has seen to it."""
    at = now()
    for kind in ("pull", "promote"):
        session.ledger.promotions.note_done(jobs, kind, at)


def _asks_for(session: Session, kind: str) -> Callable[[str], bool]:
    def asks(id_: str) -> bool:
        spec = session.ledger.detail(id_).request.get("spec") or {}
        if kind == "promote":
            return bool(spec.get("promote"))
        return bool((spec.get("checkpoints") or {}).get("pull", "none") != "none")

    return asks


def _each(
    session: Session,
    kind: str,
    at: datetime,
    asks: Callable[[str], bool],
    do: Callable[[str], None],
    done: Followed,
    give_up: Callable[[str, JobrunnerError], None] = lambda id_, error: None,
) -> None:
    """Do something with every ended job that asks for it and with which it was not done."""
    ledger = session.ledger.promotions
    found = ledger.ended_jobs(kind, stamp(at - SINCE))
    wanted = [id_ for id_ in found if asks(id_)]
    ledger.note_done(sorted(set(found) - set(wanted)), kind, stamp(at))
    for id_ in wanted:
        tried = ledger.followup(id_, kind)
        if tried is not None and at - instant(tried.tried_at) < min(LONGEST, PAUSE * 2 ** min(tried.tries - 1, 10)):
            continue
        try:
            do(id_)
        except HostError as error:
            again = error.code not in _LASTING
            ledger.note_followup(id_, kind, stamp(at), done=not again, why=error.message)
            if not again:
                give_up(id_, error)
            done.errors.append(error)
        except JobrunnerError as error:
            ledger.note_followup(id_, kind, stamp(at), done=True, why=error.message)
            if error.code != "no_such_checkpoint":
                give_up(id_, error)
                done.errors.append(error)
        else:
            ledger.note_followup(id_, kind, stamp(at), done=True)


_LASTING = ("no_such_checkpoint", "not_complete", "no_such_job", "not_ours", "bad_path", "bad_request", "permission")
"""What a host says that it will say again."""
