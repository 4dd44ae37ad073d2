"""A job's checkpoints: find them, note them, tell which is the newest whole one, remove what is no longer wanted.

`checkpoints.jsonl` is append-only: the last line of a path is what holds. `mtime_ns` and `size` tell whether a file is
still the one that was noted.
"""

import os
import stat
import time

from . import ckptorder, clock, inside, jobs, leases
from .files import AgentError, append_line, read_json, read_lines, to_bytes, to_text
from .layout import JOB_ID, Layout, lock_name

SETTLE_S = 2.0
_MAX_CHAIN = 50


def run(session, request):
    """Operation `checkpoints`: the list, brought up to date first."""
    layout = session.layout
    job_id = request.get("id")
    if not isinstance(job_id, str) or jobs.request(layout, job_id) is None:
        raise AgentError("no_such_job", "{} is not on this host".format(job_id), "See `jobrunner ls --all`.")
    note(layout, job_id)
    return {"checkpoints": listing(layout, job_id)}


def listing(layout, job_id):
    """What clients see, newest first.

    Names are relative to the folder that all patterns of the spec begin with (`ckpt/*.pt`: `ckpt`), and unique:
    `NAME@K` is an older attempt's file of the same name.
    """
    shown = []
    taken = set()
    top = shared_folder((jobs.run_of(jobs.request(layout, job_id)).get("checkpoints") or {}).get("paths") or [])
    for record in ckptorder.newest_first(present(layout, job_id)):
        name = record["name"]
        if top and name.startswith(top):
            name = name[len(top) :]
        if name in taken:
            name = "{}@{}".format(name, record.get("attempt") or "out")
        taken.add(name)
        shown.append(
            {
                "name": name,
                "path": record["path"],
                "step": record.get("step"),
                "size": record["size"],
                "sha256": record.get("sha256"),
                "modified_at": record["modified_at"],
                "complete": bool(record.get("complete")),
                "attempt": record.get("attempt"),
                "metrics": record.get("metrics") or {},
            }
        )
    return shown


def shared_folder(patterns):
    """The folder (`ckpt/`) that every pattern begins with, as far as it has no wildcard; empty if there is none."""
    folders = set()
    for pattern in patterns:
        parts = pattern.split("/")[:-1]
        plain = []
        for part in parts:
            if any(sign in part for sign in "*?["):
                break
            plain.append(part)
        folders.add("/".join(plain))
    return folders.pop() + "/" if len(folders) == 1 and "" not in folders else ""


def noted(layout, job_id):
    """`{path: last record}` of everything ever noted, removed ones included."""
    path = os.path.join(layout.job(job_id), b"checkpoints.jsonl")
    known = {}
    offset = 0
    while True:
        records, following = read_lines(path, offset)
        for record in records:
            if isinstance(record, dict) and isinstance(record.get("path"), str):
                known[record["path"]] = record
        if following == offset:
            return known
        offset = following


def present(layout, job_id):
    """The noted checkpoints that have not been removed."""
    return [record for record in noted(layout, job_id).values() if not record.get("removed") and "mtime_ns" in record]


def places(layout, job_id):
    """`[(folder, attempt or None)]` where checkpoints and outputs are looked for."""
    folder = layout.job(job_id)
    try:
        numbers = sorted(int(name) for name in os.listdir(folder) if name.isdigit())
    except OSError:
        numbers = []
    found = [(os.path.join(folder, str(number).encode(), b"work"), number) for number in numbers]
    return [*found, (os.path.join(folder, b"out"), None)]


def scan(layout, job_id, request, final=False):
    """Records of everything under `checkpoints.paths` in all attempts' `work/` and in `out/`, in no order.

    `complete` means: settled (for `SETTLE_S`, unless `final`: nothing of the job runs) and whole by its structure.
    """
    patterns = _patterns(request)
    if not patterns:
        return []
    from . import ckptcheck

    known = noted(layout, job_id)
    moment = _Moment(layout, job_id)
    records = []
    for top, attempt in places(layout, job_id):
        for path, record in _matches(layout.job(job_id), top, patterns):
            record["attempt"] = attempt
            settled = final or _settled(record, known.get(record["path"]), moment)
            record["complete"] = bool(settled and ckptcheck.whole(path))
            records.append(record)
    return records


def _patterns(request):
    found = ((request.get("run") or {}).get("checkpoints") or {}).get("paths") or []
    return [pattern for pattern in found if isinstance(pattern, str)]


