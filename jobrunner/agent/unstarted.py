"""Waiting jobs that will never start: cancelled, without hope, or of a sweep that has ended. Each is acted on under
its lock; where that is taken, somebody else acts on it."""

from . import clock, conclude, jobs, leases, order, settle, situation, trials


def drop(layout, entry, failed):
    """See to an entry that is none any more, or whose job is not to start. True if it waits no longer.

    `failed` keeps what was read of sweeps' failures.
    """
    job_id = entry["id"]
    if jobs.is_final(layout, job_id) or jobs.stale(layout, job_id, entry):
        tidy(layout, job_id)
        return True
    if jobs.cancel(layout, job_id) is not None:
        tidy(layout, job_id)
        return jobs.is_final(layout, job_id)
    text = trials.over(layout, entry, failed)
    if text:
        return end(layout, job_id, None, text, state="CANCELLED")
    _, hopeless, text = order.dependency(entry, situation.states_for(layout, entry))
    return hopeless and end(layout, job_id, "dependency", text)


def tidy(layout, job_id):
    """Remove an entry that is none any more, or cancel the job, unless somebody is acting on it."""
    lock = leases.bind(layout.job_lock(job_id))
    if lock is None:
        return
    try:
        settle.act(layout, job_id, lock)
    finally:
        leases.release([lock])


def end(layout, job_id, reason, text, state="FAILED"):
    """Conclude a waiting job, unless somebody acts on it or it waits no longer. True if that was done."""
    lock = leases.bind(layout.job_lock(job_id))
    if lock is None:
        return False
    try:
        if jobs.queue_entry(layout, job_id) is None:
            return False
        jobs.journal(layout, job_id, "not_started", state=state, why=text)
        conclude.finish(
            layout,
            job_id,
            {
                "state": state,
                "reason": reason,
                "exit_code": None,
                "signal": None,
                "at": clock.stamp(),
                "attempt": None,
                "evidence": text,
            },
        )
        return True
    finally:
        leases.release([lock])
