"""Values as people read them: times, sizes, cards, durations. Pure; the clock comes in as an argument."""

from __future__ import annotations

import re
import unicodedata
from datetime import datetime, timezone
from typing import Any

from jobrunner.core import amounts
from jobrunner.core.durations import nearest_duration, parse_duration
from jobrunner.core.errors import UsageError

# Characters that move the cursor, hide, or turn the reading direction of what follows them.
_UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060\u2066-\u2069\ufeff]")


def visible(text: object) -> str:
    """One line of text in which nothing can move the cursor or hide: control characters become `\\x1b` and the like."""
    return _UNSAFE.sub(_escape, str(text))


def visible_lines(text: object) -> str:
    """`visible` for text of several lines: line ends and tabs stay."""
    return "\n".join("\t".join(visible(piece) for piece in line.split("\t")) for line in str(text).splitlines())


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


def width(text: str) -> int:
    """Columns that a terminal uses for `text`: two for CJK and emoji, none for combining marks."""
    if text.isascii():
        return len(text)
    return sum(_char_width(char) for char in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char) or unicodedata.category(char) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in ("W", "F") else 1


def pad(text: str, columns: int, *, right: bool = False) -> str:
    """`text` filled with blanks to `columns`; longer text stays whole."""
    blanks = " " * max(0, columns - width(text))
    return blanks + text if right else text + blanks


def shorten(text: str, columns: int) -> str:
    """`text` cut to at most `columns`, with an ellipsis where something is missing."""
    if width(text) <= columns:
        return text
    kept = used = 0
    for char in text:
        used += _char_width(char)
        if used > columns - 1:
            break
        kept += 1
    return text[:kept] + "…"


def parse_time(text: str | None) -> datetime | None:
    """The instant of a contract's time (`2026-12-01T09:30:00.123456Z`); None for anything else."""
    if not text:
        return None
    try:
        return datetime.fromisoformat(text.replace("Z", "+00:00")).astimezone(timezone.utc)
    except ValueError:
        return None


def span(seconds: float) -> str:
    """A length of time in at most two units: `4 s`, `2 min 10 s`, `3 h 5 min`, `2 d 4 h`."""
    whole = int(max(0.0, seconds))
    if whole < 60:
        return f"{whole} s"
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    raise AssertionError("unreachable")  # 60 seconds or more always find their unit


def ago(text: str | None, now: datetime) -> str:
    """How long ago an instant was, in one unit: `just now`, `5 min ago`, `3 d ago`; `in 2 min` for the future."""
    instant = parse_time(text)
    if instant is None:
        return "-"
    seconds = (now - instant).total_seconds()
    if abs(seconds) < 2:
        return "just now"
    whole = int(abs(seconds))
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if whole >= size:
            count = f"{whole // size} {unit}"
            return f"{count} ago" if seconds > 0 else f"in {count}"
    return "just now"


def lasted(start: str | None, end: str | None, now: datetime) -> str:
    """How long something ran, up to now if it has not ended; `-` if it never began."""
    begin = parse_time(start)
    if begin is None:
        return "-"
    return span(((parse_time(end) or now) - begin).total_seconds())


def local(text: str | None) -> str:
    """An instant in this machine's time zone, to the second; `-` if unknown."""
    instant = parse_time(text)
    return "-" if instant is None else instant.astimezone().strftime("%Y-%m-%d %H:%M:%S")


_INSTANT = re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z")


def with_local_times(text: str) -> str:
    """A sentence in which every contract's time is written in this machine's time zone, as `local` does."""
    return _INSTANT.sub(lambda match: local(match.group()), text)


def size(count: float | int | None) -> str:
    """Bytes in powers of 1,024: `512 B`, `3.4 MB`; `-` if unknown."""
    return "-" if count is None else amounts.size(count)


def numbers(cards: Any) -> str:
    """Card numbers as `0-3,6`; `-` if there are none."""
    if not cards:
        return "-"
    runs: list[list[int]] = []
    for card in sorted(int(card) for card in cards):
        if runs and card == runs[-1][-1] + 1:
            runs[-1].append(card)
        else:
            runs.append([card])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def or_dash(value: object, suffix: str = "") -> str:
    """A value and its unit, or `-` if it is not known."""
    return "-" if value is None or value == "" else f"{visible(value)}{suffix}"


def duration(text: str) -> float:
    """Seconds of `90s`, `15m`, `1h30m`, `3d`, or of a plain number. Raises UsageError."""
    meant = nearest_duration(text)
    if not meant:
        raise UsageError(f"{visible(text)!r} is not a length of time", remedy="write it as 90s, 15m, 12h or 3d")
    return float(parse_duration(meant).seconds)


def moment(text: str) -> float | str:
    """When something was, as a person says it: seconds ago for `10m` or `2h`, else the contract's time.

    A time without a zone is this machine's (that is how times are shown). Raises UsageError.
    """
    if nearest_duration(text):
        return duration(text)
    try:
        instant = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        return instant.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    except (ValueError, OverflowError):
        raise UsageError(
            f"{visible(text)!r} is neither a length of time nor a time",
            remedy="write it as 10m, 2h or 3d (ago), 2026-12-01T09:30:00Z, or '2026-12-01 09:30' in your time zone",
        ) from None
