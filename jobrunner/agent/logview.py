"""Where to begin in a log, and which of its lines to show. Works on descriptors, a block at a time."""

import os
import re

from .files import AgentError

BLOCK = 256 * 1024
MAX_LINE = 1024 * 1024  # what is longer is looked at in pieces
_HINT = re.compile(rb"-\d\d-\d\d[T ]\d\d:")  # many times as fast as what follows
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


def start_of_last(handle, size, count, pattern=None, working=lambda: None):
    """The offset from which on there are `count` lines (that have `pattern`); read from the end, block by block.

    A last line without its newline counts. `working` is called now and then.
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
        working()
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


def start_since(handle, size, moment, working=lambda: None):
    """The offset of the first line whose time stamp is not before `moment` (seconds since 1970).

    Lines say their time as `2026-12-01 09:30:00`, in UTC with Z, with an offset, else in the host's time. Times are
    taken to grow, so that a big log is searched by halves. In doubt more is shown: what follows the last line that says
    its time, and all of a log in which none does. `working` is called now and then.
    """
    low, high, later = 0, size, None
    while high - low > BLOCK:
        middle = (low + high) // 2
        found = next(timed_lines(handle, middle, high, working), None)
        if found is not None and found[1] < moment:
            low = found[0]
            continue
        high = middle
        later = found[0] if found is not None else later
    following = low
    for begin, when, length in timed_lines(handle, low, size if later is None else high, working):
        if when >= moment:
            return begin
        following = min(size, begin + length + 1)
    return following if later is None else later


def timed_lines(handle, at, end, working=lambda: None):
    """`(offset, moment, length)` of the lines from `at` on that say their time and begin before `end`.

    Where `at` is in the middle of a line, what is left of that line is passed over; of overlong lines only the head
    counts.
    """
    begin, rest = at, b""
    passing = at > 0 and os.pread(handle, 1, at - 1) != b"\n"
    while begin < end:
        block = os.pread(handle, BLOCK, begin + len(rest))
        working()
        data = rest + block
        cut = data.rfind(b"\n") + 1 if block else len(data)
        whole, rest = data[:cut], data[cut:]
        if whole and (passing or _HINT.search(whole)):
            for offset, line in _lines(whole, begin):
                when = None if passing else moment_of(line)
                passing = False
                if when is not None and offset < end:
                    yield offset, when, len(line)
        begin += cut
        if len(rest) > MAX_LINE:
            when = None if passing else moment_of(rest)
            if when is not None and begin < end:
                yield begin, when, len(rest)
            begin, rest, passing = begin + len(rest), b"", True
        if not block:
            return


def _lines(data, offset):
    for line in data.split(b"\n"):
        yield offset, line
        offset += len(line) + 1


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
