"""Hand out results: checkpoints, or files of `work/` and `out/`; resumable, hashed, never by a link out of the job.

A file that changes while it is read is said to have changed; it is never passed off as complete.
"""

import hashlib
import os
import stat

from . import checkpoints, ckptorder, clock, inside, jobs, leases
from .files import AgentError, make_dir, to_bytes, to_text, write_json
from .layout import lock_name
from .wire import CHUNK
from .working import Working


class Item:
    """A file to hand out: `name` as the client keeps it, `inner` below the job's folder, `seen` when it was listed."""

    def __init__(self, name, inner, seen):
        self.name = name
        self.inner = inner
        self.seen = seen


def run(session, request):
    """Operation `collect`: the list, then what the client asks for until it says `done`."""
    layout = session.layout
    job_id = request.get("id")
    if not isinstance(job_id, str) or jobs.request(layout, job_id) is None:
        raise AgentError("no_such_job", "{} is not on this host".format(job_id), "See `jobrunner ls --all`.")
    items, skipped = choose(layout, job_id, request)
    mark = _Mark(layout, job_id, items)
    try:
        have = {entry.get("path"): entry.get("size") for entry in request.get("have") or [] if isinstance(entry, dict)}
        known = _known_hashes(layout, job_id)
        working = Working(session)
        files = [_described(layout, job_id, item, have, known, working) for item in items]
        coming = _unasked(items, request.get("ahead"))
        session.send_json({"files": files, "skipped": skipped, "coming": coming})
        sent = _hand_out_each(session, layout.job(job_id), items, list(range(coming)))
        sent += _hand_out(session, layout.job(job_id), items)
        return {"sent": sent}
    finally:
        mark.drop()


def choose(layout, job_id, request):
    """`([Item], [{path, why}])`: by `checkpoint`, by `paths`, else the spec's `outputs`, else all of `out/`."""
    word = request.get("checkpoint")
    if word:
        return _of_checkpoints(layout, job_id, word)
    paths = request.get("paths")
    if paths:
        return _of_patterns(layout, job_id, paths, strict=True)
    outputs = jobs.run_of(jobs.request(layout, job_id)).get("outputs") or []
    if outputs:
        return _of_patterns(layout, job_id, outputs, strict=False)
    return _of_patterns(layout, job_id, ["**"], strict=False, only_out=True)


def _of_checkpoints(layout, job_id, word):
    checkpoints.note(layout, job_id)
    names = [entry["name"] for entry in checkpoints.listing(layout, job_id)]
    records = ckptorder.newest_first(checkpoints.present(layout, job_id))
    by_name = dict(zip(names, records))
    chosen = _picked(layout, job_id, word, names, by_name)
    items, skipped = [], []
    for name in chosen:
        inner = os.path.relpath(to_bytes(by_name[name]["path"]), layout.job(job_id))
        # The client's folder holds the files under the names that the list shows.
        _add(layout.job(job_id), inner, to_bytes(name), items, skipped)
    return items, skipped


def _picked(layout, job_id, word, names, by_name):
    whole = [name for name in names if by_name[name].get("complete")]
    if word == "all":
        return whole
    if word == "last":
        chosen = whole[:1]
    elif word == "best":
        keep = (jobs.run_of(jobs.request(layout, job_id)).get("checkpoints") or {}).get("keep") or {}
        if not keep.get("best"):
            raise AgentError(
                "no_such_checkpoint",
                "the spec of {} does not say what is best".format(job_id),
                "Give the checkpoint's name, or `last`.",
            )
        top = ckptorder.best([by_name[name] for name in whole], keep["best"])
        chosen = [name for name in whole if top is not None and by_name[name] is top]
    else:
        chosen = [name for name in names if name == word]
        if chosen and chosen[0] not in whole:
            raise AgentError(
                "not_complete",
                "the checkpoint {} of {} is not complete: it is being written, or was broken off".format(word, job_id),
                "Take an earlier one (`jobrunner checkpoints`).",
            )
    if not chosen:
        raise AgentError(
            "no_such_checkpoint",
            "{} has no complete checkpoint {!r}".format(job_id, word),
            "`jobrunner checkpoints {}` lists them.".format(job_id),
        )
    return chosen


