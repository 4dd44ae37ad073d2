"""What a job's files say: the records, the journal, and the view that clients get (docs/host.md)."""

import os

from . import clock, files, leases

FORMAT = 1
FINAL = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "LOST")
MOVED = "MOVED"  # it was taken out of the queue here and goes on elsewhere
OVER = (*FINAL, MOVED)  # nothing further comes of it here


def exists(layout, job_id):
    """True if the job's folder has been committed here."""
    return os.path.isdir(layout.job(job_id))


def all_ids(layout):
    """Every job of this instance, sorted."""
    from .layout import JOB_ID

    try:
        names = os.listdir(layout.jobs)
    except OSError:
        return []
    return sorted(name for name in (files.to_text(raw) for raw in names) if JOB_ID.match(name))


def request(layout, job_id):
    """`request.json`, or None if there is no such job."""
    return read_dict(os.path.join(layout.job(job_id), b"request.json"))


def run_of(job_request):
    """The part of a request that says what to run; empty if the request is unreadable."""
    return (job_request or {}).get("run") or {}


def final(layout, job_id):
    """The verdict, or None."""
    return read_dict(os.path.join(layout.job(job_id), b"final.json"))


def is_final(layout, job_id):
    """True if the job has its verdict. Cheap."""
    return os.path.exists(os.path.join(layout.job(job_id), b"final.json"))


def cancel(layout, job_id):
    """The wish to cancel, or None."""
    return read_dict(os.path.join(layout.job(job_id), b"cancel.json"))


def start(layout, job_id, number):
    """The start record of an attempt, or None."""
    return read_dict(os.path.join(layout.attempt(job_id, number), b"start.json")) if number else None


def exit_record(layout, job_id, number):
    """The exit record of an attempt, or None."""
    return read_dict(os.path.join(layout.attempt(job_id, number), b"exit.json")) if number else None


def read_dict(path):
    """A JSON object in a file, or None if there is none."""
    value = files.read_json(path)
    return value if isinstance(value, dict) else None


def attempts(layout, job_id, there=None):
    """The numbers of the attempts that were begun (have a start record), ascending. `there` is what `listing` told."""
    numbers = sorted(int(name) for name in (listing(layout, job_id) if there is None else there) if name.isdigit())
    return [n for n in numbers if os.path.exists(os.path.join(layout.attempt(job_id, n), b"start.json"))]


def listing(layout, job_id):
    """The names in a job's folder, as bytes; none if there is no such job here."""
    try:
        return os.listdir(layout.job(job_id))
    except OSError:
        return []


def journal(layout, job_id, kind, **fields):
    """Append to the job's journal. A full disk loses the line, never the caller; warnings are kept apart as well."""
    entry = dict(fields, at=clock.stamp(), kind=kind)
    folder = layout.job(job_id)
    names = (b"events.jsonl", b"warnings.jsonl") if kind == "warning" else (b"events.jsonl",)
    for name in names:
        try:
            files.append_line(os.path.join(folder, name), entry)
        except OSError:
            pass


def warnings(layout, job_id):
    """The texts of a job's warnings, oldest first, each once."""
    seen = []
    for entry in files.read_lines(os.path.join(layout.job(job_id), b"warnings.jsonl"), limit=1 << 18)[0]:
        text = entry.get("text") if isinstance(entry, dict) else None
        if text and text not in seen:
            seen.append(text)
    return seen


def queue_entry(layout, job_id):
    """The job's live queue entry, or None. One whose attempt has begun already is a left-over, not an entry."""
    entry = read_dict(layout.queued(job_id))
    if entry is None or stale(layout, job_id, entry):
        return None
    return entry


def stale(layout, job_id, entry):
    """True for an entry whose attempt has a start record: the start was committed, its removal was cut."""
    number = entry.get("attempt") or 1
    return os.path.exists(os.path.join(layout.attempt(job_id, number), b"start.json"))


def locked(layout, job_id, names=None):
    """True if somebody holds the job's lock (its supervisor, or who is acting on it)."""
    return layout.job_lock(job_id) in (leases.held_names() if names is None else names)


def held_ids(layout, names):
    """The jobs whose locks are among these abstract names."""
    from .layout import lock_name

    mark, _, end = lock_name("job", layout.instance, "?").partition(b"?")
    held = [name for name in names if name.startswith(mark) and name.endswith(end)]
    return {files.to_text(name[len(mark) : len(name) - len(end)]) for name in held}


def running(layout, names=None):
    """`[(job id, start record)]` of the jobs that a supervisor holds now."""
    found = []
    for job_id in sorted(held_ids(layout, leases.held_names() if names is None else names)):
        record = running_start(layout, job_id)
        if record is not None:
            found.append((job_id, record))
    return found


def running_start(layout, job_id):
    """The start record of a job whose newest attempt has begun and not ended; None otherwise."""
    from .layout import JOB_ID

    if not JOB_ID.match(job_id) or is_final(layout, job_id):
        return None
    numbers = attempts(layout, job_id)
    if not numbers or exit_record(layout, job_id, numbers[-1]) is not None:
        return None
    record = start(layout, job_id, numbers[-1])
    return dict(record, attempt=numbers[-1]) if record else None


