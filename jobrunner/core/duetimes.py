"""What becomes of a schedule's due times. Pure: the clock and what is known of earlier runs come in as arguments."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Any, Literal

from jobrunner.core.cronspec import Cron, delay_s, dues, parse_cron, zone_or_none
from jobrunner.core.durations import parse_duration
from jobrunner.core.errors import UsageError
from jobrunner.core.values import dataclass

LATE_S = 600
"""A run that starts no later than this after its time is on time: a laptop was asleep, a tick came late."""

NOTED = 100
"""So many due times at most are decided singly; of earlier ones nothing is made up for."""

FORMAT = "%Y-%m-%dT%H:%M:%S.%fZ"
_SPANS = (timedelta(hours=2), timedelta(days=2), timedelta(days=100), timedelta(days=3000))


@dataclass(frozen=True)
class Timing:
    """A schedule's rules. `deadline_s` is None for none."""

    id: str
    cron: Cron
    zone: tzinfo
    overlap: Literal["skip", "queue", "replace", "allow"]
    catch_up: Literal["none", "latest", "all"]
    deadline_s: int | None
    jitter_s: int

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Due times after an instant."""
        return dues(self.cron, self.zone, instant)

    def start(self, due: datetime) -> datetime:
        """When the run of a due time starts: then, or spread by `jitter` after it."""
        return due + timedelta(seconds=delay_s(self.id, stamp(due), self.jitter_s))


@dataclass(frozen=True)
class Decision:
    """What is to become of a due time: `waiting` (to be fired) or `skipped`, and why."""

    due: datetime
    outcome: Literal["waiting", "skipped"]
    why: str | None = None


@dataclass(frozen=True)
class Before:
    """A run that is not over. `what` names its job or sweep; `fired_at` is None where it has not been fired yet."""

    what: str
    due: datetime
    fired_at: datetime | None


@dataclass(frozen=True)
class Verdict:
    """What to do with a run now."""

    do: Literal["fire", "wait", "skip", "replace"]
    why: str | None = None


def stamp(instant: datetime) -> str:
    """An instant as the ledger writes it."""
    return instant.astimezone(timezone.utc).strftime(FORMAT)


def instant(text: str) -> datetime:
    """The instant of such a text."""
    return datetime.strptime(text, FORMAT).replace(tzinfo=timezone.utc)


def timing_of(id_: str, settings: Mapping[str, Any]) -> Timing:
    """The rules that a spec's `schedule` (as JSON) tells. UsageError if this machine does not know its zone."""
    zone = zone_or_none(str(settings.get("timezone")))
    if zone is None:
        raise UsageError(
            f"schedule {id_}: this machine does not know the time zone {settings.get('timezone')!r}",
            code="timezone",
            remedy="install the time zones (`pip install --upgrade tzdata`)",
        )
    deadline = settings.get("deadline")
    return Timing(
        id_,
        parse_cron(str(settings["cron"])),
        zone,
        settings.get("overlap") or "skip",
        settings.get("catch_up") or "latest",
        parse_duration(deadline).seconds if deadline else None,
        parse_duration(settings.get("jitter") or "0s").seconds,
    )


def decide(timing: Timing, considered_until: datetime, now: datetime, *, paused: bool = False) -> list[Decision]:
    """What becomes of the due times after `considered_until` up to `now`, oldest first; at most NOTED + 1 of them.

    Where the clock was set back nothing lies between the two; a due time that comes again has its run already.
    """
    found, more = _newest(timing, considered_until, now)
    decisions = [
        _decided(timing, due, now, newest=place == len(found) - 1, paused=paused) for place, due in enumerate(found)
    ]
    if more and decisions:
        decisions[0] = Decision(found[0], "skipped", "missed, like all before it: too many to be made up for")
    return decisions


def _newest(timing: Timing, since: datetime, now: datetime) -> tuple[list[datetime], bool]:
    """The newest NOTED + 1 due times, and whether there are more."""
    for span in (*_SPANS, None):
        start = since if span is None else max(since, now - span)
        found: deque[datetime] = deque(maxlen=NOTED + 1)
        for due in timing.after(start):
            if due > now:
                break
            found.append(due)
        if start == since or len(found) > NOTED:
            return list(found), len(found) > NOTED
    raise AssertionError("unreachable")  # the last span begins at `since`


def _decided(timing: Timing, due: datetime, now: datetime, *, newest: bool, paused: bool) -> Decision:
    late = (now - timing.start(due)).total_seconds()
    if paused:
        return Decision(due, "skipped", "paused")
    if timing.deadline_s is not None and late > timing.deadline_s:
        return Decision(due, "skipped", f"missed: {span_words(late)} late, after its deadline")
    if timing.catch_up == "all":
        return Decision(due, "waiting")
    if not newest and late > 0:
        return Decision(due, "skipped", f"missed: catch_up is {timing.catch_up}, and a later one was due")
    if timing.catch_up == "none" and late > LATE_S:
        return Decision(due, "skipped", f"missed: {span_words(late)} late, and catch_up is none")
    return Decision(due, "waiting")


def judge(timing: Timing, due: datetime, now: datetime, before: Before | None, later: datetime | None) -> Verdict:
    """Whether a run that is due is fired now. `before`: an earlier run that is not over; `later`: a later due time
    whose run could start now, too."""
    start = timing.start(due)
    if now < start:
        return Verdict("wait", f"starts at {stamp(start)} (spread by jitter)")
    late = (now - start).total_seconds()
    if timing.deadline_s is not None and late > timing.deadline_s:
        return Verdict("skip", f"it had waited for {span_words(late)}, past its deadline")
    if later is not None and timing.catch_up != "all" and timing.overlap != "queue":
        return Verdict("skip", f"it had waited until the next was due ({stamp(later)}), which took its place")
    if before is None or timing.overlap == "allow":
        return Verdict("fire")
    words = f"the run before ({before.what}) is not over"
    if timing.overlap == "replace" and before.fired_at is not None:
        return Verdict("replace", words)
    # Of several missed runs that are made up for, one comes after the other.
    made_up = timing.catch_up == "all" and (before.fired_at is None or before.fired_at > due)
    if timing.overlap in ("queue", "replace") or made_up:
        return Verdict("wait", words)
    return Verdict("skip", f"{words}, and overlap is skip")


def span_words(seconds: float) -> str:
    """A length of time in at most two units: `9 s`, `5 min`, `3 h 5 min`, `2 d 4 h`."""
    whole = int(max(0.0, seconds))
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"
