"""Records whose room is taken beforehand, so that a full disk cannot lose them."""

import json
import os

SIZE = 16384


def records(layout, job_id, attempt):
    """The records of a job that a full disk must not lose."""
    job = layout.job(job_id)
    return (
        os.path.join(layout.attempt(job_id, attempt), b"exit.json"),
        os.path.join(job, b"final.json"),
        os.path.join(job, b"cancel.json"),
    )


def reserve(path, sync=True):
    """Take the room for the record at `path`: a file of zeros beside it. True if it could be had, or was taken before.

    Without `sync` it is sure only after a `secure`: some file systems find out late that they are full.
    """
    try:
        if not sync and os.lstat(path + b".room").st_size == SIZE:
            return True
    except OSError:
        pass
    try:
        handle = os.open(path + b".room", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        os.write(handle, b"\0" * SIZE)
        if sync:
            os.fsync(handle)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def secure(path):
    """Make sure of room that was reserved without `sync`. True if it could be had."""
    try:
        handle = os.open(path + b".room", os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        os.fsync(handle)
        return True
    except OSError:
        return False
    finally:
        os.close(handle)


def publish(path, value, once=False, shared=False, sync=True):
    """Publish a JSON record at `path`, in the reserved room where there is some.

    `shared`: others may do the same at this moment, so only one gets the room. With `once` an existing record stays and
    False is returned. A full disk raises OSError only if no room was reserved. Without `sync` the record outlasts a
    crash of the host only after `files.secure`.
    """
    data = json.dumps(value, separators=(",", ":"), sort_keys=True).encode("ascii")
    aside, own = path + b".room", path + b"." + str(os.getpid()).encode() + os.urandom(3).hex().encode() + b".tmp"
    try:
        if shared:
            os.rename(aside, own)
            aside = own
        handle = os.open(aside, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        aside = own
        handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.ftruncate(handle, len(data))
            if sync:
                os.fsync(handle)
        finally:
            os.close(handle)
        return _name(aside, path, once)
    except BaseException:
        drop(path)
        if not aside.endswith(b".room"):
            _unlink(aside)
        raise


def _name(aside, path, once):
    if not once:
        os.rename(aside, path)
        return True
    try:
        os.link(aside, path)
        return True
    except FileExistsError:
        return False
    except OSError:
        # Links may need an inode of their own, or be unknown there. Whoever publishes a verdict holds the job's lock.
        if os.path.lexists(path):
            return False
        os.rename(aside, path)
        return True
    finally:
        _unlink(aside)


def drop(path):
    """Give the reserved room back."""
    _unlink(path + b".room")


def _unlink(path):
    try:
        os.unlink(path)
    except OSError:
        pass
