"""What can be made for the jobs that are next while they wait, so that their starts need not wait for it: their
folders, and room for their records."""

import os
import signal
import time

from . import conclude, files, jobs, kernel, leases, procs

QUIET_S = 0.02  # after a start the helper waits so long
FAR_S = 3600.0
PATIENCE_S = 10.0  # for whoever is concluding a job
NEXT = 4  # so many of the jobs that come next are seen to


class Ahead:
    """The dispatcher's helper for that: one process at a time, which ends with the dispatcher."""

    def __init__(self, layout):
        self._layout = layout
        self._done = set()
        self._helper = None
        self._quiet = 0.0

    def begin(self, waiting):
        """See to the first of these entries (in order) for which that was not done, unless one is being seen to, or a
        job is just starting. The seconds after which this is to be called again."""
        coming = waiting[:NEXT]
        self._done.intersection_update(map(_key, coming))
        left = [entry for entry in coming if _key(entry) not in self._done]
        if self._helper is not None or not left:
            return FAR_S
        pause = self._quiet - time.monotonic()
        if pause > 0:
            return pause
        self._done.add(_key(left[0]))
        self._start(left[0])
        return FAR_S

    def _start(self, entry):
        pid = os.fork()
        if pid:
            self._helper = (pid, entry["id"])
            return
        try:
            kernel.die_with_parent(signal.SIGKILL)
            procs.close_all_but([2])
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            _make(self._layout, entry)
        except Exception:
            pass  # whatever it is: the start makes the folder, and says what is wrong
        finally:
            os._exit(0)

    def ended(self, pid):
        """True if that child was the helper."""
        if self._helper is None or self._helper[0] != pid:
            return False
        self._helper = None
        return True

    def stand_back(self, job_id):
        """A job starts now: nobody else may be at its folder, or take the processor from it."""
        self._quiet = time.monotonic() + QUIET_S
        if self._helper is not None and self._helper[1] == job_id:
            self._kill()

    def end(self):
        """The dispatcher is about to end: the helper would be killed with it, and what it made for a job that is over
        would stay."""
        if self._helper is not None:
            job_id = self._helper[1]
            self._kill()
            _undo_if_final(self._layout, job_id)

    def _kill(self):
        pid, self._helper = self._helper[0], None
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _key(entry):
    return entry["id"], entry.get("attempt") or 1


def _make(layout, entry):
    """Make what an attempt needs that takes nothing along from one before."""
    from . import room, worktree

    job_id, attempt = entry["id"], entry.get("attempt") or 1
    run = jobs.run_of(jobs.request(layout, job_id))
    if run and not (attempt > 1 and run.get("carry")) and not jobs.is_final(layout, job_id):
        worktree.make_ready(layout, job_id, attempt)
        files.make_dir(os.path.join(layout.job(job_id), b"out"))
        for path in room.records(layout, job_id, attempt):
            room.reserve(path, sync=False)
        _undo_if_final(layout, job_id)


def _undo_if_final(layout, job_id):
    """A job that was cancelled meanwhile: whoever did that may have come before all of it was made."""
    if not jobs.is_final(layout, job_id):
        return
    lock = leases.bind_patiently(layout.job_lock(job_id), PATIENCE_S)
    if lock is not None and jobs.is_final(layout, job_id):
        conclude.drop_unstarted(layout, job_id)
        conclude.tidy(layout, job_id)


def undo_lost_start(folder):
    """True if an attempt that is about to begin had begun once: a crash of the host lost its start record. What its
    command may have written is put aside; the new build removes it."""
    work = os.path.join(folder, b"work")
    if os.path.lexists(os.path.join(folder, b"start.json")) or not os.path.lexists(work):
        return False
    os.rename(work, os.path.join(folder, b".work-" + os.urandom(4).hex().encode()))
    return True
