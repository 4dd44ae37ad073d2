"""Jobs that wait for jobs on other hosts: only a client sees both, so it tells the one host what became of the other's.

A waiting job's own host settles whatever it can see itself; what it is told stays in the job's folder there.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
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
    ahead = list(ids)
    while ahead:
        for row in _elsewhere(session, ahead.pop()):
            if not row.state.final and row.id not in found:
                found.add(row.id)
                ahead.append(row.id)
    return found


def tell(session: Session, found: Reconciled) -> None:
    """Tell the hosts that answered how the jobs elsewhere ended that their queued jobs wait for; each end once."""
    live = session.ledger.live_by_host()
    for alias in found.answers.keys() - found.errors.keys():
        for job in live.get(alias, ()):
            if job.state is not JobState.QUEUED:
                continue
            ended = {row.id: row.state.value for row in _elsewhere(session, job.id) if row.state.final}
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


def _elsewhere(session: Session, id_: str) -> list[JobRow]:
    """The jobs that a job waits for and that are on another host than itself, as far as the ledger knows them."""
    detail = session.ledger.detail(id_)
    if detail.row.state.final:
        return []
    rows = []
    for item in detail.request.get("run", {}).get("after") or ():
        try:
            row = session.ledger.get(str(item.get("job")))
        except NotFoundError:
            continue
        if row.host is not None and row.host != detail.row.host:
            rows.append(row)
    return rows
