"""The end of an attempt: its record, its cards for the next job, its verdict, in this order."""

import os

from . import cardlog, conclude, files, handover, jobs, leases, queue, room, share, stopping, trials, usage


def end(supervisor):
    """Write exit.json, let go of the cards, conclude, and see that the queue goes on. Nothing of the job is left."""
    layout, job_id = supervisor.layout, supervisor.job_id
    if supervisor.terminal is not None:
        supervisor.terminal.drain()
        supervisor.terminal.close()
    record = conclude.exit_record(supervisor)
    last = conclude.next_delay(supervisor.request, supervisor.attempt, record) is None
    if last:  # before the record, from which on another trial may take this one's place
        _beside(supervisor, trials.note_end, layout, supervisor.request, conclude.state_of(record))
    try:
        path = os.path.join(supervisor.folder, b"exit.json")
        room.publish(path, record, sync=False)
        _beside(supervisor, stopping.forget_container, supervisor)
        _beside(supervisor, usage.add, layout, record["usage"]["card_s"])
        device = supervisor.run_spec.get("device")
        _beside(supervisor, cardlog.note, layout, device, supervisor.cards, job_id, record)
        if last:
            let_go(supervisor)
        files.secure(path)  # beside the next start, and before anybody hears of the verdict
        _conclude(supervisor, record)
    except OSError as error:
        jobs.journal(layout, job_id, "warning", text="its end could not be concluded: {}".format(error))
    leases.release([supervisor.lock])
    let_go(supervisor)  # of what is tried again: now that it can be taken up, before younger jobs are
    if queue.waiting(layout):
        from . import dispatcher

        if not handover.is_heard(supervisor.inlet):
            queue.wake(layout)  # a dispatcher that is not our parent hears of the verdict only so
        dispatcher.ensure_running(layout)


def _beside(supervisor, step, *words):
    """Take a step that is not the job's own affair: a fault in it is told, and never changes the verdict."""
    try:
        step(*words)
    except Exception as error:  # whatever it is: the record is written, and the job must be concluded
        text = "{} failed at its end: {}: {}".format(step.__name__, type(error).__name__, error)
        jobs.journal(supervisor.layout, supervisor.job_id, "warning", text=text)


def let_go(supervisor):
    """Give the cards and ports back, once, and wake whoever waits for them.

    Always before the verdict shows: whoever reads that finds the cards free. An attempt that is to be tried again gets
    its place in the queue first, because it is the older job.
    """
    held, supervisor.held = supervisor.held, []
    if held:
        leases.release(held)
        if not handover.tell(supervisor.inlet, supervisor.job_id):
            queue.wake(supervisor.layout)
        share.publish_leases(supervisor.layout, jobs.running(supervisor.layout))


def _conclude(supervisor, record):
    layout, job_id = supervisor.layout, supervisor.job_id
    jobs.journal(
        layout,
        job_id,
        "ended",
        attempt=supervisor.attempt,
        exit_code=record["exit_code"],
        signal=record["signal"],
        reason=record["reason"],
        stopped_by=record["stopped_by"],
    )
    conclude.take_notes(layout, job_id, ended=True)
    conclude.conclude(layout, job_id, supervisor.attempt, record, before_final=lambda: let_go(supervisor))
