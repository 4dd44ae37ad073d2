"""File contents by SHA-256, shared by all jobs of the user: an unchanged tree costs no bytes.

Blobs are not synced one by one: a hash is verified whenever a blob is used, so a power cut costs at most a new upload.
"""

import hashlib
import os
import time

from . import packs
from .files import AgentError, make_dir, to_text

FRESH_S = 3600.0  # a blob found by a stage is touched if older, so that cleaning (after a day) never takes it away
PART = b".tmp-part-"
PARTED = 1024 * 1024  # no client sends less in ranges
MARGIN = 64 * 1024 * 1024


def path_of(layout, digest):
    """Where the content with this hash lies, or would."""
    name = digest.encode("ascii")
    return os.path.join(layout.blobs, name[:2], name)


def part_of(layout, digest):
    """Where a big content gathers that comes in ranges (`parts`)."""
    name = digest.encode("ascii")
    return os.path.join(layout.blobs, name[:2], PART + name)


def gathered(layout, digest, size):
    """How many bytes of a content earlier tries have brought in ranges: so much less room is needed for it."""
    if size < PARTED:
        return 0
    try:
        return min(size, os.lstat(part_of(layout, digest)).st_blocks * 512)
    except OSError:
        return 0


def paths(layout):
    """`(path, name)` of every content that is a file of its own, and of what lies beside them."""
    try:
        folders = os.listdir(layout.blobs)
    except OSError:
        return
    for folder in folders:
        full = os.path.join(layout.blobs, folder)
        try:
            names = os.listdir(full)
        except OSError:
            continue
        for name in names:
            yield os.path.join(full, name), name


def missing(layout, wanted):
    """Which of `[(sha256, size), …]` are not here: their indices. A content of another size counts as missing."""
    absent = []
    now = time.time()
    for index, (digest, size) in enumerate(wanted):
        path = path_of(layout, digest)
        try:
            seen = os.lstat(path)
        except OSError:
            absent.append(index)
            continue
        if seen.st_size != size:
            absent.append(index)
        elif now - seen.st_mtime > FRESH_S:
            try:
                os.utime(path)
            except OSError:
                absent.append(index)
    return packs.without(layout, wanted, absent, FRESH_S) if absent else absent


class Source:
    """Contents to read, wherever they lie."""

    def __init__(self, layout):
        self._layout = layout
        self._packed = packs.Index(layout)

    def place(self, digest):
        """`(path, offset, size)`; offset and size are None for a file of its own."""
        return self._packed.find(digest) or (path_of(self._layout, digest), None, None)

    def open(self, digest):
        """`(descriptor at the beginning, bytes to read or None for all)`. OSError where there is no such content."""
        path, at, size = self.place(digest)
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if at is not None:
            os.lseek(handle, at, os.SEEK_SET)
        return handle, size

    def forget(self, digest):
        """The content is damaged: from now on it is missing."""
        path, at, _ = self.place(digest)
        if at is None:
            os.unlink(path)
        else:
            packs.strike(path, at)


def receive_all(layout, session, wanted):
    """Take the contents `[(sha256, size), …]` from the client, in order. What has come stays, whatever then happens."""
    small = sum(size <= packs.MOST_BYTES for _, size in wanted)
    pack = packs.Writer(layout) if small >= packs.LEAST else None
    try:
        for digest, size in wanted:
            if pack is not None and size <= packs.MOST_BYTES:
                pack.add(digest, size, lambda handle, d=digest, n=size: _fill(handle, session, d, n))
            else:
                receive(layout, session, digest, size)
    finally:
        if pack is not None:
            pack.close()


def receive(layout, session, digest, size):
    """Take one content from the client's B frames up to E and publish it; AgentError `changed` if it is another."""
    folder = os.path.join(layout.blobs, digest[:2].encode("ascii"))
    aside = os.path.join(folder, b".tmp-" + os.urandom(8).hex().encode())
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        handle = os.open(aside, flags, 0o600)
    except FileNotFoundError:
        make_dir(folder)
        handle = os.open(aside, flags, 0o600)
    try:
        try:
            _fill(handle, session, digest, size)
        finally:
            os.close(handle)
        os.rename(aside, os.path.join(folder, digest.encode("ascii")))
    except _Stored:
        os.unlink(aside)
        if not os.path.exists(path_of(layout, digest)):
            raise AgentError("aborted", "a content that has come is not there any more", "Submit again.") from None
    except BaseException as error:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = folder  # what is written to, for the message
        try:
            os.unlink(aside)
        except OSError:
            pass
        raise


class _Stored(Exception):
    """The content came over other channels (`parts`)."""


def _fill(handle, session, digest, size):
    seen = hashlib.sha256()
    left = size
    while True:
        frame = session.read_frame()
        if frame is None:
            from .rpc import ClientGone

            raise ClientGone("in the middle of an upload")
        kind, payload = frame
        if kind == b"E":
            break
        if kind == b"J" and left == size:
            from .rpc import parse

            message = parse(payload)
            if message.get("tick"):
                continue
            if message.get("stored"):
                raise _Stored
        if kind != b"B":
            raise AgentError("aborted", "the client broke the upload off", "Submit again: what arrived is kept.")
        left -= len(payload)
        if left < 0:
            break
        seen.update(payload)
        view = memoryview(payload)
        while view:
            view = view[os.write(handle, view) :]
    if left or seen.hexdigest() != digest:
        raise AgentError("changed", "a file changed while it was being sent", "Submit again: the folder is read anew.")


def check_space(path, size, files):
    """AgentError `no_space` unless `size` bytes and `files` names more, and a margin, fit into the file system."""
    seen = os.statvfs(path)
    free = seen.f_bavail * seen.f_frsize
    if free < size + min(MARGIN, size // 10 + 1024 * 1024):
        raise no_space(path, needed=size)
    if seen.f_files and seen.f_favail < files + 16:
        raise AgentError(
            "no_space",
            "{}: {} files are to be written, the file system has room for {} more".format(
                to_text(path), files, seen.f_favail
            ),
            "Remove what is not needed (`jobrunner gc` does it for old jobs).",
        )


def no_space(path, needed=None, quota=False):
    """The error for a full disk: the path, its mount, what is free, what to do."""
    try:
        mount = os.path.realpath(path)
        while mount not in (b"/", "/") and not os.path.ismount(mount):
            mount = os.path.dirname(mount)
        seen = os.statvfs(mount)
        room = "{} bytes are free on {}".format(seen.f_bavail * seen.f_frsize, to_text(mount))
    except OSError:
        room = "free space is unknown"
    return AgentError(
        "no_space",
        "no space for {}: {}{}{}".format(
            to_text(path),
            "the user's quota is used up; " if quota else "",
            room,
            "" if needed is None else ", {} are needed".format(needed),
        ),
        "Free some space there (`jobrunner gc` removes what old jobs left), or set another `root` for this host.",
    )
