"""How an attempt ended, what that makes of the job, and the one place where a verdict or a retry is written."""

import os
import time

from . import clock, jobs, queue, room, trials

LOST = ("host_reboot", "killed", "unobserved")
RETRY_WORD = {"exit": "exit", "signal": "signal", "oom": "oom"}
MAX_BACKOFF_S = 24 * 3600
SET_BACK_S = 2.0  # by so much a clock is adjusted without anybody having set it


def state_of(record):
    """The final state that an exit record means. Pure."""
    if record.get("stopped_by") == "cancel":
        return "CANCELLED"
    if record.get("stopped_by") == "timeout":
        return "TIMEOUT"
    if record.get("reason") in LOST:
        return "LOST"
    if record.get("reason") is None and record.get("exit_code") == 0:
        return "COMPLETED"
    return "FAILED"


def signal_name(number):
    """`SIGKILL` for 9; a number without a name as `SIG<n>`."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return "SIG{}".format(number)


def classify(status, setup_error=None, launch_error=None, oom=None, disk_full=None, worker=None):
    """`(exit_code, signal, reason, evidence)` of an ended command. Pure.

    `status` is what `wait` gave; the errors and the evidence for host memory and a full disk are texts or None, as is
    `worker`: what a launcher says of a process of its own that SIGKILL ended.
    """
    signal = signal_name(os.WTERMSIG(status)) if os.WIFSIGNALED(status) else None
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    if setup_error is not None:
        return code, signal, "disk_full" if disk_full else "setup", disk_full or setup_error
    if launch_error is not None:
        return None, None, "launch", launch_error
    if code == 0:
        return 0, None, None, "the command ended with exit code 0"
    if oom and (signal == "SIGKILL" or code == 137):
        return code, signal, "oom", oom
    if oom and worker:
        return code, signal, "oom", "{}; the log says: {}".format(oom, worker)
    if disk_full:
        return code, signal, "disk_full", disk_full
    if signal:
        return code, signal, "signal", "the command was ended by {}".format(signal)
    return code, signal, "exit", "the command ended with exit code {}".format(code) + _by_signal(code)


def _by_signal(code):
    """What a shell means by 128+n; empty for other codes."""
    name = signal_name(code - 128) if 128 < code < 193 else "SIG"
    return "" if name[3:4] in ("", *"0123456789") else ": so does a shell of which a process was ended by " + name


def exit_record(attempt):
    """What exit.json says about an attempt that a supervisor has seen to its end."""
    code, name, reason, shown = attempt.outcome()
    limit = attempt.run_spec.get("timeout_s")
    if attempt.stopped_by:
        reason = None
        shown = (
            _asked(jobs.cancel(attempt.layout, attempt.job_id) or {})
            if attempt.stopped_by == "cancel"
            else ("stopped at its time limit of {} s, and nothing of it is left".format(limit))
        )
        if attempt.forced is not None:
            shown += "; what did not end within its grace of {:g} s was killed".format(attempt.forced)
    wall = max(0.0, time.monotonic() - attempt.mono)
    spent = {word: round(value, 3) for word, value in attempt.spent.items()}
    spent.update(wall_s=round(wall, 3), card_s=round(wall * len(attempt.cards), 3))
    at = clock.stamp(ended_at(attempt.started.get("began"), wall, time.time()))
    return {
        "v": jobs.FORMAT, "exit_code": code, "signal": name, "reason": reason, "at": at, "evidence": shown,
        "started_at": attempt.started.get("at"), "stopped_by": attempt.stopped_by, "left": [], "usage": spent,
    }  # fmt: skip


def ended_at(began, wall_s, now):
    """When an attempt ended that began at `began` and ran for `wall_s` by the clock that cannot be set. Pure.

    That is `now`, unless the host's clock was set back meanwhile: no job ends before it began.
    """
    if not isinstance(began, (int, float)):
        return now
    return max(now, began) if now >= began + wall_s - SET_BACK_S else began + wall_s


def _asked(wish):
    """Whose wish it was that ended a job, for its evidence."""
    when = " at {}".format(wish["at"]) if wish.get("at") else ""
    return "stopped because {} asked{}, and nothing of it is left".format(wish.get("by") or "somebody", when)


def retry_delay(policy, attempt, state, reason):
    """Seconds until the next attempt, or None for no further one. Pure.

    `policy` is the spec's `retry`: at most `max` further attempts, on the reasons of `on`; the wait doubles each time.
    """
    policy = policy or {}
    word = {"TIMEOUT": "timeout", "LOST": "lost"}.get(state) or (RETRY_WORD.get(reason) if state == "FAILED" else None)
    on = policy.get("on")
    if word is None or attempt > int(policy.get("max") or 0) or (on is not None and word not in on):
        return None
    return min(MAX_BACKOFF_S, float(policy.get("backoff_s") or 0) * 2 ** (attempt - 1))


def next_delay(request, attempt, record):
    """`retry_delay` by what a request asks for and an exit record says."""
    return retry_delay(jobs.run_of(request).get("retry"), attempt, state_of(record), record.get("reason"))


def conclude(layout, job_id, attempt, record, before_final=None):
    """Make of an ended attempt what it means: the verdict, or a queue entry for the next attempt.

    The caller holds the job's lock. May be repeated; a job that is final stays as it is. `before_final` is called
    when the verdict is about to be written.
    """
    if jobs.is_final(layout, job_id):
        tidy(layout, job_id)
        return
    request = jobs.request(layout, job_id) or {"id": job_id}
    state, reason = state_of(record), record.get("reason")
    wish = jobs.cancel(layout, job_id)
    delay = None if wish else next_delay(request, attempt, record)
    if delay is not None:
        started = jobs.start(layout, job_id, attempt) or {}
        jobs.journal(layout, job_id, "retry", attempt=attempt + 1, after=state, reason=reason, delay_s=delay)
        queue.enqueue(
            layout,
            job_id,
            request,
            attempt + 1,
            delay,
            since=started.get("queued_since"),
            carry=started.get("carry"),
        )
        return
    if wish and state == "LOST":
        state, reason = "CANCELLED", None
    if before_final is not None:
        before_final()
    finish(
        layout,
        job_id,
        {
            "state": state,
            "reason": None if state in ("COMPLETED", "CANCELLED", "TIMEOUT") else reason,
            "exit_code": record.get("exit_code"),
            "signal": record.get("signal"),
            "attempt": attempt,
            "at": record.get("at") or clock.stamp(),
            "evidence": record.get("evidence"),
        },
    )


def finish(layout, job_id, verdict):
    """Write the verdict unless there is one, and remove what a final job must not have. The caller holds the lock."""
    path = os.path.join(layout.job(job_id), b"final.json")
    if verdict["state"] in trials.FAILING:
        trials.note_end(layout, dict(jobs.request(layout, job_id) or {}, id=job_id), verdict["state"])
    if room.publish(path, dict(verdict, v=jobs.FORMAT), once=True):
        jobs.journal(
            layout,
            job_id,
            "moved" if verdict["state"] == jobs.MOVED else "final",
            state=verdict["state"],
            reason=verdict.get("reason"),
            exit_code=verdict.get("exit_code"),
            signal=verdict.get("signal"),
        )
        drop_unstarted(layout, job_id)
    tidy(layout, job_id)


def drop_unstarted(layout, job_id):
    """Remove what was made ahead for an attempt that never began. The caller holds the lock."""
    begun = jobs.attempts(layout, job_id)
    for name in os.listdir(layout.job(job_id)):
        if name.isdigit() and int(name) not in begun:
            from . import remove, worktree

            folder = os.path.join(layout.job(job_id), name)
            worktree.drop_ready(folder)
            remove.tree(os.path.join(folder, b"work"))
            room.drop(os.path.join(folder, b"exit.json"))
            try:
                os.rmdir(folder)
            except OSError:
                pass  # a log is in it


def tidy(layout, job_id):
    """What holds for every final job: no secrets, no queue entry, no reserved room."""
    folder = layout.job(job_id)
    for path in (
        os.path.join(folder, b"secrets.json"),
        layout.queued(job_id),
        os.path.join(folder, b"final.json.room"),
        os.path.join(folder, b"cancel.json.room"),
    ):
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass


def lost(layout, job_id, attempt, reason, evidence):
    """Record that an attempt is gone without an exit record, and conclude. The caller holds the lock."""
    started = jobs.start(layout, job_id, attempt) or {}
    record = {
        "v": jobs.FORMAT,
        "exit_code": None,
        "signal": None,
        "reason": reason,
        "at": clock.stamp(ended_at(started.get("began"), 0.0, time.time())),
        "started_at": started.get("at"),
        "evidence": evidence,
        "stopped_by": None,
        "left": [],
        "usage": {},
    }
    room.publish(os.path.join(layout.attempt(job_id, attempt), b"exit.json"), record)
    jobs.journal(layout, job_id, "lost", attempt=attempt, reason=reason, evidence=evidence)
    take_notes(layout, job_id, ended=True)
    conclude(layout, job_id, attempt, record)


def to_note(run):
    """True if what a request tells to run has numbers to collect or checkpoints to note. Pure."""
    return bool(run.get("metrics") or (run.get("checkpoints") or {}).get("paths"))


def take_notes(layout, job_id, ended):
    """Bring the job's numbers and its list of checkpoints up to date, in a short-lived child: callers stay small.

    `ended`: the newest attempt writes nothing any more.
    """
    if not to_note(jobs.run_of(jobs.request(layout, job_id))):
        return
    child = os.fork()
    if not child:
        status = 1
        try:
            from . import notes

            notes.take(layout, job_id, ended)
            status = 0
        finally:
            os._exit(status)
    os.waitpid(child, 0)
