"""Make jobs: take their code and their requests, publish their folders, queue them. Each step may be repeated.

The folder made under an id that the client chose is the commit point: whoever finds it there reports it.
"""

import errno
import json
import os
import time

from . import able, blobs, clock, manifest, remove, together
from .files import AgentError, append_line, json_bytes, make_dir, read_json, to_bytes, to_text, write_json, write_new
from .layout import JOB_ID

LATER = ("dispatcher", "jobs", "queue", "settle")  # what is imported only once there is a job to make
LEFTOVER_S = 86400.0
# Of the submitting session, not of the job: what a login of another day would have differently.
_SESSION_NAMES = frozenset(
    (
        b"DISPLAY",
        b"WAYLAND_DISPLAY",
        b"DBUS_SESSION_BUS_ADDRESS",
        b"STY",
        b"WINDOW",
        b"OLDPWD",
        b"PWD",
        b"_",
        b"JOBRUNNER_JOB_ID",
        b"JOBRUNNER_JOB_NAME",
        b"JOBRUNNER_ATTEMPT",
        b"JOBRUNNER_DEVICE",
        b"JOBRUNNER_CARDS",
        b"JOBRUNNER_NUM_CARDS",
        b"JOBRUNNER_OUTPUT_DIR",
        b"JOBRUNNER_RESUME_FROM",
    )
)
_SESSION_PREFIXES = (b"SSH_", b"XDG_", b"TMUX")


def run(session, request):
    """Operation `stage`: new jobs that share one tree, or none. Jobs that are there already are reported."""
    layout = session.layout
    if request.get("jobs_z") is not None:  # many requests that are much alike
        request["jobs"] = manifest.unpack(request["jobs_z"])
    jobs = _check_jobs(request.get("jobs"))
    _come_back(layout, jobs)
    fresh = [job for job in jobs if not _exists(layout, job["request"]["id"])]
    entries = _entries(request) if fresh else None
    able.check_launchers(fresh)
    need = []
    wanted = []
    if entries is not None:
        sweep_leftovers(layout)
        wanted = manifest.contents(entries)
        make_dir(layout.blobs)
        need = blobs.missing(layout, wanted)
        size, names = manifest.total(entries)
        come = sum(wanted[index][1] - blobs.gathered(layout, *wanted[index]) for index in need)
        blobs.check_space(layout.root, come + size, len(need) + names)
    existing = [job["request"]["id"] for job in jobs if job not in fresh]
    message = {"need": need}
    if existing:
        message["exists"] = _views(layout, existing)
    session.send_json(message)
    blobs.receive_all(layout, session, [wanted[index] for index in need])
    if blobs.missing(layout, wanted):
        raise AgentError("changed", "contents that were here have gone away meanwhile", "Submit again.")
    able.check_programs(layout, fresh, entries)
    return commit(layout, [(job, entries) for job in fresh], existing)


def run_clone(session, request):
    """Operation `clone`: new jobs with the code of the job `id`; with `resume`, going on from its checkpoint.

    `jobs` is as in `stage`; one job may come as `request` and `secrets` instead.
    """
    layout = session.layout
    source = request.get("id")
    folder = layout.job(source if isinstance(source, str) else "")
    alone = [{"request": request.get("request"), "secrets": request.get("secrets")}]
    jobs = _check_jobs(request.get("jobs") or alone)
    _come_back(layout, jobs)
    fresh = [job for job in jobs if not _exists(layout, job["request"]["id"])]
    existing = [job["request"]["id"] for job in jobs if job not in fresh]
    if not fresh:
        return commit(layout, [], existing)
    entries = _cloned_entries(layout, folder, source)
    able.check_launchers(fresh)
    able.check_programs(layout, fresh, entries)
    if request.get("resume"):
        for job in fresh:
            job["resume"] = {"v": 1, "job": source}
    blobs.check_space(layout.root, *manifest.total(entries or []))
    answer = commit(layout, [(job, entries) for job in fresh], existing)
    if request.get("resume"):
        from . import checkpoints

        newest = checkpoints.newest_valid(layout, source)
        answer["resume_from"] = None if newest is None else to_text(newest)
    return answer


def _come_back(layout, jobs):
    """Jobs that were moved away from here come back to their folders; where one never was here, its tombstone goes and
    it counts as new."""
    if not any(job["request"].get("moves") for job in jobs):
        return
    from . import moved

    for job in jobs:
        job_id = job["request"]["id"]
        if moved.comes_back(layout, job["request"]):
            moved.clear(layout, job_id)
            if _exists(layout, job_id):
                _cloned_entries(layout, layout.job(job_id), job_id)
                moved.take_in(layout, job)


