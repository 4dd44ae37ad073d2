"""Facts about disks and folders: what can be written, how quickly, how much of it, and who else can."""

import errno
import os
import stat
import time

from . import share
from .files import to_bytes, to_text
from .probe import NETWORK, disk, filesystem_of, which
from .probe_deep import asked

SAMPLE = 1 << 20


def storage(context):
    """What becomes of one megabyte: written, synced, renamed, read again in the root folder. Seconds, or the error."""
    path = os.path.join(context.layout.home, b".probe-" + os.urandom(6).hex().encode())
    data = os.urandom(4096) * (SAMPLE // 4096)
    began = time.monotonic()
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(handle, view) :]
            os.fsync(handle)
            os.rename(path, path + b"x")
            same = os.pread(handle, 4096, 0) == data[:4096]
        finally:
            os.close(handle)
    except OSError as error:
        return {"ok": False, "errno": errno.errorcode.get(error.errno), "text": os.strerror(error.errno or 0)}
    finally:
        for name in (path, path + b"x"):
            try:
                os.unlink(name)
            except OSError:
                pass
    return {"ok": same, "errno": None, "text": "" if same else "read back other bytes than were written",
            "seconds": round(time.monotonic() - began, 3)}  # fmt: skip


def root_access(context):
    """Who may change the root folder: its owner, its mode, and folders above it that others may change."""
    seen = os.stat(context.layout.root)
    loose = []
    folder = os.path.dirname(os.path.realpath(context.layout.root))
    while True:
        above = os.stat(folder)
        trusted = above.st_uid in (0, os.geteuid())
        if not trusted or (above.st_mode & 0o022 and not above.st_mode & stat.S_ISVTX):
            loose.append(to_text(folder))
        if folder == b"/":
            break
        folder = os.path.dirname(folder)
    return {"path": to_text(context.layout.root), "uid": seen.st_uid, "mode": stat.S_IMODE(seen.st_mode),
            "own_uid": os.geteuid(), "loose": loose}  # fmt: skip


def quota(context):
    """What the tool `quota` says, row by row (blocks of 1 KiB and files); `tool` is null where there is none."""
    tool = which("quota")
    if tool is None:
        return {"tool": None, "rows": []}
    answer = asked([tool, "-w", "-p"], context)
    if answer.hung or answer.failure:
        return {"tool": tool, "rows": [], "error": answer.failure or "no answer in time"}
    return {"tool": tool, "rows": quota_rows(answer.out)}


def quota_rows(text):
    """Rows of `quota -w -p`: `{filesystem, blocks: [used, soft, hard], files: […], over}`. Pure."""
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) < 7 or not words[1].rstrip("*").isdigit():
            continue
        over = words[1].endswith("*")
        numbers = [int(word.rstrip("*")) if word.rstrip("*").isdigit() else 0 for word in words[1:]]
        # With -p there is always a grace column: blocks quota limit grace files quota limit grace.
        files = numbers[4:7] if len(numbers) >= 7 else [0, 0, 0]
        over = over or (len(words) > 5 and words[5].endswith("*"))
        found.append({"filesystem": words[0], "blocks": numbers[0:3], "files": files, "over": over})
    return found


def home(context):
    """The home folder of the session: is it there, can it be written, where does it lie."""
    path = to_bytes(os.path.expanduser("~"))
    kind = filesystem_of(path)
    there = os.path.isdir(path)
    return {"path": to_text(path), "there": there, "writable": there and os.access(path, os.W_OK | os.X_OK),
            "filesystem": kind, "network": kind in NETWORK,
            "free_bytes": disk(path)["free_bytes"] if there else None}  # fmt: skip


def tmp(context):
    """/tmp, where users of this host see each other's tickets: its mode, its room, and our folder there."""
    seen = os.stat("/tmp")
    name = os.path.join(share.BASE, share.folder_name(os.getuid()))
    try:
        own = os.lstat(name)
        ours = stat.S_ISDIR(own.st_mode) and own.st_uid == os.getuid() and not own.st_mode & 0o022
        taken_by = None if ours else own.st_uid
    except OSError:
        ours, taken_by = None, None
    return {"mode": stat.S_IMODE(seen.st_mode), "sticky": bool(seen.st_mode & stat.S_ISVTX),
            "writable": os.access("/tmp", os.W_OK | os.X_OK), "share": to_text(name), "share_ours": ours,
            "share_uid": taken_by, "free_bytes": disk(b"/tmp")["free_bytes"]}  # fmt: skip


def shm(context):
    """/dev/shm, through which data loaders hand over batches."""
    if not os.path.isdir("/dev/shm"):
        return {"there": False}
    seen = disk(b"/dev/shm")
    return {"there": True, "total_bytes": seen["total_bytes"], "free_bytes": seen["free_bytes"],
            "writable": os.access("/dev/shm", os.W_OK | os.X_OK)}  # fmt: skip
