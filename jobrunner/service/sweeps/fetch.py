"""Bring home what a sweep's best trial has made."""

from __future__ import annotations

from pathlib import Path

from jobrunner.core.errors import NotFoundError
from jobrunner.service.data import pull, pull_checkpoints
from jobrunner.service.results import PullResult
from jobrunner.service.session import Session
from jobrunner.service.sweeps.view import TrialView


def pull_best(session: Session, found: TrialView, to: Path | None = None) -> PullResult:
    """Fetch the trial's best checkpoint, its last where nothing says which is best, its outputs where it has none."""
    assert found.trial.job is not None
    job = found.trial.job
    keep = (session.ledger.detail(job).request.get("spec", {}).get("checkpoints") or {}).get("keep") or {}
    try:
        return pull_checkpoints(session, job, "best" if keep.get("best") else "last", to)
    except NotFoundError:
        return pull(session, job, [], to)
