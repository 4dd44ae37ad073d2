"""Write the code of a job out into an attempt's `work/`, and take along what `carry` names."""

import os
import stat

from . import child, clock
from .files import AgentError, make_dir, read_json, to_bytes, to_text

BLOCK = 1 << 20
READY = b"ready-"  # and the boot's id: a work folder that was made ahead


def materialise(layout, job_id, attempt, carry_from=None):
    """Make `<attempt>/work` from the job's manifest and the blobs; nothing to do if it is there. Returns its path.

    `carry_from` is the attempt whose `carry` paths are copied over the tree, or the last before it that came so far as
    to have one. Raises AgentError `blob_damaged` (the damaged content is removed, so that the next submit sends it
    again), `no_space`, or OSError. Works in a short-lived process, so that the caller stays small.
    """
    folder = layout.attempt(job_id, attempt)
    target = os.path.join(folder, b"work")
    if os.path.isdir(target) or _take_ready(folder, target):
        return target
    make_dir(folder)
    if os.path.exists(os.path.join(layout.job(job_id), b"manifest.json")) or carry_from:
        child.run(_build, layout, job_id, folder, target, carry_from)
    else:
        os.mkdir(target, 0o700)
    return target


def make_ready(layout, job_id, attempt):
    """Make ahead of an attempt's start what `materialise` then takes: its work folder under another name, which tells
    the boot. After a crash of the host some of its files may be empty, as they were not synced: it is not taken then.
    Not for attempts that take something along from one before.
    """
    folder = layout.attempt(job_id, attempt)
    ready = _ready(folder)
    if ready is not None and not os.path.isdir(ready):
        make_dir(folder)
        _build(layout, job_id, folder, ready, None)


def drop_ready(folder):
    """Remove what was made ahead in an attempt's folder."""
    for name in os.listdir(folder):
        if name.startswith(READY):
            _remove(os.path.join(folder, name))


def _ready(folder):
    boot = clock.boot_id()
    return os.path.join(folder, READY + to_bytes(boot)) if boot else None


def _take_ready(folder, target):
    ready = _ready(folder)
    try:
        os.rename(ready, target)
        return True
    except (OSError, TypeError):  # there is none, or no boot to tell it by
        return False


def _build(layout, job_id, folder, target, carry_from):
    import errno

    from . import blobs, manifest

    aside = os.path.join(folder, b".work-" + os.urandom(4).hex().encode())
    _sweep(folder)
    os.mkdir(aside, 0o700)
    try:
        entries = manifest.load(os.path.join(layout.job(job_id), b"manifest.json")) or []
        modes = write_tree(layout, entries, aside)
        if carry_from:
            _carry(layout, job_id, carry_from, aside)
        # Deepest first and last of all: a folder that may not be written in is closed after what is in it.
        for path, mode in sorted(modes, reverse=True):
            os.chmod(path, mode)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            _remove(aside)
            raise blobs.no_space(folder, quota=error.errno == errno.EDQUOT) from None
        raise
    try:
        os.rename(aside, target)
    except OSError:
        if not os.path.isdir(target):
            raise
        _remove(aside)  # somebody else has made the same meanwhile
    return True


def _sweep(folder):
    """Remove what a build that was cut, a start that a crash undid, or an earlier boot left behind."""
    for name in os.listdir(folder):
        if name.startswith((b".work-", READY)):
            _remove(os.path.join(folder, name))


def _remove(path):
    from . import remove

    remove.tree(path)


def write_tree(layout, entries, top):
    """Write a manifest's files, folders and links into the empty folder `top`; `[(folder, mode)]` still to be set."""
    from . import blobs

    made = {b""}
    folders = []
    source = blobs.Source(layout)
    for entry in entries:
        kind, path, mode = entry[0], to_bytes(entry[1]), entry[2]
        _parents(top, path, made)
        full = os.path.join(top, path)
        if kind == "d":
            if path not in made:
                os.mkdir(full, 0o700)
                made.add(path)
            folders.append((full, mode & 0o777))
        elif kind == "l":
            os.symlink(to_bytes(entry[4]), full)
        else:
            _copy_blob(source, entry[4], full, mode & 0o777)
    return folders


