"""Bring the ledger up to date with the hosts: one question to each, all at once.

Kept cancels go first. A host that does not answer changes no state: its rows say `unreachable`. Neither does an
alias that now leads to another machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, HostSetupError, JobrunnerError
from jobrunner.core.values import dataclass
from jobrunner.service import afters, metrics, submitters
from jobrunner.service.clock import age_seconds, now
from jobrunner.service.session import Session

if TYPE_CHECKING:
    from jobrunner.ledger import LiveJob, StagedJob, Wish
    from jobrunner.ledger.metrics import OpenJournal
    from jobrunner.transport.link import HostLink

MISSING_AGAIN_S = 5.0
"""A job that its own machine does not know is a race at the first look; seen again after this long it is lost."""


@dataclass
class Reconciled:
    """What came of asking the hosts: errors by alias, and what each host answered (`look`, docs/host.md)."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, JobrunnerError] = field(default_factory=dict)

    @property
    def asked(self) -> int:
        """How many hosts were asked."""
        return len(self.answers.keys() | self.errors.keys())

    @property
    def answered(self) -> int:
        """How many hosts answered for what was asked. A machine that never had the jobs does not."""
        return len(self.answers.keys() - self.errors.keys())


def reconcile(
    session: Session,
    *,
    only: Iterable[str] | None = None,
    also: Iterable[str] = (),
    cards: bool = False,
    fresh: bool = False,
    unsent: bool = True,
) -> Reconciled:
    """Ask every host that has live jobs (of `only`, if given: ids) or is named in `also`; update the ledger.

    With `cards` their cards are told too; `fresh` has the vendor's tool asked even if it was a moment ago. Without
    `unsent`, submits that were broken off are left as they are: whoever asks is about to go on with one.
    """
    wanted = None if only is None else set(only)
    if wanted:
        wanted |= afters.awaited(session, wanted)
    staged = {job.row.id: job for job in session.ledger.unsent()}
    passed = set() if unsent else set(staged)
    live: dict[str, list[LiveJob]] = {}
    for alias, jobs in session.ledger.live_by_host().items():
        chosen = [job for job in jobs if (wanted is None or job.id in wanted) and job.id not in passed]
        if chosen:
            live[alias] = chosen
    told = metrics.journals(session, wanted)
    aliases = list(dict.fromkeys([*live, *told, *also]))
    if not aliases:
        return Reconciled()
    wishes = {alias: session.ledger.pending_wishes(alias) for alias in aliases}
    moving = session.ledger.moves.all()
    dead = {
        id_ for id_, job in staged.items() if id_ not in moving and not submitters.is_alive(session.home, job.submitter)
    }

    def ask(link: HostLink) -> dict[str, Any]:
        jobs = live.get(link.alias, [])
        settle_staging(link, [staged[job.id] for job in jobs if job.id in dead])
        numbers = told.get(link.alias, [])
        return look(session, link, jobs, wishes.get(link.alias, []), cards=cards, fresh=fresh, numbers=numbers)

    found = Reconciled()
    outcomes = session.links.map(ask, aliases)
    for note in session.links.notes:
        session.warn(note)
    for alias, outcome in outcomes.items():
        if outcome.error is not None:
            found.errors[alias] = session.named(alias, outcome.error)
            session.ledger.mark_unreachable(alias, outcome.error.message, now())
            continue
        assert outcome.value is not None
        found.answers[alias] = outcome.value
        problem = take_over(
            session,
            alias,
            outcome.value,
            live.get(alias, []),
            wishes.get(alias, []),
            set(staged) - dead,
            told.get(alias, []),
        )
        if problem is not None:
            found.errors[alias] = problem
    if moving or any(_moved(answer) for answer in found.answers.values()):
        from jobrunner.service.moving import complete

        complete(session, found, moving)
    afters.tell(session, found)
    return found


def _moved(answer: Mapping[str, Any]) -> bool:
    """True if a host says of some job that it went elsewhere."""
    return any(view and view.get("moved") for view in answer.get("jobs", {}).values())


def look(
    session: Session,
    link: HostLink,
    jobs: Sequence[LiveJob] = (),
    wishes: Sequence[Wish] = (),
    *,
    cards: bool = False,
    fresh: bool = False,
    numbers: Sequence[OpenJournal] = (),
) -> dict[str, Any]:
    """One `look` at a host: the jobs asked about, their new events and numbers, the cards if wanted, kept cancels
    applied first."""
    declared = session.hosts.get(link.alias)
    answer = link.request(
        "look",
        jobs=[job.id for job in jobs],
        events={job.id: job.offset for job in jobs},
        metrics=metrics.offsets(numbers),
        cards=cards and declared.device != "cpu",
        device=declared.device,
        count=declared.cards,
        max_age_s=0 if fresh else None,
        cancel=[{"id": wish.job, "grace_s": wish.grace_s, "at": wish.at} for wish in wishes],
    )
    return {**answer, "host": link.host_facts}


