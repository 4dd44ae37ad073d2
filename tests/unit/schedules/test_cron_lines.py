"""Cron lines: what they mean in zones that change their clocks, against two independent references; what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from jobrunner.core.cronspec import CronError, delay_s, dues, parse_cron, zone_or_none
from jobrunner.core.specdoc import read_spec

UTC = timezone.utc
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
# Zones and days on which their clocks change: forward and back, at midnight, by half an hour, by a day.
CHANGES = [
    ("America/New_York", "2026-03-08"), ("America/New_York", "2026-11-01"), ("Europe/Berlin", "2027-03-28"),
    ("Europe/Berlin", "2026-10-25"), ("Australia/Lord_Howe", "2026-10-04"), ("Australia/Lord_Howe", "2026-04-05"),
    ("America/Havana", "2026-03-08"), ("America/Havana", "2026-11-01"), ("Asia/Beirut", "2027-03-28"),
    ("America/Sao_Paulo", "2018-11-04"), ("America/Sao_Paulo", "2019-02-17"), ("Pacific/Apia", "2011-12-30"),
    ("Asia/Shanghai", "1991-09-15"), ("Asia/Shanghai", "2026-12-01"), ("Asia/Kathmandu", "2026-02-28"),
    ("Africa/Casablanca", "2026-02-15"), ("Antarctica/Troll", "2026-03-29"), ("America/Toronto", "1999-10-31"),
    ("UTC", "2028-02-29"),
]  # fmt: skip
LINES = [
    "0 3 * * *", "30 2 * * *", "30 1 * * *", "0 0 * * *", "30 0 * * *", "59 23 * * *", "*/20 1-3 * * *", "7,47 2 * * *",
    "* 0 * * *", "0 */2 * * 0", "30 2 * * SUN", "15 2 1-15 * 7", "0 1,2,3 * * 1-5",
]  # fmt: skip
HOURLY = ["0 * * * *", "*/15 * * * *", "30 * * * 0", "45 0-23 * * *", "15 * */2 * *"]


Walk = list[tuple[datetime, datetime, list[datetime]]]


def walk(zone: ZoneInfo, start: datetime, end: datetime) -> Walk:
    """Minute by minute of the real time: the instant, the local time, and local minutes that were jumped over."""
    found, instant = [], start
    before = instant.astimezone(zone).replace(tzinfo=None) - MINUTE
    while instant <= end:
        local = instant.astimezone(zone).replace(tzinfo=None)
        found.append((instant, local, [before + MINUTE * k for k in range(1, max(1, int((local - before) / MINUTE)))]))
        before, instant = local, instant + MINUTE
    return found


def brute(line: str, steps: Walk, start: datetime) -> list[datetime]:
    """Every instant after `start`, by the three rules of docs/schedules.md."""
    minutes, hours, days, months, weekdays = (
        values(field, low, high)
        for field, low, high in zip(line.split(), (0, 0, 1, 1, 0), (59, 23, 31, 12, 7), strict=True)
    )
    week, both = {day % 7 for day in weekdays}, "*" in (line.split()[2][0], line.split()[4][0])
    every_hour = len(hours) == 24

    def named(local: datetime) -> bool:
        if local.minute not in minutes or local.hour not in hours or local.month not in months:
            return False
        day, weekday = local.day in days, local.isoweekday() % 7 in week
        return (day and weekday) if both else (day or weekday)

    found, seen = [], set()
    for instant, local, jumped in steps:
        due = named(local) and (every_hour or local not in seen)
        due = due or (not every_hour and any(named(minute) for minute in jumped))
        seen.add(local)
        if due and instant > start:
            found.append(instant)
    return found


def values(field: str, low: int, high: int) -> set[int]:
    found = set()
    for item in field.replace("SUN", "0").split(","):
        body, _, step = item.partition("/")
        first, _, last = (f"{low}-{high}" if body == "*" else body).partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def ours(line: str, zone: ZoneInfo, start: datetime, end: datetime) -> list[datetime]:
    return list(takewhile(lambda instant: instant <= end, dues(parse_cron(line), zone, start)))


@pytest.mark.parametrize(("name", "day"), CHANGES)
def test_due_times_around_changes_of_the_clock(name: str, day: str) -> None:
    zone = ZoneInfo(name)
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - DAY * 1.5
    steps = walk(zone, start - DAY * 1.2, start + DAY * 3)
    for line in [*LINES, *HOURLY]:
        expected = brute(line, steps, start)
        assert ours(line, zone, start, start + DAY * 3) == expected, line
        # From any instant on, the rest is the same: nothing that has been is due again.
        for later in (start + timedelta(hours=7 * k, minutes=11) for k in range(1, 10)):
            rest = [instant for instant in expected if instant > later]
            assert ours(line, zone, later, start + DAY * 3) == rest, (line, later)


@pytest.mark.parametrize(("name", "day"), CHANGES)
def test_the_librarys_own_rules_agree_for_single_times(name: str, day: str) -> None:
    zone = ZoneInfo(name)
    start = datetime.fromisoformat(day).replace(tzinfo=UTC) - DAY * 1.5
    for line in ("0 3 * * *", "30 2 * * *", "30 1 * * *", "59 23 * * *", "7,47 2 * * *", "15 2 1-15 * 7"):
        reference = islice((dt.astimezone(UTC) for dt in CronSim(line, start.astimezone(zone))), 4)
        assert list(islice(dues(parse_cron(line), zone, start), 4)) == list(reference), line


def test_a_missing_time_runs_once_at_the_next_minute_and_a_double_one_once() -> None:
    zone = ZoneInfo("Europe/Berlin")
    spring = ours("30 2 * * *", zone, datetime(2027, 3, 27, 12, tzinfo=UTC), datetime(2027, 3, 29, 12, tzinfo=UTC))
    assert [f"{due.astimezone(zone):%d %H:%M%z}" for due in spring] == ["28 03:00+0200", "29 02:30+0200"]
    autumn = ours("30 2 * * *", zone, datetime(2026, 10, 24, 12, tzinfo=UTC), datetime(2026, 10, 26, 12, tzinfo=UTC))
    assert [f"{due.astimezone(zone):%d %H:%M%z}" for due in autumn] == ["25 02:30+0200", "26 02:30+0100"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("@daily", "0 0 * * *"),
        ("@Hourly", "0 * * * *"),
        (" 5  4 * jan-mar mon,fri-SUN ", "5 4 * 1-3 1,5-7"),
        ("*/5 0-12/3 1,15 * 7", "*/5 0-12/3 1,15 * 7"),
    ],
)
def test_good_lines(text: str, line: str) -> None:
    assert parse_cron(text).line == line


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("* * * *", "has 4 fields"), ("* * * * * *", "has 6 fields"), ("", "has 0 fields"), ("60 * * * *", "0 to 59"),
        ("* 24 * * *", "0 to 23"), ("* * 0 * *", "1 to 31"), ("* * * 13 *", "1 to 12"), ("* * * * 8", "0 to 7"),
        ("*/0 * * * *", "a step is 1"), ("*/60 * * * *", "a step is 1"), ("5/10 * * * *", "needs a range"),
        ("5-1 * * * *", "begins after"), ("1,,2 * * * *", "cannot stand"), ("* * L * *", "cannot stand"),
        ("* * ? * *", "cannot stand"), ("* * * * 1#2", "cannot stand"), ("* * * * MONDAY", "cannot stand"),
        ("JAN * * * *", "cannot be the minute"), ("* * * MON *", "cannot be the month"), ("@reboot", "none of"),
        ("0 0 31 2,4 *", "never comes true"), ("\u0663 * * * *", "cannot stand"), ("-1 * * * *", "cannot stand"),
    ],
)  # fmt: skip
def test_other_lines_are_refused(text: str, said: str) -> None:
    with pytest.raises(CronError, match=said):
        parse_cron(text)


def test_zones_are_those_of_the_database() -> None:
    assert zone_or_none("Asia/Shanghai") and zone_or_none("UTC") and zone_or_none("Etc/GMT+8")
    for name in ("asia/shanghai2", "Shanghai", "../etc/localtime", "/etc/localtime", "localtime", "", "Asia/", "UTC+8"):
        assert zone_or_none(name) is None, name


@pytest.mark.parametrize(
    ("schedule", "wanted"),
    [
        ("{cron: '0 3 * * MOO', timezone: UTC}", [(3, 18, "weekday", "MON")]),
        ("{cron: '@daily', timezone: UTC+8}", [(3, 38, "no time zone", "Etc/GMT-8")]),
        ("{cron: '@daily', timezone: CST}", [(3, 38, "no time zone", "")]),
        ("{cron: '@daily', timezone: localtime}", [(3, 38, "no time zone", "")]),
        ("{cron: '@daily'}", [(3, 1, "schedule.timezone is missing", "")]),
        (
            "\n  cron: '* * * *'\n  timezone: Asia/Shangai\n  jitter: 6m\n  overlap: wait\n  deadline: 0s",
            [
                (4, 9, "has 4 fields", ""),
                (5, 13, "no time zone", "Asia/Shanghai"),
                (6, 11, "5m at most", "5m"),
                (7, 12, "skip, queue, replace or allow", ""),
                (8, 13, "more than nothing|nothing would end", ""),
            ],
        ),
    ],
)
def test_a_bad_schedule_is_refused_with_its_place(schedule: str, wanted: list[tuple[int, int, str, str]]) -> None:
    text = f"command: x\ndevice: cpu\nschedule: {schedule}\n"
    document = read_spec(text, "f.yaml", enabled={"schedule"})
    found = [(problem.line, problem.column, problem.suggestion) for problem in document.problems]
    assert found == [(line, column, near) for line, column, _, near in wanted], document.problems
    for problem, (_, _, words, _) in zip(document.problems, wanted, strict=True):
        assert any(word in problem.message for word in words.split("|")), problem.message


def test_starts_are_spread_but_always_the_same() -> None:
    delays = {delay_s(f"s{k}", "2026-12-01T03:00:00.000000Z", 300) for k in range(200)}
    assert min(delays) >= 0 and max(delays) <= 300 and len(delays) > 80
    assert delay_s("s1", "2026-12-01T03:00:00.000000Z", 300) == delay_s("s1", "2026-12-01T03:00:00.000000Z", 300)
    assert delay_s("s1", "2026-12-01T03:00:00.000000Z", 0) == 0