def _parents(top, path, made):
    above = path.rpartition(b"/")[0]
    missing = []
    while above not in made:
        missing.append(above)
        above = above.rpartition(b"/")[0]
    for folder in reversed(missing):
        os.mkdir(os.path.join(top, folder), 0o700)
        made.add(folder)


def _copy_blob(source, digest, target, mode):
    import hashlib

    path = source.place(digest)[0]
    seen = hashlib.sha256()
    try:
        reader, left = source.open(digest)
    except OSError as error:
        raise _damaged(path, target, error.strerror) from None
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while left is None or left > 0:
                block = os.read(reader, BLOCK if left is None else min(left, BLOCK))
                if not block:
                    break
                left = None if left is None else left - len(block)
                seen.update(block)
                view = memoryview(block)
                while view:
                    view = view[os.write(writer, view) :]
            if seen.hexdigest() != digest:
                source.forget(digest)
                raise _damaged(path, target, "its content is not what its name says (now removed)")
            os.fchmod(writer, mode)
        finally:
            os.close(writer)
    finally:
        os.close(reader)


def _damaged(source, target, why):
    return AgentError(
        "blob_damaged",
        "{} cannot be written from the stored copy {}: {}".format(
            to_text(target), to_text(os.path.basename(source)[:12]), why
        ),
        "Submit again: the file is sent anew. If it happens again, have the host's disk checked.",
    )


def _carry(layout, job_id, number, top):
    """Copy what the spec's `carry` names from an earlier attempt's folder, over what the tree has there."""
    request = read_json(os.path.join(layout.job(job_id), b"request.json"), {})
    patterns = (request.get("run") or {}).get("carry") or []
    tops = [os.path.join(layout.attempt(job_id, earlier), b"work") for earlier in range(number, 0, -1)]
    old = next((top for top in tops if os.path.isdir(top)), None)
    if not patterns or old is None:
        return
    from . import inside

    for path, seen in sorted(inside.find(old, patterns).items()):
        copy_entry(old, path, seen, top)


def copy_entry(source_top, path, seen, target_top):
    """Copy a file, link, or folder with all in it, replacing what is at the same place; odd files are passed over."""
    parts = path.split(b"/")
    for depth in range(1, len(parts)):
        folder = os.path.join(target_top, b"/".join(parts[:depth]))
        if os.path.islink(folder) or (os.path.lexists(folder) and not os.path.isdir(folder)):
            os.unlink(folder)
        if not os.path.isdir(folder):
            os.mkdir(folder, 0o755)
    source, target = os.path.join(source_top, path), os.path.join(target_top, path)
    if stat.S_ISDIR(seen.st_mode):
        _copy_folder(source_top, path, seen, target_top)
        return
    if os.path.lexists(target):
        _remove(target)
    if stat.S_ISLNK(seen.st_mode):
        os.symlink(os.readlink(source), target)
    elif stat.S_ISREG(seen.st_mode):
        _copy_file(source_top, path, seen, target)


def _copy_folder(source_top, path, seen, target_top):
    target = os.path.join(target_top, path)
    if os.path.lexists(target) and (os.path.islink(target) or not os.path.isdir(target)):
        os.unlink(target)
    if not os.path.isdir(target):
        os.mkdir(target, 0o700)
    os.chmod(target, 0o700)
    for entry in list(os.scandir(os.path.join(source_top, path))):
        copy_entry(source_top, path + b"/" + entry.name, entry.stat(follow_symlinks=False), target_top)
    os.chmod(target, stat.S_IMODE(seen.st_mode) & 0o777)


def _copy_file(source_top, path, seen, target):
    from . import inside

    reader = inside.open_at(source_top, path)
    try:
        writer = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            while True:
                block = os.read(reader, BLOCK)
                if not block:
                    break
                view = memoryview(block)
                while view:
                    view = view[os.write(writer, view) :]
            os.fchmod(writer, stat.S_IMODE(seen.st_mode) & 0o777)
            # Caches go by age: a copy is as old as what it is a copy of.
            os.utime(writer, ns=(seen.st_atime_ns, seen.st_mtime_ns))
        finally:
            os.close(writer)
    finally:
        os.close(reader)
