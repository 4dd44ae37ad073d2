"""A waiting job that goes to another host: taken out of this queue for good, or come back to it.

The job's folder stays, with a `final.json` whose state is MOVED: `{"state", "moves", "to", "at"}`. `moves` counts how
often the job was sent on, and a request says it too, so that nothing but a later sending brings the job back here.
"""

import os

from . import clock, conclude, dispatcher, files, jobs, leases, queue, settle


def of(layout, job_id):
    """The record of a job that has been taken away from here, or None."""
    verdict = jobs.final(layout, job_id)
    return verdict if verdict and verdict.get("state") == jobs.MOVED else None


def count(value):
    """How often a job was moved, as a request or a record says it. Pure."""
    moves = (value or {}).get("moves")
    return moves if type(moves) is int and moves > 0 else 0


def comes_back(layout, request):
    """True if this request is a later sending of a job that was taken away from here."""
    record = of(layout, request["id"])
    return record is not None and count(request) > count(record)


def verdict(moves, to, at=None):
    """The record of a job that is not here any more. Pure but for the time."""
    known = to if isinstance(to, dict) else {}
    place = {key: known[key] for key in ("alias", "instance", "hostname") if isinstance(known.get(key), str)}
    return {
        "v": jobs.FORMAT,
        "state": jobs.MOVED,
        "moves": moves,
        "to": place,
        "reason": None,
        "exit_code": None,
        "signal": None,
        "attempt": None,
        "at": at or clock.stamp(),
        "evidence": "it was taken out of the queue here, to go to {}".format(place.get("alias") or "another host"),
    }


def run_take_back(session, request):
    """Operation `take_back`: take waiting jobs out of the queue for good; `taken` tells of which that was done.

    `jobs` is `{id: moves}`; a job that was taken with that number before counts as taken again.
    """
    layout = session.layout
    asked = request.get("jobs")
    taken = {}
    for job_id, moves in sorted(asked.items() if isinstance(asked, dict) else ()):
        if jobs.exists(layout, job_id) and type(moves) is int and moves > 0:
            taken[job_id] = take(layout, job_id, moves, request.get("to"))
    if any(taken.values()):
        queue.wake(layout)
    dispatcher.ensure_running(layout)
    return {"taken": taken, "jobs": {job_id: settle.settle(layout, job_id) for job_id in taken}}


def take(layout, job_id, moves, to):
    """Take one job out of the queue. False: it has begun, goes on from another job, is held or cancelled, or ended."""
    lock = leases.bind_patiently(layout.job_lock(job_id), 0.0 if jobs.running_start(layout, job_id) else 1.0)
    if lock is None:
        return False
    try:
        record = of(layout, job_id)
        if record is not None:
            return count(record) == moves
        if not _may_go(layout, job_id) or moves <= count(jobs.request(layout, job_id)):
            return False
        conclude.finish(layout, job_id, verdict(moves, to))
        return of(layout, job_id) is not None
    finally:
        leases.release([lock])


def _may_go(layout, job_id):
    entry = jobs.queue_entry(layout, job_id)
    begun = jobs.attempts(layout, job_id) or os.path.exists(os.path.join(layout.job(job_id), b"resume.json"))
    return entry is not None and not (entry.get("hold") or begun or jobs.cancel(layout, job_id))


def take_in(layout, job):
    """A job comes back to the folder that it left here: `job` as `stage` gets it. False if somebody else was quicker.

    Its code lies here still. What remains after a cut is a job that is away (then it comes again), or one that is in
    no queue yet (whoever looks enqueues it).
    """
    request = job["request"]
    job_id = request["id"]
    lock = leases.bind_patiently(layout.job_lock(job_id), 5.0)
    if lock is None:
        return False
    try:
        if not comes_back(layout, request):
            return False
        folder = layout.job(job_id)
        if job.get("secrets"):
            files.write_json(os.path.join(folder, b"secrets.json"), job["secrets"])
        files.write_json(os.path.join(folder, b"request.json"), request)
        os.unlink(os.path.join(folder, b"final.json"))
        jobs.journal(layout, job_id, "returned", moves=count(request))
        queue.enqueue(layout, job_id, request)
        return True
    finally:
        leases.release([lock])


def clear(layout, job_id):
    """Remove the tombstone of a job that never was here, so that it can be sent after all."""
    from . import remove

    lock = leases.bind_patiently(layout.job_lock(job_id), 5.0)
    if lock is None:
        return
    try:
        if of(layout, job_id) is None or not (jobs.request(layout, job_id) or {}).get("tombstone"):
            return
        aside = os.path.join(layout.jobs, b".tmp-" + files.to_bytes(job_id) + b"-" + os.urandom(4).hex().encode())
        os.rename(layout.job(job_id), aside)
        remove.tree(aside)
    finally:
        leases.release([lock])