def _matches(boundary, top, patterns):
    """`(path, record)` of what matches under one folder; nothing inside a folder that matches itself."""
    found = inside.find(top, patterns)
    folders = {path for path, seen in found.items() if stat.S_ISDIR(seen.st_mode)}
    for path, seen in found.items():
        if any(path[:at] in folders for at, byte in enumerate(path) if byte == 0x2F):
            continue
        full = os.path.join(top, path)
        link = stat.S_ISLNK(seen.st_mode)
        if link:
            target = inside.inner_target(boundary, full)
            if target is None or os.path.relpath(target, os.path.realpath(top)) in found:
                continue
            full = target
        record = _record(full, to_text(path))
        if record is None:
            continue
        if link:
            record["link"] = True
        yield full, record


def _record(path, name):
    try:
        seen = os.stat(path)
    except OSError:
        return None
    size, newest = seen.st_size, seen.st_mtime_ns
    if stat.S_ISDIR(seen.st_mode):
        size = 0
        for _, inner in inside.files_below(path):
            size += inner.st_size
            newest = max(newest, inner.st_mtime_ns)
    elif not stat.S_ISREG(seen.st_mode):
        return None
    step = ckptorder.step_of(name)
    if step is None and stat.S_ISDIR(seen.st_mode):
        step = _pointer_step(path)
    return {
        "v": 1,
        "name": name,
        "path": to_text(path),
        "step": step,
        "size": size,
        "mtime_ns": newest,
        "modified_at": clock.stamp(newest / 1e9),
        "sha256": None,
        "removed": None,
    }


def _pointer_step(path):
    from . import ckptcheck

    for target in (ckptcheck.read_pointer(path, b"latest"), ckptcheck.megatron_target(path)):
        step = ckptorder.step_of(to_text(target)) if target else None
        if step is not None:
            return step
    return None


class _Moment:
    """Now, by both clocks; and whether ages of files mean anything: not once the host's clock was set under a job."""

    def __init__(self, layout, job_id):
        self.now, self.steady = time.time(), time.monotonic()
        numbers = jobs.attempts(layout, job_id)
        start = (jobs.start(layout, job_id, numbers[-1]) if numbers else None) or {}
        self.ages = not clock.was_set(start.get("began"), start.get("mono"))


def _settled(record, known, moment):
    if moment.ages and moment.now - record["mtime_ns"] / 1e9 >= SETTLE_S:
        return True
    # A clock that was set, or runs ahead on the file server: the same twice, seen long enough apart, is settled too.
    if not known or not same(record, known):
        return False
    if isinstance(known.get("seen_steady"), float):
        return moment.steady - known["seen_steady"] >= SETTLE_S
    return bool(known.get("seen") and moment.now - known["seen"] >= SETTLE_S)


def same(one, other):
    """True if two records are of the same, unchanged file."""
    return one["size"] == other.get("size") and one["mtime_ns"] == other.get("mtime_ns")


def note(layout, job_id, request=None, final=None):
    """Append what is new or has changed to `checkpoints.jsonl`; the records appended. Hashes follow (another process).

    `final`: nothing of the job runs any more; by default that is found out. To be called from a short-lived process.
    """
    request = jobs.request(layout, job_id) if request is None else request
    if not request or not _patterns(request):
        return []
    if final is None:
        final = jobs.running_start(layout, job_id) is None
    from . import ckptmetrics

    known = noted(layout, job_id)
    path = os.path.join(layout.job(job_id), b"checkpoints.jsonl")
    fresh = []
    now = time.time()
    found = scan(layout, job_id, request, final)
    samples = ckptmetrics.told(layout, job_id, request, final) if found else []
    for record in found:
        old = known.get(record["path"])
        noted_so = old and not old.get("removed") and same(record, old) and old.get("complete") == record["complete"]
        if noted_so and (old.get("metrics") or not samples):
            continue
        record["seen"], record["seen_steady"] = now, time.monotonic()
        record["metrics"] = ckptmetrics.of(samples, record, now, not final)
        if not record["metrics"] and old and same(record, old):
            record["metrics"] = old.get("metrics") or {}
        if not noted_so or record["metrics"]:  # a line that rates it may have come after it
            fresh.append(record)
    there = {record["path"] for record in found}
    for gone in known.values():
        if gone["path"] not in there and not gone.get("removed") and not os.path.lexists(to_bytes(gone["path"])):
            fresh.append(dict(gone, removed=clock.stamp()))
    for record in fresh:
        append_line(path, record)
    _hash_later(layout, job_id)
    return fresh


