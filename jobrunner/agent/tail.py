"""Show a job's log: from an offset, from the last lines, from a time; and go on with it until the job is final.

The bytes are the file's own; what a terminal would make of them is the client's business.
"""

import os
import stat
import time

from . import inside, jobs, logview
from .files import AgentError

TICK_S = 5.0
POLL_S = 0.5
PAUSE_S = 0.005  # between two looks at a log that grows all the time
PIECE = 1024 * 1024


def run(session, request):
    """Operation `tail`."""
    job_id = request.get("id")
    if not isinstance(job_id, str) or jobs.request(session.layout, job_id) is None:
        raise AgentError("no_such_job", "{} is not on this host".format(job_id), "See `jobrunner ls --all`.")
    viewer = Viewer(session, job_id, request)
    try:
        if request.get("follow"):
            viewer.follow()
        else:
            viewer.once()
        return viewer.outcome()
    finally:
        viewer.close()


def moment_of(since):
    """Seconds since 1970 of a request's `since`: a stamp, such a number, or `{"ago_s": N}` by this host's clock."""
    from . import clock

    try:
        if isinstance(since, dict):
            return time.time() - float(since["ago_s"])
        return clock.seconds(since) if isinstance(since, str) else float(since)
    except (ValueError, TypeError, KeyError, OverflowError):
        raise AgentError(
            "bad_request", "not a time: {!r}".format(since), "Give it as 2026-12-01T09:30:00Z, 10m or 2h."
        ) from None


