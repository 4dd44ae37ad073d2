"""What the ledger returns: frozen values, and how they are read from and written to rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from enum import Enum
from typing import Any

from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass

ROW_COLUMNS = ", ".join(f.name for f in fields(JobRow))
_ENCODER = json.JSONEncoder(separators=(",", ":"), ensure_ascii=True, default=str)
_STATES = {state.value: state for state in JobState}


class Outcome(str, Enum):
    """What became of a sighting (a host's view of a job)."""

    APPLIED = "applied"
    PAST = "past"  # older than what the ledger knows already: nothing changed
    FINAL = "final"  # the job was final before: only what stays open after that was taken over
    OTHER_MACHINE = "other_machine"  # the alias leads to a machine that never had the job: nothing changed
    UNKNOWN_JOB = "unknown_job"  # the ledger has no such job
    UNKNOWN_STATE = "unknown_state"  # a word from a newer agent: only the time of the sighting was kept


@dataclass(frozen=True)
class EventBatch:
    """Events of a job's journal on its host, read from byte `start` up to byte `next`."""

    start: int
    next: int
    items: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Event:
    """One thing that happened to a job. `source` is "host" (its journal) or "client" (this machine)."""

    at: str | None
    kind: str
    source: str
    data: dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """One attempt of a job. Times are UTC text."""

    number: int
    started_at: str | None = None
    ended_at: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    reason: str | None = None
    cards: list[int] = field(default_factory=list)
    log_bytes: int | None = None


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of a job. `pulled_to` is the file on this machine that it was last fetched to."""

    name: str
    path: str
    step: int | None = None
    size: int | None = None
    sha256: str | None = None
    modified_at: str | None = None
    complete: bool = False
    metrics: dict[str, Any] = field(default_factory=dict)
    attempt: int | None = None
    removed: bool = False
    pulled_to: str | None = None


@dataclass(frozen=True)
class HostRow:
    """What is remembered of a host. `instance` is the id of the machine that answered under this alias last."""

    alias: str
    address: str | None = None
    instance: str | None = None
    hostname: str | None = None
    machine_id: str | None = None
    agent: str | None = None
    device: str | None = None
    tool_version: str | None = None
    last_seen: str | None = None
    error: str | None = None
    drained: bool = False
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Wish:
    """A cancel that was asked for and that the host has not been told yet."""

    job: str
    kind: str
    at: str
    grace_s: float | None


@dataclass(frozen=True)
class LiveJob:
    """A job that is not final: what a request to its host needs. `offset` is where its journal is to be read on."""

    id: str
    name: str
    state: JobState
    instance: str | None
    offset: int
    confirmed: bool


@dataclass(frozen=True)
class StagedJob:
    """A job whose submitter never learned that the host had it."""

    row: JobRow
    request: dict[str, Any]
    submitter: dict[str, Any]


@dataclass(frozen=True)
class JobDetail:
    """Everything about one job but its history. `error` says why its host could not be reached."""

    row: JobRow
    request: dict[str, Any]
    instance: str | None
    spec_digest: str | None
    code_digest: str | None
    submitter: dict[str, Any]
    priority: int
    hold: bool
    not_before: str | None
    evidence: Any
    log_bytes: int | None
    launcher: str | None
    warnings: list[str]
    error: str | None
    offset: int
    confirmed: bool
    updated_at: str | None


def job_row(row: Sequence[Any]) -> JobRow:
    """The JobRow of a select of ROW_COLUMNS."""
    (
        id_,
        name,
        state,
        phase,
        reason,
        code,
        signal,
        host,
        device,
        cards,
        attempt,
        submitted,
        started,
        ended,
        seen,
        *rest,
    ) = row
    unreachable, cancel, sweep, schedule, retry_of = rest
    return JobRow(
        id_, name, _STATES[state], phase, reason, code, signal, host, device, [] if cards == "[]" else load(cards, []),
        attempt, submitted, started, ended, seen, bool(unreachable), cancel, sweep, schedule, retry_of,
    )  # fmt: skip


def row_values(row: JobRow) -> dict[str, Any]:
    """The columns of a JobRow, as they are stored."""
    return {**vars(row), "state": row.state.value, "cards": dump(row.cards), "unreachable": int(row.unreachable)}


def dump(value: Any) -> str:
    """JSON as it is stored: plain ASCII, so that any text (lone surrogates too) survives."""
    return _ENCODER.encode(value)


def load(text: str | None, default: Any) -> Any:
    """The value of stored JSON; `default` where there is none or it cannot be read."""
    if not text:
        return default
    try:
        return json.loads(text)
    except ValueError:
        return default


def exact(text: str | None) -> str | bytes | None:
    """A path or name for a column written with `AS_TEXT`: its own bytes where it is no valid Unicode."""
    if text is None:
        return None
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass" if _odd(text) else "surrogateescape")
    return text


def _odd(text: str) -> bool:
    """True if a surrogate is there that stands for no byte."""
    return any("\ud800" <= char <= "\udfff" and not "\udc80" <= char <= "\udcff" for char in text)


AS_TEXT = "CAST(? AS TEXT)"
"""SQL for a value of columns that hold `exact` values."""


def plain(value: Any) -> str | None:
    """Text from a host for a column that people read; what is no valid Unicode is shown escaped. None if no text."""
    if not isinstance(value, str):
        return None
    return value.encode("utf-8", "backslashreplace").decode("utf-8")


def link(value: Any) -> str | None:
    """The id of a sweep, schedule or job from a host, which may tell it with what else it knows. None if none."""
    return plain(value.get("id") if isinstance(value, Mapping) else value)


def whole(value: Any) -> int | None:
    """A number from a host that SQLite can hold, else None."""
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if -(2**63) <= value < 2**63 else None


def card_list(value: Any) -> list[int]:
    """A list of card numbers from a host; anything else in it is left out."""
    return [card for card in value if whole(card) is not None] if isinstance(value, list) else []
