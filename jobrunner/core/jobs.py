"""A job as the ledger and every listing show it."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass


@dataclass(frozen=True)
class JobRow:
    """One job: the row of CONTRACT's JSON. Times are UTC text (`2026-12-01T09:30:00.123456Z`); unknown is None."""

    id: str
    name: str
    state: JobState
    phase: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: str | None = None
    host: str | None = None
    device: str | None = None
    cards: list[int] = field(default_factory=list)
    attempt: int | None = None
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None
    last_seen: str | None = None
    unreachable: bool = False
    cancel_requested_at: str | None = None
    sweep: str | None = None
    schedule: str | None = None
    retry_of: str | None = None

    def as_json(self) -> dict[str, Any]:
        """The row with exactly the contract's keys."""
        return {**vars(self), "state": self.state.value, "cards": list(self.cards)}
