"""Jobs that wait for jobs on other hosts: only a client sees both, so it tells the one host what became of the other's.

A waiting job's own host settles whatever it can see itself; what it is told stays in the job's folder there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, NotFoundError
from jobrunner.core.states import JobState
from jobrunner.service.clock import now

if TYPE_CHECKING:
    from jobrunner.core.jobs import JobRow
    from jobrunner.service.reconcile import Reconciled
    from jobrunner.service.session import Session


def awaited(session: Session, ids: Iterable[str]) -> set[str]:
    """The live jobs on other hosts that these wait for, directly or through others."""
    found: set[str] = set()
    waits = session.ledger.waits()
    ahead = list(ids) if waits else []
    while ahead:
        for row in _elsewhere(session, ahead.pop(), waits):
            if not row.state.final and row.id not in found:
                found.add(row.id)
                ahead.append(row.id)
    return found


def tell(session: Session, found: Reconciled) -> None:
    """Tell the hosts that answered how the jobs elsewhere ended that their queued jobs wait for; each end once."""
    waits = session.ledger.waits()
    live = session.ledger.live_by_host() if waits else {}
    for alias in found.answers.keys() - found.errors.keys():
        for job in live.get(alias, ()):
            if job.state is not JobState.QUEUED:
                continue
            rows = [row for row in _elsewhere(session, job.id, waits) if row.state.final]
            later = {row.id for row in needed(session, job.id, waits)} if rows else set()
            ended = {row.id: row.state.value for row in rows if row.id not in later}
            try:
                if ended:
                    resolve(session, alias, job.id, ended)
            except HostError as error:
                found.errors[alias] = error


def needed(session: Session, id_: str, waits: Mapping[str, Sequence[str]]) -> list[JobRow]:
    """The jobs on other hosts whose checkpoints a queued job's words name: their ends are told when these are there.

    Not those whose end is not the one that the job waits for: it is told of that at once.
    """
    rows = _elsewhere(session, id_, waits)
    if not rows or session.ledger.get(id_).state is not JobState.QUEUED:
        return []
    run = session.ledger.detail(id_).request.get("run", {})
    named = _named(run)
    when = {str(item.get("job")): item.get("when") or "ok" for item in run.get("after") or ()}
    return [row for row in rows if row.id in named and _hoped(row, when.get(row.id, "ok"))]


def _named(run: Mapping[str, Any]) -> set[str]:
    from jobrunner.core.placeholders import OPEN, find

    command = run.get("command") or {}
    words = [*(command.get("argv") or ()), *(command.get("args") or ()), *(run.get("resume_args") or ())]
    return {job for word in words if f"{OPEN}:" in word for job in find(word)[1] if job is not None}


def _hoped(row: JobRow, when: str) -> bool:
    fine = row.state is JobState.COMPLETED
    return not row.state.final or when == "any" or fine == (when == "ok")


def resolve(
    session: Session, alias: str, id_: str, ended: Mapping[str, str], checkpoints: Mapping[str, str] | None = None
) -> bool:
    """Tell a host how jobs ended that one of its jobs waits for, and where their checkpoints are; False if it knows."""
    key, said = f"told:{id_}", json.dumps([ended, checkpoints] if checkpoints else ended, sort_keys=True)
    if session.ledger.meta(key) == said:
        return False
    link = session.link(alias)
    answer: dict[str, Any] = link.request("resolve", id=id_, after=ended, checkpoints=checkpoints or {})
    views = {job: view for job, view in answer["jobs"].items() if view}
    session.ledger.apply_views(alias, link.host_facts["instance"], views, now())
    session.ledger.set_meta(key, said)
    return True


def _elsewhere(session: Session, id_: str, waits: Mapping[str, Sequence[str]]) -> list[JobRow]:
    """The jobs that a live job waits for and that are on another host than itself, as far as the ledger knows them."""
    if id_ not in waits:
        return []
    own = session.ledger.get(id_)
    rows = []
    for job in waits[id_]:
        try:
            row = session.ledger.get(job)
        except NotFoundError:
            continue
        if row.host is not None and row.host != own.host:
            rows.append(row)
    return rows
