"""Where to begin in a log, and which of its lines to show. Works on descriptors, a block at a time."""

import os
import re

from .files import AgentError

BLOCK = 256 * 1024
MAX_LINE = 1024 * 1024  # what is longer is looked at in pieces
_STAMP = re.compile(rb"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,]\d+)?(Z|[+-]\d\d:?\d\d)?")


def compile_pattern(text):
    """A regular expression over lines, as `grep -E` users expect; AgentError `bad_pattern` if it is none."""
    try:
        return re.compile(text)
    except (re.error, TypeError, OverflowError, RecursionError) as error:
        raise AgentError(
            "bad_pattern",
            "not a regular expression: {!r}: {}".format(text, error),
            "Escape . ( [ { * + ? ^ $ | \\ by a backslash to mean them literally.",
        ) from None


def matches(pattern, line):
    """True if a line (bytes without its newline) has the pattern in it."""
    return pattern.search(line.decode("utf-8", "replace")) is not None


def start_of_last(handle, size, count, pattern=None):
    """The offset from which on there are `count` lines (that have `pattern`); read from the end, block by block.

    A last line without its newline counts.
    """
    if count <= 0:
        return size
    at = size
    rest = b""  # the beginning of a line whose start has not been reached yet
    first = True
    while at > 0:
        length = min(BLOCK, at)
        at -= length
        block = os.pread(handle, length, at)
        if first and block.endswith(b"\n"):
            block, first = block[:-1], False
        first = False
        if pattern is None:
            found = block.count(b"\n")
            if found >= count:
                return at + _nth_from_end(block, count) + 1
            count -= found
            continue
        lines = (block + rest).split(b"\n")
        position = at + sum(len(line) + 1 for line in lines)
        for line in reversed(lines[1:]):
            position -= len(line) + 1
            if matches(pattern, line):
                count -= 1
                if count == 0:
                    return position
        rest = lines[0][:MAX_LINE]
    return 0


def _nth_from_end(block, count):
    at = len(block)
    for _ in range(count):
        at = block.rfind(b"\n", 0, at)
    return at


def start_since(handle, size, moment):
    """The offset of the first line whose time stamp is not before `moment` (seconds since 1970).

    Lines say their time as `2026-12-01 09:30:00`, in UTC with Z, with an offset, else in the host's time. A log in
    which no line does is shown whole.
    """
    at, rest, stamped = 0, b"", False
    while at < size:
        block = os.pread(handle, BLOCK, at)
        if not block:
            break
        begin = at - len(rest)
        at += len(block)
        lines = (rest + block).split(b"\n")
        rest = lines.pop()[-MAX_LINE:]
        for line in lines:
            found = moment_of(line)
            stamped = stamped or found is not None
            if found is not None and found >= moment:
                return begin
            begin += len(line) + 1
    return size if stamped else 0


def moment_of(line):
    """Seconds since 1970 that a line begins with (within its first 80 bytes), or None."""
    match = _STAMP.search(line, 0, 80)
    if match is None:
        return None
    import calendar
    import time

    parts = (*(int(match.group(number)) for number in range(1, 7)), 0, 0, -1)
    zone = match.group(7)
    try:
        if zone is None:
            return time.mktime(parts)
        away = 0
        if zone != b"Z":
            digits = zone[1:].replace(b":", b"")
            away = (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (1 if zone[:1] == b"+" else -1)
        return calendar.timegm(parts) - away
    except (OverflowError, ValueError):
        return None


class Filter:
    """Passes on the lines that have the pattern; keeps what has no newline yet."""

    def __init__(self, pattern):
        self._pattern = pattern
        self._rest = b""

    @property
    def held(self):
        """Bytes taken in that belong to a line which has not ended."""
        return len(self._rest)

    def feed(self, data):
        """The matching lines, with newlines, of what has become whole."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        if len(self._rest) > MAX_LINE:
            lines.append(self._rest)
            self._rest = b""
        return b"".join(line + b"\n" for line in lines if matches(self._pattern, line))

    def flush(self):
        """The last line, which never got its newline, if it matches."""
        line, self._rest = self._rest, b""
        return line if line and matches(self._pattern, line) else b""
