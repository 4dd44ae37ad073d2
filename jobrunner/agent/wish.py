"""Hold, release, and priority of waiting jobs."""

from . import dispatcher, jobs, leases, queue, settle
from .files import AgentError


def run(session, request):
    """Operation `wish`: change waiting jobs; the views of the jobs. A job that no longer waits stays as it is."""
    layout = session.layout
    changes = changes_of(request)
    views = {}
    for job_id in request.get("ids") or []:
        if not isinstance(job_id, str) or not jobs.exists(layout, job_id):
            views[job_id] = None
            continue
        change(layout, job_id, changes, request.get("kind"))
        views[job_id] = settle.settle(layout, job_id)
    dispatcher.ensure_running(layout)
    return {"jobs": views}


def changes_of(request):
    """The fields of a queue entry that a wish sets. Pure; AgentError for a wish that means nothing."""
    kind, value = request.get("kind"), request.get("value")
    if kind == "hold":
        return {"hold": True}
    if kind == "release":
        return {"hold": False}
    if kind == "priority" and isinstance(value, int) and not isinstance(value, bool):
        return {"priority": value}
    raise AgentError(
        "bad_wish", "not a wish: {!r} with {!r}".format(kind, value), "Use hold, release, or priority with a number."
    )


def change(layout, job_id, changes, kind):
    """Change a waiting job's entry under its lock. False if it does not wait, or its lock is not to be had."""
    lock = leases.bind_patiently(layout.job_lock(job_id), 0.0 if jobs.running_start(layout, job_id) else 1.0)
    if lock is None:
        return False
    try:
        if jobs.queue_entry(layout, job_id) is None:
            settle.act(layout, job_id, lock)
        changed = queue.rewrite(layout, job_id, **changes)
    finally:
        leases.release([lock])
    if changed:
        jobs.journal(layout, job_id, kind, **changes)
        queue.wake(layout)
    return changed
