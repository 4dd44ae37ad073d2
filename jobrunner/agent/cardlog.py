"""How my last jobs on each card ended: which cards are set aside because jobs die there at start, and which were freed
a moment ago, so that a tool that lags does not make a stranger of them.

`cardlog.json` in the instance's folder: `{device: {index: {"ended": at, "last": [[at, job, died, width], …]}}}`.
"""

import os
import time

from . import files, leases, settings
from .layout import lock_name

KEEP = 8


def path(layout):
    """Where the record lies."""
    return os.path.join(layout.home, b"cardlog.json")


def read(layout, device):
    """`{index: {ended, last}}` of a device; what is odd is passed over."""
    found = {}
    table = files.read_json(path(layout), {})
    table = table.get(device) if isinstance(table, dict) else None
    for index, entry in table.items() if isinstance(table, dict) else ():
        if index.isdigit() and isinstance(entry, dict):
            ended, last = entry.get("ended"), entry.get("last")
            found[int(index)] = {
                "ended": ended if isinstance(ended, (int, float)) else 0,
                "last": [end for end in last if isinstance(end, list) and len(end) == 4]
                if isinstance(last, list)
                else [],
            }
    return found


def forget(layout):
    """All cards are as good as new: what `undrain` does."""
    try:
        os.unlink(path(layout))
    except FileNotFoundError:
        pass


def verdict(record, start_s):
    """True: the attempt died at start. False: it did not. None: it says nothing about its cards. Pure.

    `record` is the attempt's exit record. Dying is an exit code other than 0 or a signal that we did not send, within
    `start_s` seconds of the start. A job that was stopped, ran out of host memory or disk, or did not get through its
    set-up says nothing.
    """
    wall_s = (record.get("usage") or {}).get("wall_s")
    if not isinstance(wall_s, (int, float)):
        return None
    if wall_s > start_s or (record.get("reason") is None and record.get("exit_code") == 0):
        return False
    if record.get("stopped_by") is None and record.get("reason") in ("exit", "signal"):
        return True
    return None


def note(layout, device, cards, job_id, record, now=None):
    """Note the end of an attempt on its cards. Losing it to a full disk is no reason to fail."""
    if not cards:
        return
    now = time.time() if now is None else now
    died = verdict(record, settings.read(layout)[0]["aside_start_s"])
    lock = leases.bind_patiently(lock_name("cardlog", layout.instance), 0.5)
    try:
        table = files.read_json(path(layout), {})
        table = table if isinstance(table, dict) else {}
        log = read(layout, device)
        for index in cards:
            last = log.get(index, {}).get("last", [])
            last = last if died is None else [*last[1 - KEEP :], [now, job_id, died, len(cards)]]
            log[index] = {"ended": now, "last": last}
        table[device] = {str(index): log[index] for index in log}
        files.write_json(path(layout), table, sync=False)
    except OSError:
        pass
    finally:
        if lock is not None:
            leases.release([lock])


def freed_lately(log, now, linger_s):
    """The indexes that a job of mine let go within `linger_s` seconds. Pure."""
    return {index for index, entry in log.items() if 0 <= now - entry["ended"] <= linger_s}


def set_aside(log, indexes, now, deaths, for_s):
    """`{index: {"until": at, "jobs": [ids]}}` of the cards on which jobs die at start. Pure.

    A card is set aside for `for_s` seconds when the last `deaths` attempts on it died at start and were of at least two
    jobs; unless jobs died at start on the other cards as well and did well on none since: then it is the jobs. An
    attempt that had more than half of the host's cards says nothing about one of them.
    """
    found = {}
    if deaths < 1:
        return found
    telling = {index: _telling(log[index]["last"], len(indexes)) for index in indexes if index in log}
    for index in telling:
        last = telling[index][-int(deaths) :]
        if len(last) < deaths or not all(died for _, _, died, _ in last) or not now < last[-1][0] + for_s:
            continue
        if len({job for _, job, _, _ in last}) >= min(2, deaths) and not _jobs_to_blame(telling, index, last, indexes):
            found[index] = {"until": last[-1][0] + for_s, "jobs": list(dict.fromkeys(job for _, job, _, _ in last))}
    return found


def _telling(entries, total):
    return [entry for entry in entries if not entry[2] or entry[3] == 1 or 2 * entry[3] <= total]


def _jobs_to_blame(telling, index, last, indexes):
    """True if since the first of these deaths jobs died at start on other cards, too, and did well on none."""
    own = {(at, job) for at, job, _, _ in last}
    since, dead_on = last[0][0], 0
    for other in telling:
        ends = [entry for entry in telling[other] if entry[0] >= since and (entry[0], entry[1]) not in own]
        if other == index or not ends:
            continue
        if not all(died for _, _, died, _ in ends):
            return False
        dead_on += 1
    return dead_on >= max(1, min(2, len(indexes) - 1))


def text(aside, stamp):
    """Why such a card is not given, for a person; `stamp` makes a time of seconds. Pure."""
    return (
        "set aside until {}: the last jobs on it ({}) died at their start; `jobrunner hosts undrain` ends that".format(
            stamp(aside["until"]), ", ".join(aside["jobs"])
        )
    )
