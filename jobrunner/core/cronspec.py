"""Cron lines and the instants that they mean in a time zone. Pure: the clock comes in as an argument.

The library cronsim tells which local minutes a line names; what they are in a zone that changes its clocks is
decided here:

* a local time that does not exist (the clock is put forward over it) means the next minute that does;
* one that happens twice (the clock is put back over it) means the first time only;
* a line that names every hour goes by the hours that really pass: neither of the two applies to it.
"""

from __future__ import annotations

import hashlib
import heapq
import re
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from functools import lru_cache
from typing import NoReturn

from jobrunner.core.durations import Duration
from jobrunner.core.values import dataclass

UTC = timezone.utc
MAX_JITTER_S = 300
WORDS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_ITEM = re.compile(r"(?:(\*)|([0-9]{1,4}|[A-Z]{3})(?:-([0-9]{1,4}|[A-Z]{3}))?)(?:/([0-9]{1,4}))?\Z")


@dataclass(frozen=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()
    first: int = 0
    """The number of the first name."""


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of the month", 1, 31),
    _Field("month", 1, 12, _MONTHS, 1),
    _Field("weekday", 0, 7, _DAYS, 0),
)


def _found(value: str) -> str:
    """A text in a message; the words' library is slow to load, and a tick that finds no fault does without."""
    from jobrunner.core.words import found

    return found(value)


def _nearest(word: str, choices: Iterable[str]) -> str:
    from jobrunner.core.words import nearest

    return nearest(word, choices)


def _refuse(message: str, suggestion: str = "") -> NoReturn:
    from jobrunner.core.words import refuse

    refuse(message, suggestion)


class CronError(ValueError):
    """A text that is no cron line, in one sentence; `suggestion` is what may have been meant."""

    def __init__(self, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.suggestion = suggestion


@dataclass(frozen=True)
class Cron:
    """A cron line in numbers: `line` has five fields; `hourly` if it names every hour."""

    line: str
    hourly: bool


def parse_cron(text: str) -> Cron:
    """Read a cron line: five fields (minute, hour, day of the month, month, weekday), or a word such as @daily.

    A field is a list of `*`, `N`, `N-M`, each but `N` with `/STEP` if wanted; months and weekdays have names (JAN, MON)
    too; 0 and 7 are Sunday. Days are those of both fields where one of them begins with `*`, else those of either.
    Raises CronError for anything else, and for a line that never comes true.
    """
    words = text.split()
    if text.strip().startswith("@"):
        line = WORDS.get(text.strip().lower())
        if line is None:
            raise CronError(f"{_found(text)} is none of {', '.join(WORDS)}", _nearest(text, WORDS))
        words = line.split()
    if len(words) != len(_FIELDS):
        raise CronError(
            f"{_found(text)} has {len(words)} field{'' if len(words) == 1 else 's'}; "
            "a cron line has five: minute, hour, day of the month, month, weekday"
        )
    fields = [_read(field, word) for field, word in zip(_FIELDS, words, strict=True)]
    cron = Cron(" ".join(line for line, _ in fields), len(fields[1][1]) == 24)
    try:
        never = next(_named(cron.line, datetime(2000, 1, 1)), None) is None
    except ValueError:
        never = True
    if never:
        raise CronError(f"{_found(text)} never comes true: no such day of the month is in these months")
    return cron


def _read(field: _Field, word: str) -> tuple[str, set[int]]:
    """A field in numbers, and the values that it names."""
    items, values = [], set()
    for item in word.split(","):
        line, named = _item(field, item)
        items.append(line)
        values |= named
    return ",".join(items), values


def _item(field: _Field, item: str) -> tuple[str, set[int]]:
    match = _ITEM.match(item.upper())
    if not match:
        raise CronError(
            f"{item!r} cannot stand for the {field.name}; write *, N, N-M, */STEP or N-M/STEP, or a list with commas"
        )
    star, first, last, step = match.groups()
    low = field.low if star else _number(field, first)
    high = field.high if star else low if last is None else _number(field, last, after=True)
    if high < low:
        raise CronError(f"{item!r} as the {field.name} begins after it ends; write two ranges with a comma between")
    if step is None:
        return ("*" if star else str(low) if last is None else f"{low}-{high}"), set(range(low, high + 1))
    every = int(step)
    if not star and last is None:
        raise CronError(
            f"{item!r} as the {field.name}: a step needs a range",
            f"{low}-{min(field.high, 6 if field.first == 0 and field.names else field.high)}/{step}",
        )
    if not 1 <= every <= field.high - field.low:
        raise CronError(f"{item!r} as the {field.name}: a step is 1 to {field.high - field.low}")
    return f"{'*' if star else f'{low}-{high}'}/{every}", set(range(low, high + 1, every))


def _number(field: _Field, word: str, *, after: bool = False) -> int:
    """The number of a word; `after`: it ends a range, where SUN is 7."""
    if word.isdigit():
        number = int(word)
        if not field.low <= number <= field.high:
            raise CronError(f"{word} cannot be the {field.name}: {field.low} to {field.high}")
        return number
    if word not in field.names:
        raise CronError(f"{word!r} cannot be the {field.name}", _nearest(word, field.names) if field.names else "")
    return 7 if after and word == "SUN" else field.names.index(word) + field.first


def check_cron(value: str) -> str:
    """The check of a spec's `schedule.cron`; the text stays as it was written."""
    try:
        parse_cron(value)
    except CronError as error:
        _refuse(str(error), error.suggestion)
    return value


def check_timezone(value: str) -> str:
    """The check of a spec's `schedule.timezone`: a zone's name in the IANA database."""
    if zone_or_none(value) is None:
        _refuse(
            f"{_found(value)} is no time zone; write a name such as Asia/Shanghai, Europe/Berlin or UTC", _near(value)
        )
    return value


def _near(word: str) -> str:
    """The zone that a word which is none may mean; those of a plain offset have names with the sign turned round."""
    from zoneinfo import available_timezones

    offset = re.fullmatch(r"(?:UTC|GMT)?([+-])0?([0-9]{1,2})(?::?00)?", word, re.ASCII | re.IGNORECASE)
    if offset:
        turned = f"Etc/GMT{'-' if offset[1] == '+' else '+'}{offset[2]}"
        return turned if zone_or_none(turned) else ""
    if re.fullmatch(r"[A-Za-z]{2,5}", word):  # CST is three zones: whoever writes it has to say which
        return ""
    return _nearest(word, filter(zone_or_none, available_timezones()))


def check_jitter(value: Duration) -> Duration:
    """The check of a spec's `schedule.jitter`."""
    if value.seconds > MAX_JITTER_S:
        _refuse(f"found {_found(str(value))}; a start is spread over 5m at most", "5m")
    return value


@lru_cache(maxsize=512)
def zone_or_none(name: str) -> tzinfo | None:
    """The zone of a name; None if there is none."""
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_+-]*(/[A-Za-z0-9_+-]+){0,2}", name) or name in ("localtime", "posixrules"):
        return None
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, OSError, ValueError):
        return None


