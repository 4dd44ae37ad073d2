"""Hand out one big file in ranges, over as many channels as the client opens; one of them may tell its hash.

The file is named as `collect` listed it, with what it looked like then: one that looks otherwise has changed.
"""

import hashlib
import os
import stat

from . import inside, jobs
from .files import AgentError, to_bytes
from .rpc import ClientGone
from .working import Working

FRAME = 1024 * 1024


def run(session, request):
    """Operation `ranges`: `{"inner", "mark"}` names a file, then come `{"from", "to"}` of it as often as the client
    likes, or `{"sum": true}`; at last `{"done": true}`."""
    layout = session.layout
    job_id = request.get("id")
    if not isinstance(job_id, str) or jobs.request(layout, job_id) is None:
        raise AgentError("no_such_job", "{} is not on this host".format(job_id), "See `jobrunner ls --all`.")
    file, sent = _File(session, layout.job(job_id), {}), 0
    try:
        while True:
            message = session.read_json()
            if message is None:
                raise ClientGone("in the middle of a download")
            if message.get("done"):
                return {"sent": sent}
            if "inner" in message:
                file.close()
                file = _File(session, layout.job(job_id), message)
            elif message.get("sum"):
                session.send_json({"sha256": file.digest()})
            else:
                sent += file.send(message.get("from"), message.get("to"))
    finally:
        file.close()


def mark_of(seen):
    """What tells that a file has changed or was replaced."""
    return [seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns]


class _File:
    def __init__(self, session, folder, named):
        self._session = session
        self._mark = named.get("mark")
        self._handle = None
        try:
            if named:
                self._handle = inside.open_at(folder, to_bytes(named.get("inner") or ""))
        except OSError:
            pass  # it has changed, as one sees
        if self._handle is not None and not stat.S_ISREG(os.fstat(self._handle).st_mode):
            self.close()
            raise AgentError("no_such_file", "it is no regular file any more")

    def close(self):
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None

    def _same(self):
        return self._handle is not None and mark_of(os.fstat(self._handle)) == self._mark

    def digest(self):
        """SHA-256 of the whole file, or None if it is another one by now."""
        if not self._same():
            return None
        seen, working, at = hashlib.sha256(), Working(self._session), 0
        while True:
            block = os.pread(self._handle, FRAME, at)
            if not block:
                break
            seen.update(block)
            at += len(block)
            working()
        return seen.hexdigest() if self._same() else None

    def send(self, begin, end):
        """The bytes of a range, then `{"range": true}`, or `{"range": false}` if the file is another one by now."""
        if not isinstance(begin, int) or not isinstance(end, int) or not 0 <= begin < end:
            raise AgentError("bad_request", "no range of a file: {!r} to {!r}".format(begin, end))
        good = self._same() and end <= self._mark[1]
        at = begin
        while good and at < end:
            count = min(FRAME, end - at)
            good = self._session.send_range(self._handle, at, count)
            at += count
        self._session.send_end()
        self._session.send_json({"range": bool(good and self._same())})
        return at - begin
