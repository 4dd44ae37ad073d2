"""What a host's answer changes in a job's row. Pure: rows and views in, new columns out.

A job only moves forward. How far it is, is one number made from a view: attempts that have ended, then the state
within the attempt (QUEUED before RUNNING); final is beyond all. So QUEUED after RUNNING is progress where an attempt
ended in between (a retry), and an old answer that arrives late is seen to be old. Where the journal's length is
known it decides. As a last resort a sighting much later than the row's wins, whatever it says: the host's files
are the truth, and an answer is never older than a request may take.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from jobrunner.core.states import JobState
from jobrunner.core.values import dataclass
from jobrunner.ledger.records import Outcome, card_list, dump, link, plain, whole

SETTLED_AFTER_S = 300
"""An answer that comes so many seconds after the row's last sighting cannot be an old one that was delayed."""

_FINAL_PROGRESS = 2**40
_RANK = {JobState.STAGING: 0, JobState.QUEUED: 1, JobState.RUNNING: 2}
_TEXTS = ("phase", "reason", "signal", "device", "started_at", "ended_at", "not_before", "launcher")
_NUMBERS = ("exit_code", "attempt", "log_bytes")
_LINKS = ("retry_of", "sweep", "schedule")


@dataclass(frozen=True)
class Sighting:
    """Who answered, and when. `start` and `next`: which bytes of the job's journal came along, if any."""

    alias: str
    instance: str
    seen_at: str
    start: int | None = None
    next: int | None = None


def merge(stored: Mapping[str, Any], view: Mapping[str, Any], sighting: Sighting) -> tuple[Outcome, dict[str, Any]]:
    """What became of a view, and the columns it changes in the stored row (possibly none)."""
    if not _same_machine(stored, sighting):
        return Outcome.OTHER_MACHINE, {}
    state = _state(view)
    seen = {"last_seen": _later(stored["last_seen"], sighting.seen_at), "unreachable": 0, "error": None, "confirmed": 1}
    seen["instance"] = sighting.instance
    if state is None:
        return Outcome.UNKNOWN_STATE, {**seen, "confirmed": stored["confirmed"]}
    if stored["final"]:
        return Outcome.FINAL, {**seen, **_after_the_end(stored, view, state)}
    if _past(stored, progress(view, state), sighting):
        return Outcome.PAST, {}
    return Outcome.APPLIED, {**seen, **_columns(stored, view, state)}


def progress(view: Mapping[str, Any], state: JobState) -> int:
    """How far a job is: grows with every step that it takes, retries included."""
    if state.final:
        return _FINAL_PROGRESS
    attempts = view.get("attempts")
    ended = 0
    for attempt in attempts if isinstance(attempts, list) else []:
        if isinstance(attempt, Mapping) and any(
            attempt.get(key) is not None for key in ("ended_at", "exit_code", "signal", "reason")
        ):
            ended += 1
    return ended * 4 + _RANK[state]


def _same_machine(stored: Mapping[str, Any], sighting: Sighting) -> bool:
    if stored["instance"]:
        return bool(stored["instance"] == sighting.instance)
    return stored["host"] in (None, sighting.alias)


def _state(view: Mapping[str, Any]) -> JobState | None:
    try:
        return JobState(view.get("state"))
    except ValueError:
        return None


def _past(stored: Mapping[str, Any], now: int, sighting: Sighting) -> bool:
    """True if the row already knows something later than this view."""
    if sighting.next is not None and sighting.next > stored["offset"]:
        return False
    if not stored["confirmed"]:
        return False
    older = sighting.next is not None and sighting.next < stored["offset"]
    if not older and now > stored["progress"]:
        return False
    if not older and now == stored["progress"]:
        return bool(stored["last_seen"] and sighting.seen_at < stored["last_seen"])
    return _seconds_between(stored["last_seen"], sighting.seen_at) < SETTLED_AFTER_S


def _columns(stored: Mapping[str, Any], view: Mapping[str, Any], state: JobState) -> dict[str, Any]:
    """Every column that a view says something about; what it does not mention stays."""
    columns: dict[str, Any] = {"state": state.value, "final": int(state.final), "progress": progress(view, state)}
    columns.update({key: plain(view[key]) for key in _TEXTS if key in view})
    columns.update({key: whole(view[key]) for key in _NUMBERS if key in view})
    columns.update({key: link(view[key]) for key in _LINKS if view.get(key) is not None})
    if "cards" in view:
        columns["cards"] = dump(card_list(view["cards"]))
    if "evidence" in view:
        columns["evidence"] = dump(view["evidence"])
    if isinstance(view.get("warnings"), list):
        columns["warnings"] = dump(view["warnings"])
    columns["priority"] = whole(view.get("priority")) or 0
    columns["hold"] = int(bool(view.get("hold")))
    if not stored["cancel_requested_at"]:
        columns["cancel_requested_at"] = plain(view.get("cancel_requested_at"))
    return columns


def _after_the_end(stored: Mapping[str, Any], view: Mapping[str, Any], state: JobState) -> dict[str, Any]:
    """What may still be learned about a final job: only gaps are filled, and only if the host says the same."""
    if state.value != stored["state"]:
        return {}
    columns: dict[str, Any] = {}
    for key in ("log_bytes", "started_at", "evidence", "launcher"):
        if stored[key] is None and view.get(key) is not None:
            value = view[key]
            columns[key] = dump(value) if key == "evidence" else whole(value) if key == "log_bytes" else plain(value)
    return columns


def _later(one: str | None, other: str) -> str:
    return other if one is None or other > one else one


def _seconds_between(earlier: str | None, later: str) -> float:
    try:
        return (_moment(later) - _moment(earlier or "")).total_seconds()
    except ValueError:
        return 0.0


def _moment(text: str) -> datetime:
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S.%fZ")