def newest_valid(layout, job_id, _depth=0):
    """The path (bytes) of the newest whole checkpoint to go on from, or None.

    A job that was made to go on from another one looks there while it has none of its own.
    """
    request = jobs.request(layout, job_id)
    if request is None:
        return None
    for record in ckptorder.newest_first(scan(layout, job_id, request, final=True)):
        if record["complete"]:
            return to_bytes(record["path"])
    source = read_json(os.path.join(layout.job(job_id), b"resume.json"), {}).get("job")
    if isinstance(source, str) and JOB_ID.match(source) and _depth < _MAX_CHAIN:
        return newest_valid(layout, source, _depth + 1)
    return None


def apply_keep(layout, job_id, request=None):
    """Remove the noted checkpoints that the spec's `keep` no longer wants; the records removed."""
    from . import remove

    request = jobs.request(layout, job_id) if request is None else request
    keep = ((request or {}).get("run") or {}).get("checkpoints", {}).get("keep")
    if not keep:
        return []
    records = present(layout, job_id)
    _warn_of_unrated(layout, job_id, records, keep)
    dropped = []
    for record in ckptorder.to_drop(records, keep, _spared(layout, job_id, records)):
        path = to_bytes(record["path"])
        now = _record(path, record["name"])
        if now is None or not same(now, record) or not remove.tree(path):
            continue  # it is another file by now, or cannot be removed
        record = dict(record, removed=clock.stamp())
        append_line(os.path.join(layout.job(job_id), b"checkpoints.jsonl"), record)
        dropped.append(record)
    return dropped


def _warn_of_unrated(layout, job_id, records, keep):
    """Say once that the best is wanted and nothing tells which it is, so that all stay."""
    if not keep.get("best") or len(records) <= int(keep.get("last") or 1) or ckptorder.best(records, keep["best"]):
        return
    text = (
        "keep.best: no checkpoint's {} is known, so none is removed: let its name, or the line of the log that "
        "`metrics` reads, name the step too (`epoch=3 val_loss=0.25`)".format(keep["best"].split()[0])
    )
    if any(record.get("complete") for record in records) and text not in jobs.warnings(layout, job_id):
        jobs.journal(layout, job_id, "warning", text=text)


def _spared(layout, job_id, records):
    """Paths that stay whatever `keep` says: the one to go on from, what is being pulled, what links lead to."""
    spared = {record["path"] for record in records if record.get("link")}
    newest = newest_valid(layout, job_id)
    if newest:
        spared.add(to_text(newest))
    for pull in pulls(layout, job_id):
        spared.update(
            record["path"]
            for record in records
            if any(path == record["path"] or path.startswith(record["path"] + "/") for path in pull)
        )
    return spared


def pulls(layout, job_id):
    """The paths of each transfer of this job's files that goes on now. Marks of dead ones are removed."""
    folder = os.path.join(layout.job(job_id), b"pulls")
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    held = leases.held_names()
    live = []
    for name in names:
        if lock_name("pull", layout.instance, to_text(name)) in held:
            live.append(read_json(os.path.join(folder, name), {}).get("paths") or [])
        elif not name.startswith(b".") and not name.endswith(b".tmp"):
            try:
                os.unlink(os.path.join(folder, name))
            except OSError:
                continue
    return live


def _hash_lock(layout, job_id):
    return lock_name("hash", layout.instance, job_id)


def _unhashed(layout, job_id):
    return [record for record in present(layout, job_id) if record.get("complete") and not record.get("sha256")]


def _hash_later(layout, job_id):
    """Start the process that fills hashes in, if there is something to do and none does it."""
    if _unhashed(layout, job_id) and _hash_lock(layout, job_id) not in leases.held_names():
        from . import procs

        procs.spawn_detached(procs.agent_argv("checkpoints", [to_text(layout.root), layout.instance, job_id]))


def main(argv):
    """`ROOT INSTANCE JOB`: hash what has been noted and not been hashed, then end."""
    from . import ckpthash

    layout = Layout(to_bytes(argv[0]), argv[1])
    job_id = argv[2]
    lock = leases.bind(_hash_lock(layout, job_id))
    if lock is None:
        return 0
    os.nice(10)
    tried = set()
    path = os.path.join(layout.job(job_id), b"checkpoints.jsonl")
    while True:
        todo = [record for record in _unhashed(layout, job_id) if (record["path"], record["mtime_ns"]) not in tried]
        if not todo:
            return 0
        for record in todo:
            tried.add((record["path"], record["mtime_ns"]))
            digest = ckpthash.of(to_bytes(record["path"]))
            now = _record(to_bytes(record["path"]), record["name"])
            if digest and now and same(now, record):
                append_line(path, dict(record, sha256=digest))
