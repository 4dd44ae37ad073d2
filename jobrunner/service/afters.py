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
            ended = {row.id: row.state.value for row in _elsewhere(session, job.id, waits) if row.state.final}
            if ended:
                _tell(session, found, alias, job.id, ended)


def _tell(session: Session, found: Reconciled, alias: str, id_: str, ended: dict[str, str]) -> None:
    key, said = f"told:{id_}", json.dumps(ended, sort_keys=True)
    if session.ledger.meta(key) == said:
        return
    link = session.link(alias)
    try:
        answer: dict[str, Any] = link.request("resolve", id=id_, after=ended)
    except HostError as error:
        found.errors[alias] = error
        return
    views = {job: view for job, view in answer["jobs"].items() if view}
    session.ledger.apply_views(alias, link.host_facts["instance"], views, now())
    session.ledger.set_meta(key, said)


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