def _of_patterns(layout, job_id, patterns, strict, only_out=False):
    if not isinstance(patterns, list) or not all(isinstance(pattern, str) for pattern in patterns):
        raise AgentError("bad_request", "paths have to be a list of texts")
    folder = layout.job(job_id)
    best = {}
    skipped = []
    for top, number in checkpoints.places(layout, job_id):
        if only_out and number is not None:
            continue
        for path in sorted(inside.find(top, patterns)):
            found = []
            _add(folder, os.path.relpath(os.path.join(top, path), folder), path, found, skipped)
            for item in found:
                old = best.get(item.name)
                if old is None or item.seen.st_mtime_ns >= old.seen.st_mtime_ns:
                    best[item.name] = item
    if strict and not best and not skipped:
        raise AgentError(
            "no_such_file",
            "{} has nothing that matches {}".format(job_id, ", ".join(patterns)),
            "Paths are relative to the job's work/ or to $JOBRUNNER_OUTPUT_DIR.",
        )
    return [best[name] for name in sorted(best)], skipped


def _add(folder, inner, name, items, skipped):
    """Add a file, or all files of a folder. A link counts as the file that it leads to, if that is the job's own."""
    path = os.path.join(folder, inner)
    try:
        seen = os.lstat(path)
        if stat.S_ISLNK(seen.st_mode):
            target = inside.inner_target(folder, path)
            if target is None or stat.S_ISDIR(os.stat(target).st_mode):
                raise AgentError("skipped", "a link to a folder" if target else "a link out of the job's own files")
            inner, seen = os.path.relpath(target, os.path.realpath(folder)), os.lstat(target)
        if stat.S_ISDIR(seen.st_mode):
            for deeper, _ in sorted(inside.files_below(path)):
                _add(folder, os.path.join(inner, deeper), os.path.join(name, deeper), items, skipped)
        elif stat.S_ISREG(seen.st_mode):
            items.append(Item(name, inner, seen))
        else:
            raise AgentError("skipped", "no regular file")
    except AgentError as error:
        skipped.append({"path": to_text(name), "why": error.message})
    except OSError as error:
        skipped.append({"path": to_text(name), "why": error.strerror})


def _known_hashes(layout, job_id):
    return {
        (record["path"], record["size"], record["mtime_ns"]): record["sha256"]
        for record in checkpoints.present(layout, job_id)
        if record.get("sha256")
    }


def _described(layout, job_id, item, have, known, working):
    """The list's entry of a file. Its hash is there if it is known, or if the client may have the file already."""
    seen = item.seen
    path = to_text(item.name)
    digest = known.get((to_text(os.path.join(layout.job(job_id), item.inner)), seen.st_size, seen.st_mtime_ns))
    if digest is None and have.get(path) == seen.st_size:
        digest = _digest(layout.job(job_id), item, working)
    return {
        "path": path,
        "type": "f",
        "mode": stat.S_IMODE(seen.st_mode) & 0o777,
        "size": seen.st_size,
        "sha256": digest,
        "mtime": clock.stamp(seen.st_mtime_ns / 1e9),
        "inner": to_text(item.inner),
        "mark": list(_mark(seen)),
    }


def _digest(folder, item, working):
    from . import ckpthash

    try:
        handle = inside.open_at(folder, item.inner)
        before = _mark(os.fstat(handle))
        digest = ckpthash.of_file(os.dup(handle), working)
        after = _mark(os.fstat(handle))
        os.close(handle)
    except OSError:
        return None
    return digest if before == after == _mark(item.seen) else None


def _mark(seen):
    """What tells that a file has changed or was replaced."""
    return seen.st_ino, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns


