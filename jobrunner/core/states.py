"""The states of a job, which of them may follow which, and why a job ended.

    STAGING → QUEUED → RUNNING → COMPLETED | FAILED | TIMEOUT | CANCELLED | LOST
    RUNNING → QUEUED   a retry: a new attempt of the same job
    QUEUED  → STAGING  moved to another host

Final states have no exits.
"""

from __future__ import annotations

from enum import Enum


class JobState(str, Enum):
    """Where a job is, or how it ended."""

    STAGING = "STAGING"
    QUEUED = "QUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    LOST = "LOST"

    @property
    def final(self) -> bool:
        """True for a state that never changes again."""
        return self in FINAL

    def may_become(self, other: JobState) -> bool:
        """True if `other` may follow this state (a state may always be seen again)."""
        return other is self or other in _NEXT[self]


FINAL = frozenset({JobState.COMPLETED, JobState.FAILED, JobState.TIMEOUT, JobState.CANCELLED, JobState.LOST})

_NEXT: dict[JobState, frozenset[JobState]] = {
    JobState.STAGING: frozenset({JobState.QUEUED, JobState.RUNNING}) | FINAL,
    JobState.QUEUED: frozenset({JobState.RUNNING, JobState.STAGING}) | FINAL,
    JobState.RUNNING: frozenset({JobState.QUEUED}) | FINAL,
    **{state: frozenset() for state in FINAL},
}

REASONS: dict[JobState, tuple[str, ...]] = {
    JobState.FAILED: ("exit", "signal", "oom", "setup", "disk_full", "launch", "dependency", "interrupted"),
    JobState.LOST: ("host_reboot", "killed", "unobserved"),
}
RETRY_ON = ("exit", "signal", "oom", "lost", "timeout")
