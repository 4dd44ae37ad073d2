"""Keep a job's checkpoint as the model of a folder, if it beats the one that is kept there; and go back to an earlier.

    <to>/versions/<time>-<job>/<checkpoint>      one promoted model
    <to>/versions/<time>-<job>/promotion.json    job, checkpoint, metric, direction, value, sha256, at, spec, schedule
    <to>/current -> versions/<time>-<job>        the model that is kept now

A version is copied aside, synced and renamed, and `current` is replaced by rename: whoever reads it sees one whole
model or the other. Who promotes or goes back holds the folder's lock, and compares with what is kept while it does.
"""

import errno
import hashlib
import math
import os
import stat
import time

from . import checkpoints, clock, inside, jobs, leases, remove
from .files import AgentError, make_dir, read_json, to_bytes, to_text, write_json
from .layout import lock_name
from .working import Working

KEPT = 10  # so many versions stay, the current one beside them
TARGETS = 1000  # of so many folders a client is told at once
LOCK_S = 60.0
BLOCK = 1 << 20


def run(session, request):
    """Operation `promote`: the decision, and the version that is current afterwards."""
    layout = session.layout
    job_id = request.get("id")
    if not isinstance(job_id, str) or jobs.request(layout, job_id) is None:
        raise AgentError("no_such_job", "{} is not on this host".format(job_id), "See `jobrunner ls --all`.")
    checkpoints.note(layout, job_id)
    record = _record_of(layout, job_id, request.get("path"))
    new = {name: request.get(name) for name in ("metric", "direction", "value", "schedule", "spec")}
    if not isinstance(new["value"], (int, float)) or not math.isfinite(new["value"]):
        raise AgentError("bad_request", "a model's {} has to be a number".format(new["metric"]))
    new.update(v=1, job=job_id, checkpoint=record["name"], at=clock.stamp())
    folder = folder_of(layout, request.get("to"))
    lock = _lock(folder)
    try:
        kept = current(folder)
        if kept is not None and (kept.get("job"), kept.get("checkpoint")) == (job_id, record["name"]):
            return _told(folder, kept, "promoted", "it is the one that is kept already", None)
        passed = request.get("passed") if isinstance(request.get("passed"), list) else []
        rival = None if kept is not None and kept["version"] in passed else kept
        why, against = beats(new, rival, request.get("beat"))
        if why is None:
            why = "{} {} is not better than {}, which is kept".format(
                new["metric"], _number(new["value"]), _number(against)
            )
            return _told(folder, kept, "kept", why, against)
        _take_in(layout, folder, record, new, Working(session))
        _prune(folder)
        return _told(folder, current(folder), "promoted", why, against)
    finally:
        leases.release([lock])


def beats(new, kept, elsewhere):
    """`(why, against)` of a new model: what it was compared with (None: nothing is kept), and why it wins, or None.

    `elsewhere` is the value of the model that is kept on another host, if that is the newest. Pure.
    """
    word = new["metric"]
    against = None
    if kept is not None:
        if (kept.get("metric"), kept.get("direction")) != (word, new["direction"]):
            return "the model that was kept was judged by another metric ({})".format(kept.get("metric")), None
        against = kept.get("value")
    if isinstance(elsewhere, (int, float)) and (against is None or _better(elsewhere, against, new["direction"])):
        against = elsewhere
    if against is None:
        return "no model was kept so far", None
    if _better(new["value"], against, new["direction"]):
        return "{} {} is better than {}".format(word, _number(new["value"]), _number(against)), against
    return None, against


def _better(one, other, direction):
    return one < other if direction == "min" else one > other


def _number(value):
    return "{:.6g}".format(value)


def run_promoted(session, request):
    """Operation `promoted`: each folder's versions, oldest first, and which one is current since when."""
    found = {}
    for to in list(request.get("to") or [])[:TARGETS]:
        folder = folder_of(session.layout, to)
        kept = []
        for name in versions(folder):
            record = read_json(os.path.join(folder, b"versions", name, b"promotion.json"))
            if isinstance(record, dict) and isinstance(record.get("checkpoint"), str):
                kept.append(dict(record, version=to_text(name), path=_path(folder, name, record)))
        name, since = _current_name(folder), None
        if name is not None:
            since = clock.stamp(os.lstat(os.path.join(folder, b"current")).st_mtime)
        found[to] = {"versions": kept, "current": None if name is None else to_text(name), "since": since}
    return {"promoted": found}