def _cloned_entries(layout, folder, source):
    """The code of the job in `folder`, all of it still here; None for a job without code."""
    old = read_json(os.path.join(folder, b"request.json"))
    if old is None:
        raise AgentError(
            "no_such_job", "{} is not on this host".format(source), "See `jobrunner ls --all` for where it is."
        )
    if old.get("tombstone"):
        raise AgentError(
            "code_gone",
            "{} never reached this host whole, so its code is not here".format(source),
            "Submit the spec again from the folder that holds the code.",
        )
    entries = manifest.load(os.path.join(folder, b"manifest.json"))
    if entries is not None and blobs.missing(layout, manifest.contents(entries)):
        raise AgentError(
            "code_gone",
            "the code of {} has been cleaned away here".format(source),
            "Submit the spec again from the folder that holds the code.",
        )
    return entries


def run_tombstone(session, request):
    """Operation `tombstone`: close the id of a submit that was broken off, unless the job has arrived.

    With `cancelled` it is the end of a job that is being sent still: its sender finds it there. With `moved` (`{moves,
    to}`) the job goes elsewhere. `request` is what was being sent, for whoever reads this folder later.
    """
    layout = session.layout
    job_id = request.get("id")
    layout.job(job_id if isinstance(job_id, str) else "")
    if not _exists(layout, job_id):
        now = clock.stamp()
        parts = {b"request.json": _buried(request, job_id, now), b"final.json": _verdict(request, now)}
        if request.get("cancelled"):
            parts[b"cancel.json"] = {"v": 1, "at": request.get("at") or now, "by": None, "grace_s": None}
        aside = _new_folder(layout, job_id)
        _write_all(aside, parts)
        append_line(os.path.join(aside, b"events.jsonl"), {"at": now, "kind": "tombstone"})
        _publish(layout, aside, job_id)
    return {"jobs": _views(layout, [job_id])}


def _buried(request, job_id, now):
    """The request of a job that never arrived: as it was being sent, where the client says it."""
    name, sent = request.get("name"), request.get("request")
    known = sent if isinstance(sent, dict) and isinstance(sent.get("run"), dict) else {}
    head = {"v": 1, "name": name if isinstance(name, str) else job_id, "submitted_at": now, "spec": {}, "run": {}}
    return dict(head, **dict(known, id=job_id, tombstone=True))


def _verdict(request, now):
    if isinstance(request.get("moved"), dict):
        from . import moved

        return moved.verdict(moved.count(request["moved"]) or 1, request["moved"].get("to"), now)
    cancelled = bool(request.get("cancelled"))
    return {
        "v": 1,
        "state": "CANCELLED" if cancelled else "FAILED",
        "reason": None if cancelled else "interrupted",
        "exit_code": None,
        "signal": None,
        "at": now,
        "attempt": None,
        "evidence": "cancelled while it was being sent"
        if cancelled
        else "its sending was broken off and was not taken up",
    }


def _check_jobs(jobs):
    if not isinstance(jobs, list) or not jobs:
        raise AgentError("bad_request", "no jobs to stage")
    seen = set()
    for job in jobs:
        request = job.get("request") if isinstance(job, dict) else None
        if not isinstance(request, dict) or not isinstance(request.get("run"), dict):
            raise AgentError("bad_request", "a job without a request")
        job_id = request.get("id")
        if not isinstance(job_id, str) or not JOB_ID.match(job_id) or job_id in seen:
            raise AgentError("bad_id", "not a job id, or given twice: {!r}".format(job_id))
        seen.add(job_id)
        secrets = job.get("secrets") or {}
        if not isinstance(secrets, dict) or not all(isinstance(value, str) for value in secrets.values()):
            raise AgentError("bad_request", "secrets have to be texts by name")
    return jobs


def _entries(request):
    if request.get("manifest_z") is not None:
        return manifest.check(manifest.unpack(request["manifest_z"]))
    if request.get("manifest") is not None:
        return manifest.check(request["manifest"])
    return None


def _exists(layout, job_id):
    return os.path.lexists(layout.job(job_id))


def _views(layout, ids, made=()):
    """Views of these jobs; those of requests in `made` are what we have just published."""
    from . import jobs, leases

    names, known = leases.held_names(), {request["id"]: request for request in made}
    return {job_id: jobs.job_view(layout, job_id, names, known.get(job_id)) for job_id in ids}


