"""Lengths of time as specs write them: `90s`, `15m`, `12h`, `3d`."""

from __future__ import annotations

import re

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST = 3650 * 86400
PATTERN = r"^[0-9]{1,9}[smhd]$"
_SHAPE = re.compile(r"([0-9]{1,9})([smhd])\Z")
_LOOSE = re.compile(r"\s*([0-9]{1,9})(?:\.([0-9]{1,3}))?\s*([a-zA-Z]*)\.?\s*\Z")
_COMPOUND = re.compile(r"(?:\s*[0-9]{1,9}\s*[smhdSMHD]\s*){2,4}\Z")
_WORDS = {
    **dict.fromkeys(("", "s", "sec", "secs", "second", "seconds"), "s"),
    **dict.fromkeys(("m", "min", "mins", "minute", "minutes"), "m"),
    **dict.fromkeys(("h", "hr", "hrs", "hour", "hours"), "h"),
    **dict.fromkeys(("d", "day", "days"), "d"),
}


class Duration(str):
    """A length of time, kept as it was written; `seconds` is its length."""

    __slots__ = ()

    @property
    def seconds(self) -> int:
        """The length in whole seconds."""
        return int(self[:-1]) * UNITS[self[-1]]


def parse_duration(text: str) -> Duration:
    """The duration that `text` writes; ValueError (a sentence) for any other text, or for more than ten years."""
    if not _SHAPE.match(text):
        raise ValueError("is no length of time; write a number and one of s, m, h, d, such as 90s, 15m, 12h or 3d")
    found = Duration(text)
    if found.seconds > LONGEST:
        raise ValueError("is longer than ten years (3650d)")
    return found


def format_duration(seconds: int) -> Duration:
    """The shortest way to write a whole number of seconds exactly: 5400 is `90m`."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % UNITS[unit] == 0:
            return Duration(f"{seconds // UNITS[unit]}{unit}")
    return Duration(f"{seconds}s")


def nearest_duration(text: str) -> str:
    """What somebody who wrote `12 hours`, `1.5h`, `1h30m` or `90` may have meant; empty if that cannot be told."""
    if _COMPOUND.match(text):
        pieces = re.findall(r"([0-9]+)\s*([smhd])", text.lower())
        return format_duration(sum(int(number) * UNITS[unit] for number, unit in pieces))
    found = _LOOSE.match(text)
    if not found or found.group(3).lower() not in _WORDS:
        return ""
    unit = _WORDS[found.group(3).lower()]
    if not found.group(2):
        return f"{int(found.group(1))}{unit}"
    return format_duration(round(float(f"{found.group(1)}.{found.group(2)}") * UNITS[unit]))
