"""Reconcile a job with what the host shows, under the job's lock; where that is taken, somebody else acts."""

import os

from . import clock, conclude, jobs, leases, procs, queue


def settle(layout, job_id, names=None):
    """Bring a job's records in line with the host's evidence and return its view; None if there is no such job here.

    `names` are abstract names from `leases.held_names` that the caller has just read.
    """
    if not jobs.exists(layout, job_id):
        return None
    if jobs.is_final(layout, job_id):
        conclude.tidy(layout, job_id)
        return jobs.job_view(layout, job_id, names)
    if not jobs.locked(layout, job_id, names) and not waits_in_peace(layout, job_id):
        lock = leases.bind(layout.job_lock(job_id))
        if lock is not None:
            try:
                act(layout, job_id, lock)
            finally:
                leases.release([lock])
            return jobs.job_view(layout, job_id)
    return jobs.job_view(layout, job_id, names)


def waits_in_peace(layout, job_id):
    """True for a job that is queued and that nobody wants cancelled: there is nothing to settle."""
    return jobs.cancel(layout, job_id) is None and jobs.queue_entry(layout, job_id) is not None


def act(layout, job_id, lock):
    """Settle a job whose lock we hold. Returns what was done: final, queued, concluded, adopted, lost, enqueued."""
    if jobs.is_final(layout, job_id):
        conclude.tidy(layout, job_id)
        return "final"
    wish = jobs.cancel(layout, job_id)
    entry = jobs.queue_entry(layout, job_id)
    if entry is not None:
        if wish:
            _cancel_waiting(layout, job_id, entry.get("attempt"), wish)
            return "concluded"
        return "queued"
    numbers = jobs.attempts(layout, job_id)
    if not numbers:
        if wish:
            _cancel_waiting(layout, job_id, None, wish)
            return "concluded"
        queue.enqueue(layout, job_id, jobs.request(layout, job_id) or {"id": job_id})
        return "enqueued"
    queue.remove(layout, job_id)
    ended = jobs.exit_record(layout, job_id, numbers[-1])
    if ended is not None:
        conclude.take_notes(layout, job_id, ended=True)
        conclude.conclude(layout, job_id, numbers[-1], ended)
        return "concluded"
    return _unsupervised(layout, job_id, numbers[-1], lock)


def _cancel_waiting(layout, job_id, attempt, wish):
    numbers = jobs.attempts(layout, job_id)
    conclude.finish(
        layout,
        job_id,
        {
            "state": "CANCELLED",
            "reason": None,
            "exit_code": None,
            "signal": None,
            "at": clock.stamp(),
            "attempt": numbers[-1] if numbers else attempt,
            "evidence": "cancelled while it waited, by {}".format(wish.get("by") or "a client"),
        },
    )


def _unsupervised(layout, job_id, attempt, lock):
    """A start without an end, and no supervisor: rebooted, alive, or killed."""
    started = jobs.start(layout, job_id, attempt) or {}
    who = started.get("supervisor") or {}
    boot = who.get("boot_id")
    if not started and clock.before_boot(os.path.join(layout.attempt(job_id, attempt), b"start.json")):
        boot = "unknown"  # the host went down before what it says was on the disk
    if boot and boot != clock.boot_id():
        conclude.lost(
            layout,
            job_id,
            attempt,
            "host_reboot",
            "the host was started anew (boot {} then, {} now)".format(boot, clock.boot_id()),
        )
        return "lost"
    if procs.of_job(job_id, started.get("command")) or _container_lives(layout, job_id):
        adopt(layout, job_id, attempt, lock)
        return "adopted"
    conclude.lost(
        layout,
        job_id,
        attempt,
        "killed",
        "its supervisor (pid {}) is gone, no process carries the job's id, and there is no exit record".format(
            who.get("pid")
        ),
    )
    return "lost"


def _container_lives(layout, job_id):
    if not (jobs.run_of(jobs.request(layout, job_id)).get("runtime") or {}).get("docker"):
        return False
    from . import containers

    return bool(containers.of_job(layout, job_id, ended=True))


def adopt(layout, job_id, attempt, lock):
    """Start a supervisor for a job that lives without one; it takes over the job's lock."""
    jobs.journal(layout, job_id, "adopted", attempt=attempt)
    procs.spawn_detached(
        procs.agent_argv(
            "supervisor",
            ["adopt", layout.root.decode("utf-8", "surrogateescape"), layout.instance, job_id, attempt, lock],
        ),
        keep=[lock],
        errors_to=layout.home + b"/agent.log",
    )