def dues(cron: Cron, zone: tzinfo, after: datetime) -> Iterator[datetime]:
    """The instants (UTC) that a line means in a zone, in order, from the first one after `after` (aware) on."""
    last = after.astimezone(UTC)
    local = last.astimezone(zone)
    start = local.replace(tzinfo=None)
    changed = (last - _DAY).astimezone(zone).utcoffset() != local.utcoffset()
    if changed or local.replace(fold=1).utcoffset() != local.replace(fold=0).utcoffset():
        start -= _DAY  # the clock was changed just now, or will be: earlier local times may mean later instants
    for instant in _instants(cron, zone, start):
        if instant > last:
            yield instant
            last = instant


_DAY = timedelta(hours=26)
_MINUTE = timedelta(minutes=1)


def _instants(cron: Cron, zone: tzinfo, start: datetime) -> Iterator[datetime]:
    """Instants of the local minutes after `start`, in order; the same one may come again."""
    waiting: list[datetime] = []  # second times of ambiguous minutes: they come after minutes that are named later
    for local in _named(cron.line, start):
        first = _first(local, zone, skip=cron.hourly)
        if first is None:
            continue
        while waiting and waiting[0] <= first:
            yield heapq.heappop(waiting)
        yield first
        if cron.hourly:
            second = local.replace(tzinfo=zone, fold=1).astimezone(UTC)
            if second > first:
                heapq.heappush(waiting, second)
    yield from sorted(waiting)


def _first(local: datetime, zone: tzinfo, *, skip: bool) -> datetime | None:
    """The instant of a local minute; of one that does not exist the next minute that does, or None with `skip`."""
    instant = local.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == local:
        return instant
    if skip:
        return None
    # The clock jumps between these two; the minute is looked for by halving.
    early, late = local.replace(tzinfo=zone, fold=1).astimezone(UTC) - _MINUTE, instant
    while late - early > _MINUTE:
        middle = early + (late - early) // 2 // _MINUTE * _MINUTE
        if middle.astimezone(zone).replace(tzinfo=None) > local:
            late = middle
        else:
            early = middle
    return late


def _named(line: str, start: datetime) -> Iterator[datetime]:
    """The local minutes after `start` that a line names. Raises ValueError for a line that never comes true."""
    from cronsim import CronSim, CronSimError

    try:
        return iter(CronSim(line, start))
    except CronSimError as error:
        raise ValueError(str(error)) from error


def delay_s(schedule: str, due: str, jitter_s: int) -> int:
    """By how many seconds a run starts after its due time: 0 to `jitter_s`, always the same for the same run."""
    if jitter_s <= 0:
        return 0
    digest = hashlib.sha256(f"{schedule} {due}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (jitter_s + 1)
