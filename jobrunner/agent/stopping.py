"""Stop a job wholly: TERM to everything of it, a grace, KILL, and a look that nothing is left."""

import os
import signal
import time

from . import jobs, procs

LATE_S = 10.0  # after so many seconds of KILL in vain a warning is written


def stop(supervisor, by):
    """Stop the job because of `by` (cancel, timeout). Returns when nothing of it is left."""
    supervisor.stopped_by = by
    jobs.journal(supervisor.layout, supervisor.job_id, "stopping", by=by, grace_s=grace_of(supervisor))
    _clear(supervisor)


def leftovers(supervisor):
    """Stop what is still there after the command has ended."""
    left = supervisor.members()
    if left or containers_of(supervisor):
        if not supervisor.stopped_by and not supervisor.adopted:
            jobs.journal(
                supervisor.layout,
                supervisor.job_id,
                "leftovers",
                processes=[{"pid": process.pid, "command": procs.command_line(process.pid)} for process in left[:20]],
            )
        _clear(supervisor)


def grace_of(supervisor):
    """Seconds between TERM and KILL: what the wish to cancel says, else the spec."""
    wish = jobs.cancel(supervisor.layout, supervisor.job_id) or {}
    grace = wish.get("grace_s")
    if grace is None:
        grace = supervisor.run_spec.get("grace_s")
    return 30.0 if grace is None else max(0.0, float(grace))


def containers_of(supervisor):
    """Live containers of the job; an engine is asked only for jobs that run in one."""
    if not _in_container(supervisor):
        return []
    from . import containers

    return containers.of_job(supervisor.layout, supervisor.job_id)


def _in_container(supervisor):
    return bool((supervisor.run_spec.get("runtime") or {}).get("docker"))


def container_outcome(supervisor):
    """How the job's container ended, by its engine's record: as `Supervisor.outcome`; None if there is none."""
    if not _in_container(supervisor):
        return None
    from . import containers_end

    status = None if supervisor.adopted else supervisor.status
    found = containers_end.outcome(supervisor.layout, supervisor.job_id, supervisor.attempt, status)
    if found is not None and status is not None and found[2] in (None, "exit"):
        return None  # the client has said the same, and what is known of the host's memory and disk counts
    return found


def follow_container(supervisor):
    """Of an adopted job in a container: bring its output into the log again, if the client that did so is gone."""
    if _in_container(supervisor) and not procs.alive(supervisor.command):
        from . import containers

        containers.follow(supervisor.layout, supervisor.job_id, os.path.join(supervisor.folder, b"log"))


def forget_container(supervisor):
    """Remove the job's container, whose end is written down."""
    if _in_container(supervisor):
        from . import containers_end

        containers_end.remove(supervisor.layout, supervisor.job_id, supervisor.attempt)


def _clear(supervisor):
    began = time.monotonic()
    asked, warned, wait = set(), False, 0.01
    in_container = bool(containers_of(supervisor))
    if in_container and not _reached(supervisor):
        _to_container(supervisor, "TERM")
    while True:
        members = supervisor.members()
        ended = supervisor.child is None or supervisor.status is not None
        if ended and not members and not (in_container and containers_of(supervisor)):
            return
        passed = time.monotonic() - began
        if passed < grace_of(supervisor):
            _ask(supervisor, _to_ask(supervisor, members) if in_container else members, asked)
            wait = min(wait * 1.5, 0.2, max(0.001, grace_of(supervisor) - passed))
        else:
            supervisor.forced = grace_of(supervisor)
            _kill(supervisor, members, in_container)
            wait = 0.02 if passed < grace_of(supervisor) + 1 else 1.0
            if passed > grace_of(supervisor) + LATE_S and not warned:
                warned = True
                _warn(supervisor, members)
        supervisor.turn(wait)


def _reached(supervisor):
    """True if processes inside the job's container are seen, so that each can be asked by itself."""
    from . import containers

    return any(containers.inside(process) for process in supervisor.members())


def _to_ask(supervisor, members):
    """Whom to send TERM of a job in a container: not the client, which is still to bring the last words, nor the
    engine's init, which would pass it on a second time."""
    from . import containers

    client = (supervisor.command or {}).get("pid")
    return [process for process in members if process.sid != client and not containers.is_init(process)]


def _ask(supervisor, members, asked):
    """TERM, once to each process: the command's group in one blow, then whoever is elsewhere."""
    fresh = [process for process in members if (process.pid, process.ticks) not in asked]
    group = supervisor.child if supervisor.status is None else None
    if group and any(process.pgid == group for process in fresh):
        try:
            os.killpg(group, signal.SIGTERM)
        except OSError:
            group = None
    for process in fresh:
        asked.add((process.pid, process.ticks))
        if not group or process.pgid != group:
            procs.send(process, signal.SIGTERM)
        if process.state == b"T":
            procs.send(process, signal.SIGCONT)


def _kill(supervisor, members, in_container):
    for process in members:
        procs.send(process, signal.SIGKILL)
    if in_container:
        _to_container(supervisor, "KILL")


def _to_container(supervisor, name):
    from . import containers

    containers.signal_job(supervisor.layout, supervisor.job_id, name)


def _warn(supervisor, members):
    jobs.journal(
        supervisor.layout,
        supervisor.job_id,
        "warning",
        text="processes that even KILL does not end: "
        + ", ".join("{} ({})".format(process.pid, procs.command_line(process.pid)) for process in members[:10]),
    )
