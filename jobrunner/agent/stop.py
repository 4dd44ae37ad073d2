"""Cancel jobs: the wish is written down first, then whoever acts on the job is told, then it is verified."""

import os
import signal
import time

from . import clock, files, jobs, leases, procs, room, settle


def ask(layout, job_id, grace_s=None, at=None, by=None):
    """Write down that a job is to be cancelled; a later wish counts if it leaves less grace. False: it is final."""
    if not jobs.exists(layout, job_id) or jobs.is_final(layout, job_id):
        return False
    path = os.path.join(layout.job(job_id), b"cancel.json")
    wish = {"v": jobs.FORMAT, "at": at or clock.stamp(), "by": by, "grace_s": grace_s}
    if room.publish(path, wish, once=True, shared=True):
        jobs.journal(layout, job_id, "cancel", by=by, grace_s=grace_s)
        return True
    old = jobs.cancel(layout, job_id) or {}
    if grace_s is not None and (old.get("grace_s") is None or grace_s < old["grace_s"]):
        files.write_json(path, dict(wish, at=old.get("at") or wish["at"]))
    return True


def nudge(layout, job_id):
    """Tell the job's supervisor to look at the wish. True if there is one, surely the one that was recorded."""
    record = jobs.running_start(layout, job_id)
    who = (record or {}).get("supervisor")
    if not who or not procs.alive(who) or not jobs.locked(layout, job_id):
        return False
    try:
        os.kill(who["pid"], signal.SIGUSR1)
    except OSError:
        return False
    return True


def carry_out(layout, job_id, patience_s=1.0):
    """Act on a wish that was written down: end a waiting job, tell a supervisor, replace a dead one."""
    end = time.monotonic() + patience_s
    while not jobs.is_final(layout, job_id):
        if nudge(layout, job_id):
            return
        lock = leases.bind(layout.job_lock(job_id))
        if lock is not None:
            try:
                settle.act(layout, job_id, lock)
            finally:
                leases.release([lock])
            return
        if time.monotonic() >= end:
            return
        time.sleep(0.01)


def apply_wishes(layout, wishes):
    """Apply wishes that a client kept: `[{id, grace_s, at}]`. Jobs that are not here, or final, are passed over."""
    from .layout import JOB_ID

    for wish in wishes or ():
        job_id = wish.get("id") if isinstance(wish, dict) else None
        if not isinstance(job_id, str) or not JOB_ID.match(job_id):
            continue
        if ask(layout, job_id, _seconds(wish.get("grace_s")), _text(wish.get("at")), "a wish kept by a client"):
            carry_out(layout, job_id)


def _seconds(value):
    return max(0.0, float(value)) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _text(value, most=40):
    return value if isinstance(value, str) and len(value) < most else None


def left_of(layout, job_id):
    """`[{pid, command}]` of a job's processes that live now."""
    record = jobs.running_start(layout, job_id) or {}
    supervisor = record.get("supervisor")
    found = procs.of_job(job_id, record.get("command"), supervisor["pid"] if procs.alive(supervisor) else None)
    return [{"pid": process.pid, "command": procs.command_line(process.pid)} for process in found]


def run(session, request):
    """Operation `stop`: cancel jobs and wait up to `wait_s` until nothing of them is left."""
    layout = session.layout
    ids = [job_id for job_id in request.get("ids") or [] if isinstance(job_id, str)]
    grace_s = _seconds(request.get("grace_s"))
    client = request.get("by") or (request.get("client") or {}).get("user")
    why = request.get("why") if isinstance(request.get("why"), dict) else {}
    for job_id in ids:
        if ask(layout, job_id, grace_s, _text(request.get("at")), _text(why.get(job_id), 1000) or client):
            carry_out(layout, job_id)
    views = wait_final(layout, ids, _seconds(request.get("wait_s")) or 0.0)
    left = {
        job_id: left_of(layout, job_id) for job_id, view in views.items() if view and view["state"] not in jobs.FINAL
    }
    from . import dispatcher

    dispatcher.ensure_running(layout)
    return {"jobs": views, "left": left}


def wait_final(layout, ids, seconds):
    """The views of jobs once all are final, or when so many seconds have passed."""
    end, pause = time.monotonic() + seconds, 0.01
    while True:
        views = {job_id: settle.settle(layout, job_id) for job_id in ids}
        if time.monotonic() >= end or all(view is None or view["state"] in jobs.OVER for view in views.values()):
            return views
        time.sleep(min(pause, max(0.0, end - time.monotonic())))
        pause = min(pause * 1.5, 0.25)
