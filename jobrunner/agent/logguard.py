"""Is a job's log about to fill the disk? That is said, in its timeline and beside its row; nothing is ever stopped."""

import os

from . import evidence, jobs

SOON_S = 6 * 3600.0  # "about to": at this rate, within so long
LOOKS = 5  # the rate is that over so many looks
LOW_BYTES = 1 << 30  # a disk with less, and with less than a twentieth, is nearly full
AGAIN = 4  # a log that is big is said again once it is so many times as big


def judge(seen, free, total, big):
    """`[(code, text)]` of what is worth a warning, without the mount's name. Pure.

    `seen`: `[(seconds of the monotonic clock, bytes of the log)]` of the last looks; `big`: bytes from which on a log
    is said to be big.
    """
    size, found = seen[-1][1], []
    passed = seen[-1][0] - seen[0][0]
    rate = (size - seen[0][1]) / passed if passed > 0 and len(seen) > 2 else 0.0
    if rate > 0 and free / rate < SOON_S and size > total // 1000:
        text = "its log has {} and grows by {} an hour: at this rate the disk is full in {} min".format(
            amount(size), amount(rate * 3600), int(free / rate / 60)
        )
        found.append(("log_fills_disk", text))
    elif size >= big:
        found.append(("log_big", "its log has {}".format(amount(size))))
    elif free < LOW_BYTES and free < total // 20:
        found.append(("disk_low", "the disk that it runs on is nearly full"))
    return found


def amount(count):
    """Bytes for people: `3.4 GB`."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1024:
            return "{:.0f} {}".format(count, unit) if unit == "B" else "{:.1f} {}".format(count, unit)
        count /= 1024.0
    return "{:.1f} TB".format(count)


class Guard:
    """Looks at one attempt's log now and then. `big_mb`: from so many MB on it is big; 0: never."""

    def __init__(self, layout, job_id, path, big_mb):
        self._layout, self._job_id, self._path = layout, job_id, path
        self._big = big_mb * (1 << 20) or float("inf")
        self._seen = []
        self._said = set()

    def look(self, now):
        """Look, and write a warning for what was not said yet."""
        try:
            size, room = os.stat(self._path).st_size, os.statvfs(self._path)
        except OSError:
            return
        self._seen = [*self._seen[1 - LOOKS :], (now, size)]
        free = room.f_bavail * room.f_frsize
        for code, text in judge(self._seen, free, room.f_blocks * room.f_frsize, self._big):
            if code in self._said:
                continue
            if code == "log_big":
                self._big = size * AGAIN
            else:
                self._said.add(code)
            mount = evidence.mount_of(self._path).decode("utf-8", "replace")
            jobs.journal(
                self._layout,
                self._job_id,
                "warning",
                text="{} ({} has {} left). Nothing is stopped".format(text, mount, amount(free)),
                code=code,
            )
