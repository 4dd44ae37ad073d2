"""The queue: one file per waiting job, whose presence is what QUEUED means."""

import os
import time

from . import clock, files, jobs, trials

WAKE = b".wake"


def entry_for(request, attempt, queued_at, not_before=None, since=None):
    """The queue's entry of a request: everything that the dispatcher needs to order and place it. Pure."""
    run = jobs.run_of(request)
    device = run.get("device") or "cpu"
    ids = run.get("card_ids") or None
    cards = len(ids) if ids else run.get("cards")
    if cards is None:
        cards = 0 if device == "cpu" else 1
    return {
        "v": request.get("v", 1),
        "id": request["id"],
        "name": request.get("name"),
        "agent": request.get("agent"),
        "queued_at": queued_at,
        "since": since or queued_at,
        "attempt": attempt,
        "not_before": not_before,
        "hold": False,
        "priority": run.get("priority") or 0,
        "device": device,
        "cards": 0 if device == "cpu" else int(cards),
        "card_ids": ids,
        "after": run.get("after") or [],
        "timeout_s": run.get("timeout_s"),
        "grace_s": run.get("grace_s"),
        "limits": run.get("limits") or {},
        "sweep": trials.of_request(request),
    }


def enqueue(layout, job_id, request, attempt=1, delay_s=None, since=None, carry=None):
    """Put a job into the queue, unless it is there, has begun that attempt, or is final. True if it is queued now.

    It does not start before `delay_s` seconds have passed; `since` keeps the age of a job that was queued before,
    `carry` what else of an earlier entry stays (hold, priority).
    """
    if jobs.is_final(layout, job_id):
        return False
    files.make_dir(layout.queue)
    not_before = clock.stamp(time.time() + delay_s) if delay_s else None
    entry = entry_for(request, attempt, clock.stamp(), not_before, since or in_turn(layout))
    if delay_s:  # a clock that is set meanwhile makes no back-off longer or shorter
        boot, now = clock.steady()
        entry["steady"] = [boot, now + delay_s, delay_s]
    entry["failed_before"] = trials.failed_before(layout, entry)
    entry.update(carry or {})
    if jobs.stale(layout, job_id, entry):
        return False
    if files.create_json(layout.queued(job_id), entry):
        jobs.journal(layout, job_id, "queued", attempt=attempt, not_before=not_before)
        if entry["limits"].get("on_reboot") == "crontab":
            from . import reboot

            reboot.keep(layout, job_id)
        return True
    present = jobs.read_dict(layout.queued(job_id)) or {}
    if (present.get("attempt") or 1) < attempt:
        files.write_json(layout.queued(job_id), entry)
        jobs.journal(layout, job_id, "queued", attempt=attempt, not_before=not_before)
    return True


class Batch:
    """Entries of new jobs that are going to be queued together, in this order: written aside first, so that they can
    be synced with all else that is new. To be used as a context manager, which leaves nothing aside.

    They do not lie in the queue's folder meanwhile: a dispatcher looks at the queue whenever something changes there.
    """

    def __init__(self, layout, requests):
        self._layout = layout
        self._requests = requests
        self._aside = os.path.join(layout.home, b".tmp-" + os.urandom(4).hex().encode() + b"-")
        self.paths = []

    def __enter__(self):
        try:
            files.make_dir(self._layout.queue)
            for request, since in zip(self._requests, in_turn_all(self._layout, len(self._requests))):
                entry = entry_for(request, 1, clock.stamp(), since=since)
                entry["failed_before"] = trials.failed_before(self._layout, entry)
                self.paths.append(self._of(request["id"]))
                files.write_new(self.paths[-1], files.json_bytes(entry))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for path in self.paths:
            try:
                os.unlink(path)
            except FileNotFoundError:
                pass

    def _of(self, job_id):
        return self._aside + files.to_bytes(job_id)

    def publish(self, requests):
        """Queue these jobs, whose entries are on the disk; those that wait, run or have ended are left as they are."""
        for request in requests:
            self._publish(request["id"])
        if any((jobs.run_of(request).get("limits") or {}).get("on_reboot") == "crontab" for request in requests):
            from . import reboot

            reboot.keep(self._layout, requests[0]["id"])

    def _publish(self, job_id):
        layout = self._layout
        if jobs.is_final(layout, job_id) or jobs.stale(layout, job_id, {"attempt": 1}):
            return
        try:
            os.link(self._of(job_id), layout.queued(job_id))
        except FileExistsError:
            return
        jobs.journal(layout, job_id, "queued", attempt=1, not_before=None)


