"""Times as everybody writes them, and the identity of this boot."""

import os
import time

SET_S = 2.0  # by so much a clock is adjusted without anybody having set it


def stamp(seconds=None):
    """UTC as `2026-12-01T09:30:00.123456Z`; now, or the given seconds since 1970."""
    seconds = time.time() if seconds is None else seconds
    whole = int(seconds // 1)
    micro = min(999999, round((seconds - whole) * 1e6))
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + ".{:06d}Z".format(micro)


def seconds(text):
    """Seconds since 1970 of a `stamp`; ValueError for other text."""
    head, _, tail = text.rstrip("Z").partition(".")
    if len(head) != 19 or head[4] + head[7] + head[10] + head[13] + head[16] != "--T::":
        raise ValueError("not a time: {!r}".format(text[:40]))
    fields = head[:4], head[5:7], head[8:10], head[11:13], head[14:16], head[17:]
    if not all(field.isdigit() for field in fields) or (tail and not tail.isdigit()):
        raise ValueError("not a time: {!r}".format(text[:40]))
    year, month, day, hour, minute, second = (int(field) for field in fields)
    if not (1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second < 62):
        raise ValueError("not a time: {!r}".format(text[:40]))
    days = _days(year, month, day)
    return ((days * 24 + hour) * 60 + minute) * 60 + second + (float("0." + tail) if tail else 0.0)


def _days(year, month, day):
    """Days from 1970-01-01 on, by counting years from March on, so that a leap day comes last in one."""
    year, month = (year - 1, month + 9) if month < 3 else (year, month - 3)
    return 365 * year + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 719469


def steady():
    """`(boot id, seconds)` of the clock that nobody can set; it counts from an unknown moment of that boot on."""
    return boot_id(), time.monotonic()


def was_set(began, mono):
    """True if the host's clock was set since a moment of this boot: `began` by it, `mono` by the steady one."""
    try:
        return abs((time.time() - time.monotonic()) - (began - mono)) > SET_S
    except TypeError:
        return False


def before_boot(path):
    """True if a file was last changed before this boot, by the host's clock."""
    try:
        with open("/proc/uptime") as handle:
            up = float(handle.read().split()[0])
        return os.stat(path).st_mtime < time.time() - up - SET_S
    except (OSError, ValueError, IndexError):
        return False


def boot_id():
    """The kernel's id of this boot: another one means that every process of before is gone."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as handle:
            return handle.read().strip()
    except OSError:
        return ""