def state_of(verdict, entry, started, ended, lock_held):
    """The state that a job's files show, and nothing else: `(state, needs_settling)`. Pure; the table of docs/host.md.

    What needs settling is decided under the job's lock by `settle`; until then it is shown as it last was.
    """
    if verdict:
        return verdict.get("state") or "LOST", False
    if lock_held and started and not entry:
        return "RUNNING", False
    if entry:
        return "QUEUED", False
    if started:
        return "RUNNING", True
    return "QUEUED", True


def job_view(layout, job_id, names=None, record=None):
    """The view of a job for clients, from its files as they are; None if there is no such job here.

    `names` are abstract names that were just read, `record` is the job's request, where these are at hand.
    """
    record = request(layout, job_id) if record is None else record
    if record is None:
        return None
    there = listing(layout, job_id)  # one look at the folder costs less than one for each file that is not there
    verdict = final(layout, job_id) if b"final.json" in there else None
    away = verdict is not None and verdict.get("state") == MOVED
    numbers = attempts(layout, job_id, there)
    newest = numbers[-1] if numbers else 0
    starts = {n: start(layout, job_id, n) or {} for n in numbers}
    ends = {n: exit_record(layout, job_id, n) for n in numbers}
    entry = None if verdict else queue_entry(layout, job_id)
    held = False if verdict else locked(layout, job_id, names)
    state, _ = state_of(verdict, entry, starts.get(newest), ends.get(newest), held)
    view = _described(layout, job_id, record, entry, there)
    view.update(_outcome(state, verdict, starts.get(newest) or {}, newest, entry))
    view["attempts"] = [_attempt_view(layout, job_id, n, starts[n], ends[n], verdict) for n in numbers]
    view["log_bytes"] = view["attempts"][-1]["log_bytes"] if numbers else 0
    if away:
        view.update(ended_at=None, moved={key: verdict.get(key) for key in ("to", "moves", "at")})
    return view


def _described(layout, job_id, record, entry, there):
    run = run_of(record)
    wish = cancel(layout, job_id) if b"cancel.json" in there else None
    return {
        "id": job_id,
        "name": record.get("name"),
        "device": run.get("device"),
        "submitted_at": record.get("submitted_at"),
        "cancel_requested_at": wish.get("at") if wish else None,
        "hold": bool((entry or {}).get("hold")),
        "priority": (entry or {}).get("priority", run.get("priority") or 0),
        "not_before": (entry or {}).get("not_before"),
        "retry_of": record.get("retry_of"),
        "sweep": _id_of(record.get("sweep")),
        "schedule": _id_of(record.get("schedule")),
        "launcher": run.get("launcher") or "nohup",
        "warnings": warnings(layout, job_id) if b"warnings.jsonl" in there else [],
    }


def _id_of(part):
    """The id of the sweep or schedule that a request tells of; None if it tells of none."""
    return part.get("id") if isinstance(part, dict) else part


def _outcome(state, verdict, started, newest, entry):
    verdict = verdict or {}
    shown = state == "RUNNING" or state in FINAL
    return {
        "state": state,
        "phase": started.get("phase") or "setup" if state == "RUNNING" else None,
        "reason": verdict.get("reason"),
        "exit_code": verdict.get("exit_code"),
        "signal": verdict.get("signal"),
        "cards": list(started.get("cards") or []) if shown else [],
        "attempt": verdict.get("attempt") or (entry or {}).get("attempt") or newest or None,
        "started_at": started.get("at"),
        "ended_at": verdict.get("at"),
        "evidence": verdict.get("evidence") if verdict else _evidence(state, started, entry),
    }


def _evidence(state, started, entry):
    """What shows that a job is in a state that is not its last. Pure."""
    if entry:
        return "it is in the host's queue since {}, for attempt {}".format(
            entry.get("queued_at"), entry.get("attempt") or 1
        )
    if state != "RUNNING":
        return "its folder is on the host"
    return "its supervisor (pid {}) holds its lock, its command began as pid {} at {}".format(
        (started.get("supervisor") or {}).get("pid"), (started.get("command") or {}).get("pid"), started.get("at")
    )


def _attempt_view(layout, job_id, number, started, ended, verdict):
    ended = ended or {}
    if not ended and verdict and verdict.get("attempt") == number:
        ended = verdict
    return {
        "number": number,
        "started_at": started.get("at"),
        "ended_at": ended.get("at"),
        "exit_code": ended.get("exit_code"),
        "signal": ended.get("signal"),
        "reason": ended.get("reason"),
        "cards": list(started.get("cards") or []),
        "log_bytes": log_size(layout, job_id, number),
    }


def log_size(layout, job_id, number):
    """Bytes in an attempt's log."""
    try:
        return os.stat(os.path.join(layout.attempt(job_id, number), b"log")).st_size
    except OSError:
        return 0
