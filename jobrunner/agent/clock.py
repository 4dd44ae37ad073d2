"""Times as everybody writes them, and the identity of this boot."""

import time

SET_S = 2.0  # by so much a clock is adjusted without anybody having set it


def stamp(seconds=None):
    """UTC as `2026-12-01T09:30:00.123456Z`; now, or the given seconds since 1970."""
    seconds = time.time() if seconds is None else seconds
    whole = int(seconds // 1)
    micro = min(999999, round((seconds - whole) * 1e6))
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(whole)) + ".{:06d}Z".format(micro)


def seconds(text):
    """Seconds since 1970 of a `stamp`."""
    import calendar

    head, _, tail = text.rstrip("Z").partition(".")
    return calendar.timegm(time.strptime(head, "%Y-%m-%dT%H:%M:%S")) + (float("0." + tail) if tail else 0.0)


def steady():
    """`(boot id, seconds)` of the clock that nobody can set; it counts from an unknown moment of that boot on."""
    return boot_id(), time.monotonic()


def was_set(began, mono):
    """True if the host's clock was set since a moment of this boot: `began` by it, `mono` by the steady one."""
    try:
        return abs((time.time() - time.monotonic()) - (began - mono)) > SET_S
    except TypeError:
        return False


def boot_id():
    """The kernel's id of this boot: another one means that every process of before is gone."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as handle:
            return handle.read().strip()
    except OSError:
        return ""