def run_rollback(session, request):
    """Operation `rollback`: make another version that is still there the current one (default: the one before)."""
    folder = folder_of(session.layout, request.get("to"))
    lock = _lock(folder)
    try:
        names = versions(folder)
        now = _current_name(folder)
        wanted = request.get("version")
        if wanted is None:
            earlier = [name for name in names if now is None or name < now]
            wanted = to_text(earlier[-1]) if earlier else None
        name = to_bytes(wanted) if isinstance(wanted, str) else None
        if name not in names:
            what = "version {}".format(wanted) if wanted else "earlier version"
            raise AgentError(
                "no_such_version",
                "{} holds no {} to go back to".format(to_text(folder), what),
                "`jobrunner promote ls` lists what was promoted; the newest {} stay.".format(KEPT),
            )
        _swap(folder, name)
        return _told(folder, current(folder), "rolled_back", None, None)
    finally:
        leases.release([lock])


def folder_of(layout, to):
    """The folder that a spec's `promote.to` names: absolute, in the home folder, else below the root."""
    if not isinstance(to, str) or not to.strip("/ ") or ".." in to.split("/") or "\0" in to:
        raise AgentError("bad_path", "not a folder for a model: {!r}".format(to))
    path = to_bytes(to)
    if path.startswith(b"~/"):
        path = os.path.expanduser(path)
    return os.path.normpath(os.path.join(layout.root, path))


def versions(folder):
    """The names of the versions, oldest first."""
    try:
        names = os.listdir(os.path.join(folder, b"versions"))
    except OSError:
        return []
    return sorted(name for name in names if not name.startswith(b"."))


def current(folder):
    """What is known of the model that is kept, or None."""
    name = _current_name(folder)
    if name is None:
        return None
    record = read_json(os.path.join(folder, b"versions", name, b"promotion.json"))
    return dict(record, version=to_text(name)) if isinstance(record, dict) else None


def _current_name(folder):
    try:
        target = os.readlink(os.path.join(folder, b"current"))
    except OSError:
        return None
    name = os.path.basename(target)
    return name if os.path.dirname(target) == b"versions" and name in versions(folder) else None


def _told(folder, kept, decision, why, against):
    """What a client hears: the decision, and the version that is current now."""
    path = None
    if kept is not None:
        path = _path(folder, to_bytes(kept["version"]), kept)
    told = {"decision": decision, "why": why, "against": against}
    return dict(told, current=kept, path=path, folder=to_text(folder))


def _path(folder, name, record):
    """Where the model of a version lies."""
    model = to_bytes(os.path.basename(record["checkpoint"].rstrip("/")))
    return to_text(os.path.join(folder, b"versions", name, model))


def _lock(folder):
    name = hashlib.sha256(os.path.realpath(folder)).hexdigest()[:24]
    lock = leases.bind_patiently(lock_name("promote", name), LOCK_S)
    if lock is None:
        text = "another model is being promoted to {}".format(to_text(folder))
        raise AgentError("busy", text, "It is tried again by the next tick.")
    return lock


def _record_of(layout, job_id, path):
    for record in checkpoints.present(layout, job_id):
        if record["path"] == path:
            if not record.get("complete"):
                raise AgentError("not_complete", "the checkpoint {} is not complete".format(record["name"]))
            return record
    raise AgentError(
        "no_such_checkpoint",
        "{} has no checkpoint {} any more".format(job_id, path),
        "`jobrunner checkpoints {}` lists them.".format(job_id),
    )


