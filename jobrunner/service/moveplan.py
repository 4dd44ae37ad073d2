"""What moves are planned on: the queues as the ledger has them, the hosts as they answer now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import NotFoundError
from jobrunner.core.moves import Load, Step, Waiting, plan
from jobrunner.core.placement import Demand, HostFacts, place

if TYPE_CHECKING:
    from jobrunner.ledger.moves import Candidate
    from jobrunner.service.reconcile import Reconciled
    from jobrunner.service.session import Session


def planned(session: Session, found: Reconciled) -> list[Step]:
    """The moves that would have a waiting trial start now. Hosts are looked at only if there may be any."""
    jobs = session.ledger.moves.candidates()
    noted = session.ledger.moves.all()
    aliases = [alias for alias in session.known_aliases() if alias not in found.errors]
    only = {row.id: row.host for row in session.ledger.sweeps.list()}
    waiting = [_waiting(job, job.id not in noted, only) for job in jobs if job.state == "QUEUED" and _ready(job)]
    movable = [job for job in waiting if job.movable]
    if not movable or len(aliases) < 2:
        return []
    hosts = _hosts(session, found, [alias for alias in aliases if _wanted(session, alias, movable)])
    fresh = session.ledger.moves.queued()
    return plan([job for job in waiting if job.id in fresh], hosts, _loads(session, jobs))


def _ready(job: Candidate) -> bool:
    return not (job.hold or job.not_before or job.cancelled)


def _waiting(job: Candidate, free: bool, only: Mapping[str, str | None]) -> Waiting:
    """A queued job as `plan` sees it. Only a trial that has not begun, and that nothing ties to its host, may move.

    `only` has the one host that a sweep may use (`--host`), if it was told so, by sweep.
    """
    run, told = job.request.get("run") or {}, job.request.get("sweep")
    sweep = told if isinstance(told, dict) else {}
    demand = _demand(job, only.get(job.sweep or ""))
    tied = bool(run.get("after") or job.request.get("retry_of") or (job.attempt or 1) > 1 or demand.only)
    share = sweep.get("parallel") if isinstance(sweep.get("parallel"), int) else None
    return Waiting(job.id, job.host, demand, job.sweep, share, bool(free and job.sweep and not tied))


def _demand(job: Candidate, only: str | None) -> Demand:
    run, spec = job.request.get("run") or {}, job.request.get("spec") or {}
    ids = run.get("card_ids") or None
    cards = len(ids) if ids else int(run.get("cards") or 0)
    return Demand(
        device=str(run.get("device") or "cpu"),
        cards=0 if run.get("device") == "cpu" else cards,
        card_ids=tuple(ids) if ids else None,
        hosts=tuple(spec.get("hosts") or ()),
        tags=tuple(spec.get("tags") or ()),
        only=only,
    )


def _wanted(session: Session, alias: str, movable: Sequence[Waiting]) -> bool:
    """True if a host holds one of the jobs, or may by their own words get one."""
    declared = session.hosts.get(alias)
    known = session.ledger.host(alias)
    facts = HostFacts(alias, device=declared.device or (known.device if known else None), tags=declared.tags)
    for demand in dict.fromkeys(job.demand for job in movable):
        wanted = demand if facts.device is None else replace(demand, cards=0, card_ids=None)
        if any(job.host == alias for job in movable) or _may(wanted, facts):
            return True
    return False


def _may(demand: Demand, facts: HostFacts) -> bool:
    if facts.device is None:  # it was never looked at
        return (not demand.hosts or facts.name in demand.hosts) and set(demand.tags) <= set(facts.tags)
    return place(demand, [facts]).host is not None


def _hosts(session: Session, found: Reconciled, aliases: Sequence[str]) -> dict[str, HostFacts]:
    """Facts of hosts, cards included; looked at now unless the answers at hand have them."""
    from jobrunner.service.placing import facts_from
    from jobrunner.service.reconcile import reconcile

    if not aliases:
        return {}
    answers: Mapping[str, Any] = found.answers
    if any(alias not in answers or not answers[alias].get("cards") for alias in aliases):
        answers = reconcile(session, also=aliases, cards=True, unsent=False).answers
    facts = {alias: facts_from(session, alias, answers[alias]) for alias in aliases if alias in answers}
    return {alias: _with_cores(known, answers[alias]["host"]) for alias, known in facts.items()}


def _with_cores(facts: HostFacts, host: Mapping[str, Any]) -> HostFacts:
    """Where the hosts file does not limit jobs without cards, the host's own rule does: a quarter of its cores."""
    if facts.cpu_jobs is not None or not isinstance(host.get("cpus"), int):
        return facts
    return replace(facts, cpu_jobs=max(1, host["cpus"] // 4))


def _loads(session: Session, jobs: Sequence[Candidate]) -> dict[str, Load]:
    """Each sweep's trials by host, and how its `parallel` is shared out."""
    loads: dict[str, Load] = {}
    for sweep in dict.fromkeys(job.sweep for job in jobs if job.sweep):
        trials = [job for job in jobs if job.sweep == sweep]
        shares: dict[str, int] = {}
        for job in trials:
            told = job.request.get("sweep")
            share = told.get("parallel") if isinstance(told, dict) else None
            if isinstance(share, int):
                shares[job.host] = max(share, shares.get(job.host, 0))
        live = Counter(job.host for job in trials)
        running = Counter(job.host for job in trials if job.state == "RUNNING")
        loads[sweep] = Load(_parallel(session, sweep, shares), dict(live), dict(running), shares)
    return loads


def _parallel(session: Session, sweep: str, shares: Mapping[str, int]) -> int | None:
    """How many trials of a sweep may run at once over all hosts; what its hosts have been told, if nothing else is."""
    if not shares:
        return None
    try:
        said = (session.ledger.sweeps.get(sweep).spec.get("sweep") or {}).get("parallel")
    except NotFoundError:
        said = None
    return said if isinstance(said, int) else sum(shares.values())
