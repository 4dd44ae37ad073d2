"""Retry: the same spec and code as a new job, going on from the newest valid checkpoint."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, LinkLostError, NotFoundError, UsageError
from jobrunner.core.ids import new_id
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.service import staging, submitters
from jobrunner.service.clock import now
from jobrunner.service.placing import place_all
from jobrunner.service.reconcile import reconcile, remember_host
from jobrunner.service.results import SubmitResult
from jobrunner.service.session import Session, client_identity

if TYPE_CHECKING:
    from jobrunner.core.spec import JobSpec
    from jobrunner.upload import Tree


def retry(session: Session, word: str, *, fresh: bool = False, elsewhere: bool = False) -> SubmitResult:
    """A new job from an old one. On its own host the code is there already and nothing is uploaded.

    `elsewhere` is for a job whose host does not answer: its cancel is kept for when that host is back. Raises
    UsageError for a job that is still live, SecretError for a secret that is not to be had.
    """
    session.be_patient()
    id_ = session.ledger.resolve(word)
    found = reconcile(session, only=[id_])
    detail = session.ledger.detail(id_)
    row = detail.row
    if not detail.request.get("spec"):
        raise NotFoundError(
            f"{row.name} ({id_}) never reached a host, so there is nothing to retry",
            remedy="submit its spec again",
        )
    if row.host is None or (row.host in found.errors and not elsewhere):
        error = found.errors.get(row.host or "")
        raise HostError(
            f"{row.name} ({id_}) cannot be retried on {row.host}: {error.message if error else 'it has no host'}",
            host=row.host or "",
            code="unreachable",
            remedy=f"wait until it is back, or `jobrunner retry {id_} --elsewhere` (which also cancels it there)",
        )
    if not row.state.final and not elsewhere:
        raise UsageError(
            f"{row.name} ({id_}) is {row.state.value}: only a job that has ended can be retried",
            code="still_live",
            remedy=f"`jobrunner cancel {id_}` first, or wait for it",
        )
    if elsewhere:
        return _elsewhere(session, row, detail)
    return _here(session, row, detail, fresh)


def _here(session: Session, row: JobRow, detail: Any, fresh: bool) -> SubmitResult:
    from jobrunner.core.spec import spec_from_json
    from jobrunner.service.specs import take_secrets

    assert row.host is not None
    spec = spec_from_json(detail.request["spec"])
    secrets = take_secrets(spec.secrets, session.environ, session.secrets_file)
    at, job_id = now(), new_id(os.urandom(16))
    folder = (detail.request.get("client") or {}).get("folder")
    request = staging.request_for(
        session, spec, row.host, job_id=job_id, at=at, code=detail.request.get("code"),
        client={**client_identity(), "folder": folder}, retry_of=row.id,
    )  # fmt: skip
    new = JobRow(job_id, row.name, JobState.STAGING, host=row.host, device=row.device, submitted_at=at, retry_of=row.id)
    me = submitters.Submitter(session.home)
    try:
        session.ledger.insert_staging(new, request, f"retry:{row.id}:{job_id}", detail.code_digest, me.as_json())
        link = session.link(row.host)
        try:
            answer = link.request("clone", id=row.id, request=request, secrets=secrets, resume=not fresh)
        except HostError as error:
            if not isinstance(error, LinkLostError):
                session.ledger.delete_unsent(job_id)
            raise
        session.ledger.apply_views(row.host, link.host_facts["instance"], answer["jobs"], now())
        remember_host(session, row.host, {"host": link.host_facts})
    finally:
        me.close()
    return SubmitResult(
        rows=[session.ledger.get(job_id)],
        resume_from=answer.get("resume_from"),
        warnings=session.warnings,
        hosts_asked=1,
        hosts_answered=1,
    )


def _elsewhere(session: Session, row: JobRow, detail: Any) -> SubmitResult:
    """On another host, from the folder on this machine, if it still holds the very same code."""
    from jobrunner.core.spec import spec_from_json
    from jobrunner.service.specs import take_secrets

    spec = spec_from_json(detail.request["spec"])
    tree = _same_code(session, row, detail, spec)
    host = _another_host(session, spec, row)
    secrets = take_secrets(spec.secrets, session.environ, session.secrets_file)
    if not row.state.final:
        session.ledger.request_cancel([row.id], now(), None)
    at, job_id = now(), new_id(os.urandom(16))
    request = staging.request_for(
        session, spec, host, job_id=job_id, at=at, code=detail.request.get("code"), client=detail.request["client"],
        retry_of=row.id,
    )  # fmt: skip
    new = JobRow(job_id, row.name, JobState.STAGING, host=host, device=row.device, submitted_at=at, retry_of=row.id)
    me = submitters.Submitter(session.home)
    try:
        session.ledger.insert_staging(new, request, f"retry:{row.id}:{job_id}", detail.code_digest, me.as_json())
        staging.stage(session, host, [{"request": request, "secrets": secrets}], tree)
    except LinkLostError:
        raise  # the row stays: nobody knows yet whether the host has the job
    except (HostError, UsageError):
        session.ledger.delete_unsent(job_id)
        raise
    finally:
        me.close()
    return SubmitResult(rows=[session.ledger.get(job_id)], warnings=session.warnings, hosts_asked=1, hosts_answered=1)


def _same_code(session: Session, row: JobRow, detail: Any, spec: JobSpec) -> Tree | None:
    """The tree of the folder that was sent then; UsageError if it is gone or differs by a byte."""
    if detail.code_digest is None:
        return None
    assert spec.code is not None
    folder = Path(str(detail.request.get("client", {}).get("folder") or ""))
    if not folder.is_absolute() or not folder.is_dir():
        raise UsageError(
            f"{row.name} ({row.id}) cannot go elsewhere: its code folder {folder} is not on this machine",
            code="code_gone",
            remedy="submit its spec again from where the code is",
        )
    tree = staging.read_code(session, folder, spec.code)
    if staging.code_digest(tree) != detail.code_digest:
        raise UsageError(
            f"{row.name} ({row.id}) cannot go elsewhere as it was: {folder} has changed since it was submitted",
            code="code_changed",
            remedy="submit its spec again (with the code as it is now), and cancel this one",
        )
    return tree


def _another_host(session: Session, spec: JobSpec, row: JobRow) -> str:
    """The best host but the one that the job is on. Raises what the placement says if there is none."""
    others = [alias for alias in (spec.hosts or session.known_aliases()) if alias != row.host]
    if not others:
        raise UsageError(
            f"{row.name} ({row.id}) may go to {row.host} only",
            code="no_host",
            remedy="submit its spec again with --host OTHER",
        )
    [placement] = place_all(session, [spec.model_copy(update={"hosts": tuple(others)})], None)
    if placement.host is None:
        raise placement.error()
    return placement.host