def _take_in(layout, folder, record, new, working):
    """Copy a checkpoint into a version of its own and make that the current one."""
    top = os.path.join(folder, b"versions")
    make_dir(top)
    for name in os.listdir(top):
        if name.startswith(b"."):
            remove.tree(os.path.join(top, name))  # left by a process that died: we hold the lock
    taken = versions(folder)
    stem = to_bytes(time.strftime("%Y%m%dT%H%M%SZ", time.gmtime()))
    if taken and stem <= taken[-1][: len(stem)]:
        stem = taken[-1].partition(b"-")[0] + b"_"  # the clock was set back: the newest stays the last by name
    name = stem + b"-" + to_bytes(new["job"])
    aside = os.path.join(top, b"." + name)
    try:
        os.mkdir(aside, 0o700)
        digest = _copy(
            layout, new["job"], record, working, os.path.join(aside, to_bytes(os.path.basename(record["name"])))
        )
        write_json(os.path.join(aside, b"promotion.json"), dict(new, sha256=digest))
        _sync_folder(aside)
        os.rename(aside, os.path.join(top, name))
    except BaseException:
        remove.tree(aside)
        raise
    _sync_folder(top)
    _swap(folder, name)


def _swap(folder, name):
    """Make `current` lead to a version, by rename."""
    link = os.path.join(folder, b"current")
    if os.path.lexists(link) and not os.path.islink(link):
        text = "{} is there and is no link of jobrunner's".format(to_text(link))
        raise AgentError("not_ours", text, "Move it away, or change `promote.to`.")
    aside = os.path.join(folder, b".current-" + os.urandom(4).hex().encode())
    os.symlink(os.path.join(b"versions", name), aside)
    try:
        os.rename(aside, link)
    except BaseException:
        os.unlink(aside)
        raise
    _sync_folder(folder)


def _copy(layout, job_id, record, working, target):
    """Copy a checkpoint's file or folder; its hash. AgentError `changed` if it is not what was listed, or changes."""
    top = layout.job(job_id)
    source = to_bytes(record["path"])
    if os.path.islink(source):
        source, top = inside.inner_target(top, source), os.path.realpath(top)
        if source is None:
            raise AgentError("bad_path", "the checkpoint {} leads out of its job's folder".format(record["name"]))
    if os.path.isdir(source):
        digest = _copy_folder(top, source, working, target)
    else:
        digest = _copy_file(top, os.path.relpath(source, top), working, target)
    if record.get("sha256") not in (None, digest):
        raise AgentError("changed", "the checkpoint {} is not what it was when it was listed".format(record["name"]))
    return digest


def _copy_folder(top, source, working, target):
    """Copy a folder's regular files; the hash as `ckpthash.of` has it."""
    make_dir(target)
    lines, folders = [], {target}
    for relative, seen in inside.files_below(source):
        if stat.S_ISREG(seen.st_mode):
            path = os.path.join(target, relative)
            make_dir(os.path.dirname(path))
            folders.add(os.path.dirname(path))
            inner = os.path.relpath(os.path.join(source, relative), top)
            lines.append((relative, _copy_file(top, inner, working, path)))
    for folder in folders:
        _sync_folder(folder)
    listed = b"".join(digest.encode() + b"  " + name + b"\n" for name, digest in sorted(lines))
    return hashlib.sha256(listed).hexdigest()


def _copy_file(top, inner, working, target):
    source = inside.open_at(top, inner)
    try:
        before = _mark(os.fstat(source))
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            seen = hashlib.sha256()
            while True:
                block = os.read(source, BLOCK)
                if not block:
                    break
                seen.update(block)
                view = memoryview(block)
                while view:
                    view = view[os.write(handle, view) :]
                working()
            os.fsync(handle)
        finally:
            os.close(handle)
        if _mark(os.fstat(source)) != before:
            raise AgentError("changed", "{} changed while it was copied".format(to_text(inner)), "Try again.")
        return seen.hexdigest()
    finally:
        os.close(source)


def _mark(seen):
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _sync_folder(path):
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def _prune(folder):
    """Remove the oldest versions but for the newest KEPT, never the current one."""
    now = _current_name(folder)
    for name in versions(folder)[:-KEPT]:
        if name != now:
            remove.tree(os.path.join(folder, b"versions", name))
