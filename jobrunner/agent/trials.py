"""What a sweep asks of this host: at most so many of its trials at once, and an end after so many that failed.

How many failed lies in `sweeps/<id>.jsonl` of the instance's folder: a line for each job of the sweep that ended as
FAILED, TIMEOUT or LOST here. A trial counts those that came after it was queued first, so that one which is submitted
again later has its chance.
"""

import os
import re

from . import clock, files

FAILING = ("FAILED", "TIMEOUT", "LOST")
_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,63}\Z")


def of_request(request):
    """`{"id", "parallel", "stop_after"}` of a trial's request, as its queue entry has it; None for other jobs. Pure."""
    told = request.get("sweep")
    if not isinstance(told, dict) or not isinstance(told.get("id"), str) or not _ID.match(told["id"]):
        return None
    return {"id": told["id"], "parallel": _count(told.get("parallel")), "stop_after": _count(told.get("stop_after"))}


def _count(value):
    return value if type(value) is int and value > 0 else None


def id_of(entry):
    """The sweep of a queue entry, or None. Pure."""
    return (entry.get("sweep") or {}).get("id")


def full(entry, running, further=0):
    """`("sweep", text)` if as many trials of the entry's sweep run as may, else None. Pure.

    `running` are jobs with the `sweep` that they belong to; `further` more of it count as running.
    """
    most = (entry.get("sweep") or {}).get("parallel")
    if not most:
        return None
    count = sum(1 for job in running if job.get("sweep") == id_of(entry))
    if count + further < most:
        return None
    return "sweep", "its sweep runs {} {} at once here (`parallel`), and {} {} now".format(
        most, "trial" if most == 1 else "trials", count, "runs" if count == 1 else "run"
    )


def path(layout, sweep):
    """Where the failures of a sweep are noted."""
    return os.path.join(folder(layout), files.to_bytes(sweep) + b".jsonl")


def folder(layout):
    """Where they lie for all sweeps."""
    return os.path.join(layout.home, b"sweeps")


def failures(layout, sweep):
    """The ids of the sweep's jobs that failed here, in that order, each once."""
    found = []
    for line in files.read_lines(path(layout, sweep))[0]:
        job = line.get("job") if isinstance(line, dict) else None
        if isinstance(job, str) and job not in found:
            found.append(job)
    return found


def note_end(layout, request, state):
    """Note that a job is about to end in this state, where its sweep counts failures. May be repeated."""
    trial = of_request(request) if state in FAILING else None
    if trial and trial["stop_after"] and request["id"] not in failures(layout, trial["id"]):
        where = path(layout, trial["id"])
        files.make_dir(os.path.dirname(where))
        files.append_line(where, {"job": request["id"], "at": clock.stamp(), "state": state})


def failed_before(layout, entry):
    """How many of its sweep had failed when a trial is queued for the first time; None where nobody counts."""
    limited = (entry.get("sweep") or {}).get("stop_after")
    return len(failures(layout, id_of(entry))) if limited else None


def over(layout, entry, known=None):
    """Why a waiting trial is not to start any more, or None. `known` keeps what was read: `{sweep: failures}`."""
    limit = (entry.get("sweep") or {}).get("stop_after")
    if not limit:
        return None
    sweep, known = id_of(entry), {} if known is None else known
    if sweep not in known:
        known[sweep] = failures(layout, sweep)
    counted = known[sweep][entry.get("failed_before") or 0 :]
    if len(counted) < limit:
        return None
    return "its sweep ends after {} {} that failed (`on_error`), and so many did: {}".format(
        limit, "trial" if limit == 1 else "trials", ", ".join(counted[:limit])
    )
