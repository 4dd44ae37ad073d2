"""One answer about the whole host: jobs, their events, the cards, the disk."""

import os

from . import dispatcher, files, jobs, leases, settle, situation


def run(session, request):
    """Operation `look`: reconcile the jobs that are asked about, see that the queue goes on, and tell."""
    layout = session.layout
    views = look(layout, request.get("jobs"))
    dispatcher.ensure_running(layout)
    answer = {
        "jobs": views,
        "events": events(layout, request.get("events")),
        "drained": situation.drained(layout),
        "disk": disk(layout),
        "cards": None,
        "metrics": {},
    }
    if request.get("metrics"):
        from . import metrics

        answer["metrics"] = metrics.answer(layout, request["metrics"])
    if request.get("cards"):
        answer["cards"] = card_report(layout, request.get("device"), request.get("max_age_s"), request.get("count"))
    return answer


def look(layout, wanted):
    """`{id: view or None}` of the wanted jobs: a list of ids, `live` (not final), `all`, or nothing."""
    from .layout import JOB_ID

    names = leases.held_names()
    if wanted in ("live", "all"):
        ids = [job_id for job_id in jobs.all_ids(layout) if wanted == "all" or not jobs.is_final(layout, job_id)]
    else:
        ids = [job_id for job_id in wanted or [] if isinstance(job_id, str)]
    views = {}
    for job_id in ids:
        views[job_id] = settle.settle(layout, job_id, names) if JOB_ID.match(job_id) else None
    return views


def events(layout, wanted):
    """`{id: {next, items}}`: each job's journal from a byte offset on."""
    from .layout import JOB_ID

    found = {}
    for job_id, offset in (wanted or {}).items():
        if JOB_ID.match(job_id):
            path = os.path.join(layout.job(job_id), b"events.jsonl")
            items, following = files.read_lines(path, offset if isinstance(offset, int) and offset >= 0 else 0)
            found[job_id] = {"next": following, "items": items}
    return found


def disk(layout):
    """Room of the file system that the jobs lie on."""
    try:
        room = os.statvfs(layout.root)
    except OSError:
        return None
    return {
        "free_bytes": room.f_bavail * room.f_frsize,
        "total_bytes": room.f_blocks * room.f_frsize,
        "free_files": room.f_favail,
        "total_files": room.f_files,
    }


def card_report(layout, device=None, max_age_s=None, count=None):
    """The judged card report; see `cardview`, which is loaded only where cards are looked at."""
    from . import cardview

    return cardview.card_report(layout, device, max_age_s, count)