def _unasked(items, ahead):
    """How many files of the list follow it at once: all up to the first that would make it more `bytes`, or `files`."""
    files, room = (ahead.get(key) for key in ("files", "bytes")) if isinstance(ahead, dict) else (0, 0)
    if not isinstance(files, int) or not isinstance(room, int):
        raise AgentError("bad_request", "how much may come unasked has to be numbers: {!r}".format(ahead))
    count = 0
    for item in items[: max(0, files)]:
        room -= item.seen.st_size
        if room < 0:
            break
        count += 1
    return count


def _hand_out(session, folder, items):
    sent = 0
    while True:
        message = session.read_json()
        if message is None:
            from .rpc import ClientGone

            raise ClientGone("in the middle of a download")
        if message.get("done"):
            return sent
        if message.get("tick"):
            continue  # it fetches a big file in ranges meanwhile, and is still there
        each = message.get("each")
        if each is not None:
            sent += _hand_out_each(session, folder, items, each)
            continue
        index, offset = message.get("get"), message.get("offset", 0)
        if not isinstance(offset, int) or offset < 0:
            raise AgentError("bad_request", "no place in a file: {!r}".format(offset))
        with inside.Opener(folder) as opener:
            verdict, count = _send(session, opener, _listed(items, index), offset)
        sent += count
        session.send_end()
        session.send_json(verdict)


def _listed(items, index):
    if not isinstance(index, int) or not 0 <= index < len(items):
        raise AgentError("bad_request", "no such file in the list: {!r}".format(index))
    return items[index]


def _hand_out_each(session, folder, items, each):
    """Files one after the other, each from its first byte on; small ones leave together."""
    if not isinstance(each, list):
        raise AgentError("bad_request", "no list of files: {!r}".format(each))
    sent = 0
    with inside.Opener(folder) as opener:
        session.gather()
        try:
            for index in each:
                verdict, count = _send(session, opener, _listed(items, index), 0)
                sent += count
                session.send_end()
                session.send_json(verdict)
        finally:
            session.leave()
    return sent


def _send(session, opener, item, offset):
    """Send a file from an offset on: `({"sha256"} of the whole file or {"changed": True}, bytes sent)`."""
    changed = {"sha256": None, "changed": True}
    try:
        handle = opener.open(item.inner)
    except OSError:
        return changed, 0
    try:
        if _mark(os.fstat(handle)) != _mark(item.seen) or offset > item.seen.st_size:
            return changed, 0
        seen, working = hashlib.sha256(), Working(session)
        at = sent = 0
        while at < item.seen.st_size:
            # What the client has is hashed only, up to just where it ends.
            block = os.read(handle, min(CHUNK, offset - at) if at < offset else CHUNK)
            if not block:
                break
            seen.update(block)
            if at >= offset:
                session.send_bytes(block)
                sent += len(block)
            else:
                working()
            at += len(block)
        if at != item.seen.st_size or _mark(os.fstat(handle)) != _mark(item.seen):
            return changed, sent
        return {"sha256": seen.hexdigest()}, sent
    finally:
        os.close(handle)


class _Mark:
    """Says, while this process lives, that files are being pulled: cleaning and `keep` leave them alone."""

    def __init__(self, layout, job_id, items):
        token = os.urandom(8).hex()
        self._lock = leases.bind(lock_name("pull", layout.instance, token))
        folder = os.path.join(layout.job(job_id), b"pulls")
        self._path = os.path.join(folder, token.encode())
        paths = [to_text(os.path.join(layout.job(job_id), item.inner)) for item in items]
        try:
            make_dir(folder)
            write_json(self._path, {"paths": paths}, sync=False)
        except OSError:
            self._path = None  # a full disk or one that is read-only: then nothing is cleaned there either

    def drop(self):
        """The transfer is over."""
        if self._path is not None:
            try:
                os.unlink(self._path)
            except OSError:
                pass
        if self._lock is not None:
            leases.release([self._lock])
