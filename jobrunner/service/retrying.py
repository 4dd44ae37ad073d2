"""Retry: the same spec and code as a new job, going on from the newest valid checkpoint."""

from __future__ import annotations

import os
from collections.abc import Mapping
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
from jobrunner.service.session import Session, client_identity
from jobrunner.service.submitresult import SubmitResult

if TYPE_CHECKING:
    from types import TracebackType

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
        return _elsewhere(session, row, detail, answers=row.host not in found.errors)
    return _here(session, row, detail, fresh)


def _here(session: Session, row: JobRow, detail: Any, fresh: bool) -> SubmitResult:
    from jobrunner.core.spec import spec_from_json
    from jobrunner.service.specs import take_secrets

    assert row.host is not None
    spec = spec_from_json(detail.request["spec"])
    secrets = take_secrets(spec.secrets, session.environ, session.secrets_file)
    digest = f"retry:{row.id}:{'fresh' if fresh else 'here'}"
    client = {**client_identity(), "folder": (detail.request.get("client") or {}).get("folder")}
    with _Shipment(session, row, detail, digest) as new:
        request = new.note(spec, row.host, client)
        link = session.link(row.host)
        answer = link.request("clone", id=row.id, request=request, secrets=secrets, resume=not fresh)
        session.ledger.apply_views(row.host, link.host_facts["instance"], answer["jobs"], now())
        remember_host(session, row.host, {"host": link.host_facts})
    return _result(session, new, answer.get("resume_from"))


def _elsewhere(session: Session, row: JobRow, detail: Any, *, answers: bool) -> SubmitResult:
    """On another host, from the folder on this machine, if it still holds the very same code.

    The old job is cancelled first: at once if its host `answers`, else by a wish that is kept for when it does.
    """
    from jobrunner.core.spec import spec_from_json
    from jobrunner.service.specs import take_secrets

    spec = spec_from_json(detail.request["spec"])
    tree = _same_code(session, row, detail, spec)
    secrets = take_secrets(spec.secrets, session.environ, session.secrets_file)
    with _Shipment(session, row, detail, f"retry:{row.id}:elsewhere") as new:
        host = new.going_to or _another_host(session, spec, row)
        new.wished = _end_the_old(session, row, answers)
        request = new.note(spec, host, detail.request["client"])
        staging.stage(session, host, [{"request": request, "secrets": secrets}], tree)
    _say_what_stays_behind(session, row)
    return _result(session, new, None)


def _result(session: Session, new: _Shipment, resume_from: Any) -> SubmitResult:
    return SubmitResult(
        rows=[session.ledger.get(new.id)],
        resumed=[new.id] if new.going_to else [],
        resume_from=resume_from,
        warnings=session.warnings,
        hosts_asked=1,
        hosts_answered=1,
    )


class _Shipment:
    """The new job on its way. An earlier retry whose answer never came is gone on with, under its id and to its host.

    If sending fails for sure, the ledger forgets the new job, and a cancel of the old one that was `wished` for it. A
    cut link leaves both: nobody knows yet whether the host has the job.
    """

    def __init__(self, session: Session, row: JobRow, detail: Any, digest: str) -> None:
        self._session, self._row, self._detail, self._digest = session, row, detail, digest
        self.id = ""
        self.going_to: str | None = None
        self.wished = False
        self._request: dict[str, Any] = {}

    def __enter__(self) -> _Shipment:
        session = self._session
        self._me = submitters.Submitter(session.home)
        for staged in session.ledger.find_resumable(self._digest, self._detail.code_digest):
            if not submitters.is_alive(session.home, staged.submitter) and session.ledger.take_over(
                staged.row.id, staged.submitter, self._me.as_json()
            ):
                self.id, self._request, self.going_to = staged.row.id, staged.request, staged.row.host
                break
        return self

    def note(self, spec: JobSpec, host: str, client: Mapping[str, Any]) -> dict[str, Any]:
        """The new job's request, which the ledger knows before any host does."""
        if self.going_to:
            return self._request
        session, row, at = self._session, self._row, now()
        self.id = new_id(os.urandom(16))
        request = staging.request_for(
            session, spec, host, job_id=self.id, at=at, code=self._detail.request.get("code"), client=client,
            retry_of=row.id,
        )  # fmt: skip
        new = JobRow(
            self.id, row.name, JobState.STAGING, host=host, device=row.device, submitted_at=at, retry_of=row.id
        )
        session.ledger.insert_staging(new, request, self._digest, self._detail.code_digest, self._me.as_json())
        return request

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        certain = isinstance(error, HostError | UsageError) and not isinstance(error, LinkLostError)
        earlier = self.going_to and isinstance(error, staging.NOT_REACHED)  # an earlier retry may have brought it there
        if certain and not earlier:
            there = False
            if self.id and error is not None:
                host = self.going_to or self._session.ledger.get(self.id).host or ""
                there = bool(staging.forget_unless_there(self._session, host, [self.id], error))
            if self.wished and not there:
                self._session.ledger.withdraw_cancel(self._row.id)
        self._me.close()


def _end_the_old(session: Session, row: JobRow, answers: bool) -> bool:
    """See that the old job does not run beside the new one. True if that is a wish which can still be withdrawn."""
    from jobrunner.service.control import cancel

    if row.state.final:
        return False
    if not answers:
        session.ledger.request_cancel([row.id], now(), None)
        return row.cancel_requested_at is None
    ended = cancel(session, [row.id])
    if not ended.rows[0].state.final:
        raise (
            ended.errors[0]
            if ended.errors
            else HostError(
                f"{row.name} ({row.id}) did not end on {row.host}, so it was not started elsewhere",
                host=row.host or "",
                code="still_live",
                remedy=f"`jobrunner cancel {row.id}`, then again",
            )
        )
    return False


def _say_what_stays_behind(session: Session, row: JobRow) -> None:
    there = [item for item in session.ledger.checkpoints(row.id) if item.complete and not item.removed]
    if there:
        here = next((f"; {item.name} was fetched to {item.pulled_to}" for item in there if item.pulled_to), "")
        session.warn(f"it begins anew: its {len(there)} checkpoints are on {row.host}{here}")


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
