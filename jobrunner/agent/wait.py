"""Wait on the host, so that a client learns of an end at once and asks only once."""

import select
import time

from . import dispatcher, jobs, leases, settle

SLOWEST_S = 0.5
LONGEST_S = 600.0


def run(session, request):
    """Operation `wait`: answer when a state differs from `known`, when all are final, after `timeout_s`, or when the
    client says anything."""
    layout = session.layout
    ids = [job_id for job_id in request.get("ids") or [] if isinstance(job_id, str)]
    known = request.get("known") or {}
    limit = request.get("timeout_s")
    end = time.monotonic() + min(LONGEST_S, float(limit) if isinstance(limit, (int, float)) else LONGEST_S)
    pause = 0.02
    views = {}
    while True:
        names = leases.held_names()
        views = {job_id: _seen(layout, job_id, views.get(job_id), names) for job_id in ids}
        if (
            over(views, known)
            or time.monotonic() >= end
            or spoken(session, min(pause, max(0.0, end - time.monotonic())))
        ):
            dispatcher.ensure_running(layout)
            return {"jobs": views}
        pause = min(pause * 1.3, SLOWEST_S)


def _seen(layout, job_id, before, names):
    if before is not None and before["state"] in jobs.OVER:
        return before
    return settle.settle(layout, job_id, names)


def over(views, known):
    """True if there is something to tell: a state that the client does not know, or nothing left to wait for. Pure."""
    live = [job_id for job_id, view in views.items() if view and view["state"] not in jobs.OVER]
    changed = any(view and job_id in known and known[job_id] != view["state"] for job_id, view in views.items())
    return not live or changed


def spoken(session, seconds):
    """Sleep, and tell whether the client has sent something or is gone."""
    pending = getattr(session, "pending", None)
    if pending is not None and pending():
        return True
    descriptor = getattr(session, "stdin", None)
    if descriptor is None:
        time.sleep(seconds)
        return False
    return bool(select.select([descriptor], [], [], seconds)[0])
