"""What becomes of due times: after downtime, with a clock that steps, beside runs that are not over."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from jobrunner.core.duetimes import NOTED, Before, Timing, decide, instant, judge, stamp, timing_of
from jobrunner.core.errors import UsageError
from jobrunner.service.promote import choose

UTC = timezone.utc
DAY = timedelta(days=1)
NIGHT = datetime(2026, 12, 2, 3, tzinfo=UTC)


def timing(cron: str = "0 3 * * *", **more: Any) -> Timing:
    return timing_of("s1", {"cron": cron, "timezone": "UTC", **more})


def outcomes(of: Timing, since: datetime, now: datetime, **more: Any) -> list[tuple[str, str | None]]:
    return [(item.outcome, item.why) for item in decide(of, since, now, **more)]


@pytest.mark.parametrize("catch_up", ["none", "latest", "all"])
@pytest.mark.parametrize("late", [0, 9, 300])
def test_a_little_late_still_runs(catch_up: str, late: int) -> None:
    [found] = decide(timing(catch_up=catch_up), NIGHT - DAY, NIGHT + timedelta(seconds=late))
    assert (found.due, found.outcome) == (NIGHT, "waiting")


def test_nothing_is_due_before_its_time_nor_twice() -> None:
    assert decide(timing(), NIGHT - DAY, NIGHT - timedelta(seconds=1)) == []
    assert decide(timing(), NIGHT, NIGHT + timedelta(hours=1)) == []
    assert decide(timing(), NIGHT, NIGHT - DAY) == [], "the clock was set back"


def test_after_three_missed_nights() -> None:
    since, now = NIGHT - DAY * 3, NIGHT + timedelta(hours=5)
    none = outcomes(timing(catch_up="none"), since, now)
    assert [outcome for outcome, _ in none] == ["skipped"] * 3
    assert none[-1][1] == "missed: 5 h late, and catch_up is none"
    latest = outcomes(timing(), since, now)
    assert [outcome for outcome, _ in latest] == ["skipped", "skipped", "waiting"]
    assert "a later one was due" in str(latest[0][1])
    assert [outcome for outcome, _ in outcomes(timing(catch_up="all"), since, now)] == ["waiting"] * 3
    bounded = outcomes(timing(catch_up="all", deadline="30h"), since, now)
    assert [outcome for outcome, _ in bounded] == ["skipped", "waiting", "waiting"] and "deadline" in str(bounded[0][1])
    assert outcomes(timing(deadline="4h"), since, now)[-1] == ("skipped", "missed: 5 h late, after its deadline")


def test_paused_is_skipped_and_very_many_are_bounded() -> None:
    assert outcomes(timing(), NIGHT - DAY, NIGHT, paused=True) == [("skipped", "paused")]
    found = decide(timing("* * * * *", catch_up="all"), NIGHT - DAY * 400, NIGHT)
    assert len(found) == NOTED + 1 and found[-1].due == NIGHT
    assert found[0].outcome == "skipped" and "too many" in str(found[0].why)


def test_jitter_delays_the_start_but_misses_nothing() -> None:
    of = timing("* * * * *", jitter="5m")
    starts = [of.start(NIGHT + timedelta(minutes=k)) - (NIGHT + timedelta(minutes=k)) for k in range(50)]
    assert all(timedelta(0) <= delay <= timedelta(minutes=5) for delay in starts) and len(set(starts)) > 20
    early = max(range(50), key=lambda k: starts[k])
    due = NIGHT + timedelta(minutes=early)
    verdict = judge(of, due, due, None, None)
    assert verdict.do == "wait" and stamp(of.start(due)) in str(verdict.why)
    assert judge(of, due, of.start(due), None, None).do == "fire"


RUNS = Before("job abcdefgh", NIGHT - DAY, NIGHT - DAY)


@pytest.mark.parametrize(
    ("overlap", "do"), [("skip", "skip"), ("queue", "wait"), ("replace", "replace"), ("allow", "fire")]
)
def test_overlap(overlap: str, do: str) -> None:
    verdict = judge(timing(overlap=overlap), NIGHT, NIGHT, RUNS, None)
    assert verdict.do == do and (do == "fire" or "job abcdefgh" in str(verdict.why))
    assert judge(timing(overlap=overlap), NIGHT, NIGHT, None, None).do == "fire"


def test_a_run_that_waits_gives_way_to_the_next_unless_it_is_queued_or_all_are_wanted() -> None:
    later, now = NIGHT + DAY, NIGHT + DAY
    assert judge(timing(), NIGHT, now, None, later).do == "skip"
    assert judge(timing(catch_up="all"), NIGHT, now, None, later).do == "fire"
    assert judge(timing(overlap="queue"), NIGHT, now, None, later).do == "fire"
    assert judge(timing(deadline="6h"), NIGHT, NIGHT + timedelta(hours=7), None, None).do == "skip"


def test_missed_runs_that_are_made_up_for_come_one_after_the_other() -> None:
    of, now = timing(catch_up="all"), NIGHT + timedelta(hours=5)
    made_up = Before("job abcdefgh", NIGHT - DAY, now)
    assert judge(of, NIGHT, now, made_up, None).do == "wait"
    assert judge(of, NIGHT, now, Before("due then", NIGHT - DAY, None), None).do == "wait"
    assert judge(of, NIGHT, NIGHT, RUNS, None).do == "skip", "one that began before this was due is an overlap"


def test_times_and_zones_are_read_back() -> None:
    assert instant(stamp(NIGHT)) == NIGHT
    with pytest.raises(UsageError, match="time zone"):
        timing_of("s1", {"cron": "@daily", "timezone": "Mars/Base"})


class Item:
    """A checkpoint as far as the choice looks at it."""

    def __init__(self, name: str, complete: bool = True, removed: bool = False, **metrics: float) -> None:
        self.name, self.complete, self.removed, self.metrics = name, complete, removed, metrics


@pytest.mark.parametrize(
    ("items", "which", "told", "name", "value"),
    [
        ([Item("c", acc=0.5), Item("b", acc=0.9), Item("a", acc=0.7)], "best", None, "b", 0.9),
        ([Item("c", acc=0.5), Item("b", acc=0.9)], "last", 0.1, "c", 0.5),
        ([Item("c"), Item("b", acc=0.9)], "best", 0.95, "b", 0.9),
        ([Item("c"), Item("b")], "best", 0.95, "c", 0.95),
        ([Item("c", complete=False, acc=1.0), Item("b", acc=0.9)], "best", None, "b", 0.9),
        ([Item("c", removed=True, acc=1.0), Item("b", acc=0.9)], "best", None, "b", 0.9),
        ([Item("c", acc=float("nan")), Item("b", acc=0.2)], "best", None, "b", 0.2),
        ([Item("c")], "best", float("nan"), "c", None),
        ([Item("c")], "last", None, "c", None),
        ([], "best", 0.5, None, None),
    ],
)
def test_which_checkpoint_stands_for_a_job(items: Any, which: str, told: Any, name: Any, value: Any) -> None:
    found = choose(items, "acc", "max", which, told)
    assert (found.checkpoint.name if found.checkpoint else None, found.value) == (name, value)
    assert value is not None or found.why
