"""What the service functions return: frozen values, which the command line prints as text or JSON.

Rows are `core.jobs.JobRow`; cards, checkpoints, checks and findings are dicts with exactly the keys of the
project's JSON. Every result has:

`errors`          what went wrong without ending the command (a silent host, an unknown id among several)
`warnings`        sentences for a person, for standard error
`hosts_asked`, `hosts_answered`   how many hosts were tried; with several, a silent one is not a failure by itself
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import Any, Literal

from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.service.submitresult import Result as Result
from jobrunner.service.submitresult import SubmitResult as SubmitResult


@dataclass(frozen=True)
class Listing(Result):
    """Jobs. `notes` says per job id, in a few words, what a state cannot: `held`, `retry in 30 s`, `waits for …`."""

    rows: list[JobRow] = field(default_factory=list)
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobDetails(Result):
    """Everything about one job. `evidence` is the host's own reason for the state, in plain words; `metrics` tells
    per name `count`, and `last min max best`: null, or `value step at attempt`."""

    row: JobRow
    spec: dict[str, Any] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    attempts: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)
    evidence: str = ""
    metrics: dict[str, dict[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class WaitResult(Result):
    """Jobs that were waited for. `timed_out`: the caller's limit passed before all were final."""

    rows: list[JobRow] = field(default_factory=list)
    timed_out: bool = False

    @property
    def exit_code(self) -> int:
        """124 if the limit passed, 1 if a job did not complete, else what the errors call for."""
        if self.timed_out:
            return 124
        code = super().exit_code
        if code == 0 and any(row.state is not JobState.COMPLETED for row in self.rows):
            return 1
        return code


@dataclass(frozen=True)
class CancelResult(Result):
    """Cancelled jobs. `kept`: ids whose host did not answer, so that the wish is kept for the next contact.

    `left`: per id, processes that would not end: dicts of `pid` and `command`. `already`: ids that were final before.
    """

    rows: list[JobRow] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    left: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    already: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """3 as soon as one wish had to be kept: the caller must know that something may still run."""
        return super().exit_code or (3 if self.kept or self.left else 0)


@dataclass(frozen=True)
class LogPiece:
    """One piece of a log that is being followed.

    `data`     `data` holds raw bytes of the current attempt's log
    `attempt`  `attempt` is the number of the attempt whose bytes come next; `offset` where they start, `size` its log's
    `note`     `note` is a sentence for standard error: `link lost, reconnecting`
    `end`      `row` is the job as last seen, final unless only the log so far was asked for; `evidence` for its state
    """

    kind: Literal["data", "attempt", "note", "end"]
    data: bytes = b""
    attempt: int | None = None
    offset: int | None = None
    size: int | None = None
    note: str = ""
    row: JobRow | None = None
    evidence: str = ""


@dataclass(frozen=True)
class CheckpointList(Result):
    """A job's checkpoints, newest first, with the keys of the project's JSON."""

    row: JobRow
    checkpoints: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class PullResult(Result):
    """Files that were fetched. `files`: dicts of `path` (below `to`), `size`, `sha256`, `fetched` (bytes sent).

    `checkpoints` is the list after a pull of checkpoints (`pulled_to` filled in), else empty.
    """

    row: JobRow
    to: str
    files: list[dict[str, Any]] = field(default_factory=list)
    checkpoints: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class HostsResult(Result):
    """Hosts, one dict each.

    `ls`: `name address device cards tags root drained last_seen in_file` (bool).  `check`: `name reachable error`
    (an error's three keys, or null) `python hostname instance user agent device tool_version cards` (how many)
    `disk_free_bytes clock_skew_s round_trip_ms drained`.  `drain`, `undrain`: `name reachable drained error`.
    """

    hosts: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class HostKeyOffer:
    """The key that a host showed and that nobody has confirmed yet. `fingerprint` is `SHA256:…`."""

    host: str
    address: str
    key_type: str
    fingerprint: str


@dataclass(frozen=True)
class HostAddResult(Result):
    """A host whose key is pinned now. `pinned` is False if it was known before; `hosts_file` is where it was written
    down, or None if it was there already."""

    host: dict[str, Any]
    offer: HostKeyOffer | None = None
    pinned: bool = False
    known_hosts: str | None = None
    hosts_file: str | None = None


@dataclass(frozen=True)
class CardsResult(Result):
    """Cards of hosts: dicts of `name reachable error device tool_version cards[]`."""

    hosts: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class DoctorResult(Result):
    """Checks of hosts: dicts of `name` and `checks[]` (`name ok found remedy`; `ok` null: could not be found out).

    Checks of this machine come under the name `this machine`.
    """

    hosts: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Findings(Result):
    """Answers to why: dicts of `code summary evidence remedy`, the likeliest first."""

    row: JobRow
    findings: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class AdoptResult(Result):
    """Jobs that the hosts know. `added`: ids that the ledger did not have; `schedules`: those that came back."""

    rows: list[JobRow] = field(default_factory=list)
    added: list[str] = field(default_factory=list)
    schedules: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class GcResult(Result):
    """What was removed: per host a dict of `name`, `removed` (dicts of `path bytes why`), `bytes`, `dry_run`."""

    hosts: list[dict[str, Any]] = field(default_factory=list)


def changed_rows(before: Sequence[JobRow], after: Sequence[JobRow]) -> list[JobRow]:
    """The rows of `after` that differ from `before` in state, phase, attempt or reachability, or are new."""
    known = {row.id: (row.state, row.phase, row.attempt, row.unreachable) for row in before}
    return [row for row in after if known.get(row.id) != (row.state, row.phase, row.attempt, row.unreachable)]
