"""Take in one big content in ranges, over as many channels as the client opens; what has come is kept over a cut.

It gathers in `.tmp-part-<sha256>` beside the contents and gets its name when the hash of the whole is right. One
channel, the keeper, hashes what the others bring as far as it goes without a gap, and gives the name. It holds a lock,
so that two submits never gather the same content at once; only its own client's channels write.
"""

import fcntl
import hashlib
import os
import time

from . import blobs
from .files import AgentError, make_dir
from .parted import Parted, read_at
from .rpc import ClientGone, parse
from .working import Working

BLOCK = 1024 * 1024
LOOK_S = 0.01
LOCK_S = 5.0
IDLE_S = 600.0  # a keeper for whom nothing has come for so long gives up: what is there is kept


def run(session, request):
    """Operation `parts`: `{"keep": true}` makes this channel the keeper; else `{"from"}`, bytes, … and `{"done"}`."""
    digest, size = request.get("sha256"), request.get("size")
    good = isinstance(digest, str) and len(digest) == 64 and not set(digest) - set("0123456789abcdef")
    if not good or not isinstance(size, int) or size <= 0:
        raise AgentError("bad_request", "no content: {!r}".format(digest))
    path = _path(session.layout, digest)
    if request.get("keep"):
        return _keep(session, path, digest, size)
    return _take(session, path, size)


def _path(layout, digest):
    return os.path.join(layout.blobs, digest[:2].encode("ascii"), b".tmp-part-" + digest.encode("ascii"))


def _keep(session, path, digest, size):
    make_dir(os.path.dirname(path))
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(session, handle):
            return {"kept": False}
        seen = os.fstat(handle)
        if (seen.st_dev, seen.st_ino) != _identity(path):
            return {"kept": False}  # whoever had the lock has just given it its name
        os.utime(path)  # cleaning leaves it alone for another day
        part = Parted(handle, size)
        session.send_json({"lack": [list(gap) for gap in part.missing()]})
        if _follow(session, part) != digest:
            os.unlink(path)
            raise AgentError(
                "changed", "a file changed while it was being sent", "Submit again: the folder is read anew."
            )
        part.finish()
        os.rename(path, blobs.path_of(session.layout, digest))
        return {"kept": True}
    finally:
        os.close(handle)


def _locked(session, handle):
    """True once the lock is ours. The keeper of a link that was just cut may take a moment to notice."""
    ends = time.monotonic() + LOCK_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError:
            if time.monotonic() > ends or session.gone():
                return False
            time.sleep(LOOK_S)


def _identity(path):
    try:
        seen = os.lstat(path)
    except OSError:
        return None
    return seen.st_dev, seen.st_ino


def _follow(session, part):
    """The hash of the whole, once all of it is there."""
    seen, at, working, moved = hashlib.sha256(), 0, Working(session), time.monotonic()
    while at < part.size:
        part.refresh()
        reached = part.reached
        if reached == at:
            if session.gone():
                raise ClientGone("in the middle of an upload")
            if time.monotonic() - moved > IDLE_S:
                raise AgentError(
                    "aborted", "nothing of the upload came any more", "Submit again: what arrived is kept."
                )
            time.sleep(LOOK_S)
            continue
        while at < reached:
            block = read_at(part.handle, min(BLOCK, reached - at), at)
            if not block:
                raise AgentError("changed", "what was being sent was taken away meanwhile", "Submit again.")
            seen.update(block)
            at += len(block)
        moved = time.monotonic()
        working()
    return seen.hexdigest()


def _take(session, path, size):
    """Write the ranges that the client sends on this channel."""
    handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        part, at = Parted(handle, size), 0
        while True:
            frame = session.read_frame()
            if frame is None:
                raise ClientGone("in the middle of an upload")
            kind, payload = frame
            if kind == b"B":
                # A channel of a link that was cut may have brought some of it after the gaps were told.
                rest = payload[max(0, part.reread(at) - at) :]
                if rest and not part.put(at + len(payload) - len(rest), rest):
                    raise AgentError("bad_request", "bytes that do not follow those that are there")
                at += len(payload)
            elif kind == b"J":
                message = parse(payload)
                if message.get("done"):
                    return {}
                at = message.get("from")
                if not isinstance(at, int) or at < 0:
                    raise AgentError("bad_request", "no place in a content: {!r}".format(at))
    finally:
        os.close(handle)