def in_turn(layout):
    """The time since which a job waits that is queued now: later than the one's before, even if the clock was set back.

    One that was wrong by more than a day is not followed.
    """
    return in_turn_all(layout, 1)[0]


def in_turn_all(layout, count):
    """As `in_turn` for so many jobs that are queued together, one after the other."""
    if not count:
        return []
    path = os.path.join(layout.home, b"queue.last")
    now = time.time()
    first = round(now * 1e6)  # whole microseconds: sums of small fractions would make two of them one
    last = files.read_json(path)
    if isinstance(last, float) and now - 1e-6 <= last < now + 86400:
        first = max(first, round(last * 1e6) + 1)
    times = [(first + place) / 1e6 for place in range(count)]
    try:
        files.write_json(path, times[-1], sync=False)
    except OSError:
        pass  # a full disk: the order is that of the clock
    return [clock.stamp(moment) for moment in times]


def rewrite(layout, job_id, **changes):
    """Change fields of a waiting job's entry. The caller holds the job's lock. False if it does not wait."""
    entry = jobs.queue_entry(layout, job_id)
    if entry is None or jobs.is_final(layout, job_id):
        return False
    files.write_json(layout.queued(job_id), dict(entry, **changes))
    return True


def remove(layout, job_id):
    """Take a job out of the queue, quietly if it is not there."""
    try:
        os.unlink(layout.queued(job_id))
    except FileNotFoundError:
        pass


def names(layout):
    """The ids in the queue as they lie there (left-overs included)."""
    from .layout import JOB_ID

    try:
        found = os.listdir(layout.queue)
    except OSError:
        return []
    return [name for name in (files.to_text(raw) for raw in found) if JOB_ID.match(name)]


def wake(layout):
    """Make a sleeping dispatcher look again (it watches the queue's folder)."""
    files.make_dir(layout.queue)
    path = os.path.join(layout.queue, WAKE)
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600))
        os.unlink(path)
    except OSError:
        pass


def waiting(layout):
    """True if there is anything in the queue, left-overs included. As cheap for a long queue as for a short one."""
    from .layout import JOB_ID

    try:
        with os.scandir(layout.queue) as found:
            return any(JOB_ID.match(files.to_text(entry.name)) for entry in found)
    except OSError:
        return False


LONG = 200  # from so many entries on a queue is read in short cuts
SURE_S = 5.0  # and looked at entry by entry so often


class Cache:
    """Reads the queue again and again at the price of one `stat` per entry that has not changed.

    Of a long queue an entry counts as unchanged while its file is the same inode, and is looked at closely every
    `SURE_S` seconds: a change is a new file under the name, but the number of a removed file may come again.
    """

    def __init__(self, layout):
        self._layout = layout
        self._known = {}
        self._closely = 0.0

    def entries(self):
        """All entries as they are now, left-overs included, in no order."""
        from .layout import JOB_ID

        now = time.monotonic()
        short = len(self._known) >= LONG and now - self._closely < SURE_S
        if not short:
            self._closely = now
        known = {}
        try:
            with os.scandir(self._layout.queue) as listed:
                found = [(files.to_text(entry.name), entry.inode()) for entry in listed]
        except OSError:
            found = []
        for job_id, inode in found:
            old = self._known.get(job_id)
            if old is None and not JOB_ID.match(job_id):
                continue
            if old is None or not short or old[0][0] != inode:
                old = self._read(job_id, old)
            if old is not None:
                known[job_id] = old
        self._known = known
        return [entry for _, entry in known.values()]

    def read(self, job_id):
        """One entry as it is now, whatever was known of it; None if there is none."""
        found = self._read(job_id, self._known.get(job_id))
        if found is None:
            self._known.pop(job_id, None)
            return None
        self._known[job_id] = found
        return found[1]

    def _read(self, job_id, old):
        path = self._layout.queued(job_id)
        try:
            seen = os.stat(path)
        except OSError:
            return None
        mark = (seen.st_ino, seen.st_mtime_ns, seen.st_size)
        if old is not None and old[0] == mark:
            return old
        entry = jobs.read_dict(path)
        return None if entry is None else (mark, dict(entry, id=job_id, since_s=_seconds(entry.get("since"))))


def _seconds(since):
    """The time of a stamp, read once and for all; None for what is none."""
    try:
        return clock.seconds(since)
    except (ValueError, TypeError, AttributeError):
        return None
