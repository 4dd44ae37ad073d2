"""`Result`, the base of all results, and that of a submit.

They are apart from the others (results.py) so that a submit need not build those, which takes a while.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import HostError, JobrunnerError
from jobrunner.core.jobs import JobRow
from jobrunner.core.values import dataclass

if TYPE_CHECKING:
    from jobrunner.ledger.sweeps import SweepRow


@dataclass(frozen=True, kw_only=True)
class Result:
    """Base of all results."""

    errors: list[JobrunnerError] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    hosts_asked: int = 0
    hosts_answered: int = 0

    @property
    def exit_code(self) -> int:
        """The exit code that the errors call for: a host's error counts only if no host answered at all."""
        own = [error.exit_code for error in self.errors if not isinstance(error, HostError)]
        if own:
            return own[0]
        return 3 if self.errors and self.hosts_answered == 0 else 0


@dataclass(frozen=True)
class SubmitResult(Result):
    """Jobs that their hosts have (or, for a dry run, would get).

    `report`  what the upload did: `files`, `bytes` (of the code), `sent`, `sent_bytes` (the rest was there already),
              `skipped` and `left_out` (files that a rule keeps here: dicts of `path rule source`), `biggest`
              ([[path, bytes], …]), `commit`, `dirty`; whatever is unknown is missing.
    `plans`   only for a dry run, one dict a job: `name`, `file`, `host`, `device`, `cards`, `command` (text), `files`,
              `bytes`, `why` (why this host), `spec` (as resolved).
    `resumed` ids of earlier submits that this one finished; `resume_from` the checkpoint that a retry goes on from.
    `sweeps`  of specs with `sweep`: `rows` has the trials made so far. A plan of such a spec has `sweep`, too:
              `method`, `trials` (how many), `hosts` (how many go where), `points`.
    `errors`  one per job that no host has now; a candidate host that was silent while another took it is a warning.
    """

    rows: list[JobRow] = field(default_factory=list)
    report: dict[str, Any] = field(default_factory=dict)
    plans: list[dict[str, Any]] = field(default_factory=list)
    resumed: list[str] = field(default_factory=list)
    resume_from: str | None = None
    notes: dict[str, str] = field(default_factory=dict)
    sweeps: list[SweepRow] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """That of the first job that did not arrive, even if others did."""
        return self.errors[0].exit_code if self.errors else 0
