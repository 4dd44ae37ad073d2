"""Take in one big content in ranges, over as many channels as the client opens; what has come is kept over a cut.

It gathers in `.tmp-part-<sha256>` beside the contents and gets its name when the hash of the whole is right. One
channel, the keeper, hashes what the others bring as far as it goes without a gap, and gives the name. It holds a lock,
so that two submits never gather the same content at once; only its own client's channels write. What a full disk cuts
short goes at once, what was given up otherwise after a day.
"""

import errno
import fcntl
import hashlib
import os
import time

from . import blobs
from .files import AgentError, make_dir
from .parted import Parted, read_at
from .rpc import ClientGone, parse
from .working import Working, nobody_waits

BLOCK = 1024 * 1024
LOOK_S = 0.01
LOCK_S = 5.0
DAY = 86400.0
IDLE_S = 600.0  # a keeper for whom nothing has come for so long gives up: what is there is kept


def run(session, request):
    """Operation `parts`: `{"keep": true}` makes this channel the keeper; else `{"from"}`, bytes, … and `{"done"}`."""
    digest, size = request.get("sha256"), request.get("size")
    good = isinstance(digest, str) and len(digest) == 64 and not set(digest) - set("0123456789abcdef")
    if not good or not isinstance(size, int) or size <= 0:
        raise AgentError("bad_request", "no content: {!r}".format(digest))
    path = blobs.part_of(session.layout, digest)
    if request.get("keep"):
        return _keep(session, path, digest, size)
    return _take(session, path, size)


def _keep(session, path, digest, size):
    make_dir(os.path.dirname(path))
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if not _locked(session, handle) or not _is_at(path, handle):
            return {"kept": False}  # another submit gathers it, or has just given it its name
        os.utime(path)  # cleaning leaves it alone for another day
        part = Parted(handle, size)
        session.send_json({"lack": [list(gap) for gap in part.missing()]})
        sweep(session.layout)  # while the first of it is on its way
        if _follow(session, part) != digest:
            _drop(path, handle)
            raise AgentError(
                "changed", "a file changed while it was being sent", "Submit again: the folder is read anew."
            )
        part.finish()
        if not _is_at(path, handle):
            raise AgentError("changed", "what was being sent was taken away meanwhile", "Submit again.")
        os.rename(path, blobs.path_of(session.layout, digest))
        return {"kept": True}
    except OSError as error:
        _make_room(error, path, handle)
        raise
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


def _is_at(path, handle):
    """True if a name still leads to the file behind a descriptor."""
    try:
        return os.path.samestat(os.lstat(path), os.fstat(handle))
    except OSError:
        return False


def _drop(path, handle):
    """Remove a name that leads to the file behind a descriptor."""
    if _is_at(path, handle):
        os.unlink(path)


def _make_room(error, path, handle):
    """Where the disk is full, what has come so far only keeps others, and the next try, from the room."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        _drop(path, handle)
        error.filename = os.path.dirname(path)  # for the message


def sweep(layout):
    """Remove what uploads left that were given up over a day ago."""
    for path, name in blobs.paths(layout):
        if name.startswith(b".tmp-"):
            forget(path)


def forget(path, working=nobody_waits):
    """Remove what nothing came to for a day, unless an upload has just gone on with it. True if it went."""
    working()
    limit = time.time() - DAY
    try:
        if os.lstat(path).st_mtime >= limit:
            return False
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)  # whoever waits for it sees that the name is gone
        if os.fstat(handle).st_mtime >= limit or not _is_at(path, handle):
            return False
        os.unlink(path)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


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
    except OSError as error:
        _make_room(error, path, handle)
        raise
    finally:
        os.close(handle)