class Viewer:
    """One viewing of one job: which attempt, how far, through which filter."""

    def __init__(self, session, job_id, request):
        self.session = session
        self.layout = session.layout
        self.job_id = job_id
        self.request = request
        pattern = request.get("grep")
        self.pattern = logview.compile_pattern(pattern) if pattern is not None else None
        self.attempt = 0
        self.offset = 0
        self._filter = None
        self._handle = None
        self._mark = None
        self._ticked = time.monotonic()

    # one attempt's file

    def _attempts(self):
        """The attempts that have a log, ascending."""
        found = []
        try:
            names = os.listdir(self.layout.job(self.job_id))
        except OSError:
            return found
        for name in names:
            if name.isdigit() and os.path.lexists(os.path.join(self.layout.job(self.job_id), name, b"log")):
                found.append(int(name))
        return sorted(found)

    def _open(self, number):
        """Open an attempt's log; False if there is none, or something there is no plain file of the job's own."""
        self._shut()
        try:
            handle = inside.open_at(self.layout.job(self.job_id), "{}/log".format(number))
        except OSError:
            return False
        seen = os.fstat(handle)
        if not stat.S_ISREG(seen.st_mode):
            os.close(handle)
            return False
        self._handle, self._mark = handle, (seen.st_dev, seen.st_ino)
        self._filter = logview.Filter(self.pattern) if self.pattern is not None else None
        return True

    def _shut(self):
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def close(self):
        """Give the file back."""
        self._shut()

    def _size(self):
        return os.fstat(self._handle).st_size if self._handle is not None else 0

    def _begin(self, number):
        """Open the first attempt to be shown and go where the request wants to begin."""
        self.attempt = number
        if not self._open(number):
            return False
        size = self._size()
        wanted = self.request
        if wanted.get("offset") is not None:
            # Another file than the one that was read before has no such place: from its beginning.
            self.offset = wanted["offset"] if isinstance(wanted["offset"], int) and 0 <= wanted["offset"] <= size else 0
        else:
            if isinstance(wanted.get("lines"), int):
                self.offset = logview.start_of_last(self._handle, size, wanted["lines"], self.pattern, self._working)
            if wanted.get("since"):
                self.offset = max(self.offset, self._since(size, wanted["since"]))
        self._announce()
        return True

    def _since(self, size, since):
        moment = moment_of(since)
        if os.fstat(self._handle).st_mtime < moment:
            return size
        return logview.start_since(self._handle, size, moment, self._working)

    def _working(self):
        """Looking for the place where to begin may take a while in a big log: the client hears that we are alive."""
        now = time.monotonic()
        if now - self._ticked >= TICK_S:
            self._ticked = now
            self.session.send_json({"tick": True})

    def _announce(self, why=None):
        message = {"attempt": self.attempt, "offset": self.offset, "size": self._size()}
        if why:
            message["reset"] = why
        self.session.send_json(message)

    def _pump(self, limit=None):
        """Send what the file has from where we are, up to `limit`; True if there was something."""
        moved = False
        while self._handle is not None:
            count = PIECE if limit is None else min(PIECE, limit - self.offset)
            data = os.pread(self._handle, count, self.offset) if count > 0 else b""
            if not data:
                break
            moved = True
            self.offset += len(data)
            if self._filter is None:
                self.session.send_bytes(data)
                continue
            shown = self._filter.feed(data)
            self.session.send_bytes(shown)
            # Told after every piece, so that a viewer who comes back sees no line twice.
            self._tick(0.0 if shown else TICK_S)
        return moved

    def _flush(self):
        """The last line of an attempt that has ended may lack its newline."""
        if self._filter is not None:
            self.session.send_bytes(self._filter.flush())

    def _tick(self, every_s=TICK_S):
        """Tell the client that we are alive and how far we have read; with a filter it cannot count itself."""
        now = time.monotonic()
        if now - self._ticked < every_s:
            return False
        self._ticked = now
        at = self.offset - (self._filter.held if self._filter is not None else 0)
        self.session.send_json({"tick": True, "attempt": self.attempt, "offset": at})
        return True

    # the two ways to view

    def once(self):
        """Show what there is now of one attempt."""
        numbers = self._attempts()
        wanted = self.request.get("attempt")
        if wanted is not None and wanted not in numbers:
            raise AgentError(
                "no_such_attempt",
                "{} has no log of attempt {} (there are: {})".format(
                    self.job_id, wanted, ", ".join(str(number) for number in numbers) or "none"
                ),
            )
        if not numbers or not self._begin(wanted or numbers[-1]):
            self._announce()
            return
        self._pump(self._size())
        self._flush()

    def follow(self):
        """Show what comes, through retries, until the job is final and all of it has been shown."""
        from .watch import Watch

        watch = Watch()
        started = self._start()
        if not started:
            self._announce()
        try:
            while True:
                watch.folders(self._folders())
                final = jobs.is_final(self.layout, self.job_id)
                started = started or self._start()
                moved = started and self._advance()
                if final and not moved and not self._next():
                    self._flush()
                    return
                if self._heard(watch.sleep(self.session.stdin, PAUSE_S if moved else POLL_S)):
                    return
                if moved:
                    time.sleep(PAUSE_S)
                if self._tick():
                    self._settle()
        finally:
            watch.close()

    def _folders(self):
        """What to watch: the job's folder, and that of the attempt."""
        folder = self.layout.job(self.job_id)
        return [folder] + ([os.path.join(folder, str(self.attempt).encode())] if self.attempt else [])

    def _start(self):
        numbers = self._attempts()
        wanted = self.request.get("attempt")
        if wanted:
            return wanted in numbers and self._begin(wanted)
        # 0 is what a viewer was told who came before the first attempt: coming back, that is where he goes on.
        return bool(numbers) and self._begin(numbers[0] if wanted == 0 else numbers[-1])

    def _next(self):
        later = [number for number in self._attempts() if number > self.attempt]
        return later[0] if later else None

    def _advance(self):
        """Send what is new; go on to the next attempt, or to the file that took the place of the one we had."""
        following = self._next()  # looked up first: what an attempt writes, it writes before the next one begins
        replaced = following is None and self._replaced()
        if self._handle is not None and self._size() < self.offset:
            self.offset = 0
            self._filter = logview.Filter(self.pattern) if self.pattern is not None else None
            self._announce("truncated")
        moved = self._pump()
        if following is not None:
            self._flush()
            self.attempt, self.offset = following, 0
            self._open(following)
            self._announce()
            return True
        if replaced and self._open(self.attempt):
            self.offset = 0
            self._announce("replaced")
            return True
        return moved

    def _replaced(self):
        """True if another plain file lies where ours lay. A link there is never followed, a missing one waited for."""
        try:
            seen = os.lstat(os.path.join(self.layout.attempt(self.job_id, self.attempt), b"log"))
        except OSError:
            return False
        return stat.S_ISREG(seen.st_mode) and (seen.st_dev, seen.st_ino) != self._mark

    def _heard(self, readable):
        """True if the client wants no more. Its end of the stream ends us; another request is kept for afterwards."""
        if not readable and not self.session.pending():
            return False
        frame = self.session.read_frame()
        if frame is None:
            from .rpc import ClientGone

            raise ClientGone("the viewer has gone")
        if frame[0] == b"J":
            from .rpc import parse

            if "op" in parse(frame[1]):
                self.session.push_back(frame)
        return True

    def _settle(self):
        """A job whose supervisor was killed becomes final only if somebody looks."""
        from . import settle

        settle.settle(self.layout, self.job_id)

    def outcome(self):
        """The answer: how far we got, and what the job is now."""
        view = jobs.job_view(self.layout, self.job_id) or {}
        state = view.get("state")
        return {"attempt": self.attempt, "offset": self.offset, "state": state, "final": state in jobs.FINAL}