def commit(layout, fresh, existing):
    """Publish `[(job, code)]`, queue what is not queued, start the dispatcher; the answer of `stage` and `clone`."""
    from . import dispatcher, jobs, queue, settle

    environ = session_environ()
    shared, written = {}, []
    made, existing = [], list(existing)
    with queue.Batch(layout, [job["request"] for job, _ in fresh]) as entries:
        folders = [(job["request"], _build(layout, job, code, environ, shared, written)) for job, code in fresh]
        together.sync_all(written + entries.paths)
        for request, aside in folders:
            if _publish(layout, aside, request["id"]):
                made.append(request)
            else:
                existing.append(request["id"])
        if made:
            together.sync(layout.jobs)
        entries.publish(made)
    if any(jobs.run_of(request).get("device") not in (None, "cpu") for request in made):
        _warn_of_never(layout, made)
    for job_id in existing:
        settle.settle(layout, job_id)
    dispatcher.ensure_running(layout)
    return {"jobs": _views(layout, [request["id"] for request in made] + existing, made), "existed": existing}


def _warn_of_never(layout, made):
    """Cards that were looked at before may show that a job can never start here: said at once."""
    from . import fitting, queue

    try:
        fitting.warn_of_never(layout, [queue.entry_for(request, 1, clock.stamp()) for request in made])
    except (OSError, TypeError, ValueError, KeyError):
        pass  # a warning is no reason to fail a submit that is done


def _build(layout, job, code, environ, shared, written):
    """A job's folder under a name of its own; what has to be on the disk before it is published is added to `written`.

    Jobs of one submit share files that are alike and never written to again: the code's list, and the environment.
    """
    request = job["request"]
    aside = _new_folder(layout, request["id"])
    if code is not None:
        _write_shared(os.path.join(aside, b"manifest.json"), code, shared, written)
    _write_shared(os.path.join(aside, b"environ.json"), environ, shared, written)
    values = {b"request.json": request}
    if job.get("secrets"):
        values[b"secrets.json"] = job["secrets"]
    if job.get("resume"):
        values[b"resume.json"] = job["resume"]
    append_line(os.path.join(aside, b"events.jsonl"), {"at": clock.stamp(), "kind": "submitted"})
    for name in sorted(values):
        written.append(os.path.join(aside, name))
        write_new(written[-1], json_bytes(values[name]))
    written.append(aside)
    return aside


def _write_shared(path, value, shared, written):
    known = shared.get(id(value))
    if known is not None:
        try:
            os.link(known, path)
            return
        except OSError:
            pass  # too many links, or none to be had here
    write_new(path, json.dumps(value, separators=(",", ":")).encode("ascii"))
    written.append(path)
    shared[id(value)] = path


def _new_folder(layout, job_id):
    make_dir(layout.jobs)
    aside = os.path.join(layout.jobs, b".tmp-" + to_bytes(job_id) + b"-" + os.urandom(4).hex().encode())
    os.mkdir(aside, 0o700)
    return aside


def _write_all(folder, values):
    for name in sorted(values):
        write_json(os.path.join(folder, name), values[name])
    together.sync(folder)


def _publish(layout, aside, job_id):
    """True if the folder got its name; False, and it is gone, if the job was there before."""
    try:
        os.rename(aside, layout.job(job_id))
        return True
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise
    remove.tree(aside)
    return False


def session_environ():
    """What `ssh HOST` gave us, without what belongs to that session only: names and values as text."""
    own = _made_up_by_python()
    return {
        to_text(name): to_text(value)
        for name, value in os.environb.items()
        if name not in _SESSION_NAMES and name not in own and not name.startswith(_SESSION_PREFIXES)
    }


def _made_up_by_python():
    """`LC_CTYPE`, where this interpreter set it for itself (it does so in the C locale) and the login did not."""
    try:
        with open("/proc/self/environ", "rb") as given:
            there = any(entry.startswith(b"LC_CTYPE=") for entry in given.read().split(b"\0"))
    except OSError:
        return ()
    return () if there else (b"LC_CTYPE",)


def sweep_leftovers(layout, older_than_s=LEFTOVER_S):
    """Remove what stages that were cut left behind; the paths removed."""
    removed = []
    limit = time.time() - older_than_s
    for folder in (layout.jobs, layout.hosts, layout.home):
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        for name in names:
            if not name.startswith(b".tmp-"):
                continue
            path = os.path.join(folder, name)
            try:
                if os.lstat(path).st_mtime < limit:
                    remove.tree(path)
                    removed.append(path)
            except OSError:
                continue
    return removed
