"""A paused trial goes on from its checkpoint: a new job of the same trial, on the host where the checkpoint lies.

Its request says which job it goes on from (`sweep.goes_on`), so the jobs of one trial stay one story whatever is lost.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from jobrunner.core.errors import HostError, JobrunnerError, LinkLostError, UsageError
from jobrunner.core.ids import new_id
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger.sweeps import Sending, SweepRow, Trial
from jobrunner.service import staging, submitters
from jobrunner.service.clock import now
from jobrunner.service.reconcile import remember_host
from jobrunner.service.session import Session
from jobrunner.service.sweeps.sending import digest_of

MOST_PRIORITY = 1_000_000
GONE = ("code_gone", "no_such_job")
"""What a host says when a trial can never go on there."""


def go_on(
    session: Session, sweep: SweepRow, trial: Trial, source: JobRow, why: str, *, rung: int | None, last: bool = False
) -> str | None:
    """Let a paused trial go on from `source`, the job that it paused in; the new job's id.

    `last`: it is not paused any more. None if somebody else was quicker. Raises HostError if its host cannot take it:
    it stays paused then, unless nobody knows whether the job arrived (the next visit finds out).
    """
    from jobrunner.service.specs import take_secrets

    request, row, code_digest = _renewed(session, sweep, source, rung)
    secrets = take_secrets(tuple(request["run"].get("secrets") or ()), session.environ, session.secrets_file)
    link = session.link(row.host or "")
    me, at = submitters.Submitter(session.home), now()
    try:
        item = Sending(trial, row, request, trial.job)
        if not session.ledger.sweeps.stage(
            [item], spec_digest=digest_of(sweep), code_digest=code_digest, submitter=me.as_json(), at=at
        ):
            return None
        note = {**trial.note, **({"last": True} if last else {})}
        session.ledger.sweeps.change_trial(sweep.id, trial.point, at, status="promoted", rung=rung, note=note)
        try:
            answer = link.request("clone", id=source.id, request=request, secrets=secrets, resume=True)
        except LinkLostError:
            raise
        except (HostError, UsageError) as error:
            _take_back(session, sweep, trial, row, error)
            raise
        session.ledger.apply_views(link.alias, link.host_facts["instance"], answer["jobs"], now())
        remember_host(session, link.alias, {"host": link.host_facts})
        _note(session, source, row, why, answer.get("resume_from"))
    finally:
        me.close()
    return row.id


def chain(job: str | None, told: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The jobs of a trial that went on one from the other, the first one first. Pure."""
    story: list[str] = []
    while job is not None and job not in story:
        story.insert(0, job)
        before = (told.get(job) or {}).get("goes_on")
        job = before if isinstance(before, str) else None
    return story


def _renewed(
    session: Session, sweep: SweepRow, source: JobRow, rung: int | None
) -> tuple[dict[str, Any], JobRow, str | None]:
    """The request of the job that goes on: that of the one before, under a new id, and ahead of trials that wait."""
    detail = session.ledger.detail(source.id)
    before: Mapping[str, Any] = detail.request
    id_, at = new_id(os.urandom(16)), now()
    priority = int(sweep.spec.get("priority") or 0) + (rung or 0) + 1
    request = {
        **{key: value for key, value in before.items() if key != "moves"},
        "id": id_,
        "agent": session.agent_hash,
        "submitted_at": at,
        "retry_of": source.id,
        "sweep": {**before["sweep"], "goes_on": source.id},
        "run": {**before["run"], "priority": min(priority, MOST_PRIORITY)},
    }
    row = JobRow(
        id_, source.name, JobState.STAGING, host=source.host, device=source.device, submitted_at=at,
        sweep=sweep.id, retry_of=source.id,
    )  # fmt: skip
    return request, row, detail.code_digest


def _take_back(session: Session, sweep: SweepRow, trial: Trial, row: JobRow, error: JobrunnerError) -> None:
    """The host said no, for sure: the trial is as it was. One whose code or job is gone there can never go on."""
    if staging.forget_unless_there(session, row.host or "", [row.id], error):
        return
    at = now()
    status = "stopped" if error.code in GONE else trial.status
    session.ledger.sweeps.change_trial(
        sweep.id, trial.point, at, job=trial.job, status=status, rung=trial.rung, note=trial.note
    )


def _note(session: Session, source: JobRow, row: JobRow, why: str, resume_from: Any) -> None:
    """Both jobs' timelines tell of it."""
    at = now()
    session.ledger.add_event(source.id, "early_stop", at, {"verdict": "promote", "why": why, "job": row.id})
    told = {"verdict": "promote", "why": why, "goes_on": source.id, "resume_from": resume_from}
    session.ledger.add_event(row.id, "early_stop", at, told)
    if resume_from is None:
        session.warn(f"{row.name} ({row.id}) begins anew: {source.id} left no whole checkpoint to go on from")