def settle_staging(link: HostLink, staged: list[StagedJob]) -> None:
    """Close the ids of submits whose process died: a tombstone, unless the host had the job after all."""
    for job in staged:
        bury(link, job, cancelled=job.row.cancel_requested_at is not None)


def bury(link: HostLink, job: StagedJob, *, cancelled: bool) -> dict[str, Any]:
    """Close the id of a job that its host does not have (yet); the host's answer tells what it is then."""
    row = job.row
    told: dict[str, Any] = {
        "name": row.name,
        "request": job.request,
        "cancelled": cancelled,
        "at": row.cancel_requested_at,
    }
    return link.request("tombstone", id=row.id, timeout=None, **told)


def take_over(
    session: Session,
    alias: str,
    answer: Mapping[str, Any],
    live: list[LiveJob],
    wishes: list[Wish],
    being_sent: set[str],
    numbers: Sequence[OpenJournal] = (),
) -> HostError | None:
    """Put a host's answer into the ledger; an error if the alias leads to a machine that never had some of the jobs."""
    from jobrunner.ledger import EventBatch, Outcome

    host = answer["host"]
    at = now()
    views = {id_: view for id_, view in answer.get("jobs", {}).items() if view is not None}
    batches = {
        job.id: EventBatch(job.offset, answer["events"][job.id]["next"], answer["events"][job.id]["items"])
        for job in live
        if job.id in answer.get("events", {}) and job.id in views
    }
    metrics.take_over(session, alias, answer, numbers)
    with session.timings.phase("ledger"):
        outcomes = session.ledger.apply_views(alias, host["instance"], views, at, batches)
        remember_host(session, alias, answer)
        strangers = [id_ for id_, outcome in outcomes.items() if outcome is Outcome.OTHER_MACHINE]
        for job in live:
            if job.id in views or job.id in being_sent:
                continue
            if job.instance not in (None, host["instance"]):
                strangers.append(job.id)
            elif job.confirmed:
                _missing(session, job, alias, host["instance"], at)
        done = [wish.job for wish in wishes if wish.job in views]
        if done:
            session.ledger.applied(done, at)
    if not strangers:
        return None
    text = (
        f"{alias} now leads to another machine ({host.get('hostname', '?')}) than the one that has "
        f"{', '.join(strangers)}: nothing is known about them from here"
    )
    session.ledger.mark_unreachable(alias, text, at, strangers)
    return HostSetupError(
        text,
        host=alias,
        code="other_machine",
        remedy="make the alias lead to the old machine again, or `jobrunner retry ID --elsewhere`",
    )


def remember_host(session: Session, alias: str, answer: Mapping[str, Any]) -> None:
    """Note what an answer says of its host: identity, agent, cards if they were looked at."""
    host = answer["host"]
    changes: dict[str, Any] = {
        "instance": host.get("instance"),
        "hostname": host.get("hostname"),
        "machine_id": host.get("machine_id"),
        "agent": host.get("agent"),
        "last_seen": now(),
    }
    if "drained" in answer:
        changes["drained"] = bool(answer["drained"])
    report = answer.get("cards")
    if report:
        changes["device"] = report.get("device")
        changes["tool_version"] = report.get("tool_version")
        known = session.ledger.host(alias)
        facts = dict(known.facts) if known else {}
        facts["cards"] = [card["index"] for card in report.get("cards", [])]
        changes["facts"] = facts
    session.ledger.put_host(alias, **changes)


def _missing(session: Session, job: LiveJob, alias: str, instance: str, at: str) -> None:
    """The machine that had a job does not know it. Once is a race; again, some seconds later, it is gone."""
    earlier = [event.at for event in session.ledger.events(job.id) if event.kind == "missing"]
    if not earlier or (age_seconds(earlier[0]) or 0.0) < MISSING_AGAIN_S:
        session.ledger.add_event(job.id, "missing", at, {"host": alias})
        return
    view = {
        "id": job.id,
        "name": job.name,
        "state": "LOST",
        "phase": None,
        "reason": "unobserved",
        "ended_at": at,
        "evidence": f"its folder is gone from {alias}, seen twice ({earlier[0]} and {at})",
    }
    session.ledger.apply_view(alias, instance, view, at)
