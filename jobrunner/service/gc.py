"""Clean the hosts: old attempts' folders, code that no job needs, agents of the past."""

from __future__ import annotations

from collections.abc import Sequence

from jobrunner.core.errors import HostError, JobrunnerError
from jobrunner.service.results import GcResult
from jobrunner.service.session import Session

KEEP_DAYS = 30


def gc(session: Session, names: Sequence[str], dry_run: bool = False) -> GcResult:
    """Remove what no live job needs from these hosts (default: all known ones), or only say what would go."""
    aliases = session.choose_hosts(list(names))
    rows = []
    errors: list[JobrunnerError] = []
    outcomes = session.links.map(
        lambda link: link.request("gc", dry_run=dry_run, keep_days=KEEP_DAYS, working=True), aliases
    )
    for alias, outcome in outcomes.items():
        if outcome.value is None:
            errors.append(session.named(alias, outcome.error or HostError(f"{alias} gave no answer", host=alias)))
            continue
        removed, size = outcome.value["removed"], outcome.value["bytes"]
        rows.append({"name": alias, "removed": removed, "bytes": size, "dry_run": dry_run})
    return GcResult(
        hosts=rows,
        errors=errors,
        warnings=session.warnings,
        hosts_asked=len(aliases),
        hosts_answered=len(rows),
    )
