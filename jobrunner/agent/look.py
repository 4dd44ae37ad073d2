"""One answer about the whole host: jobs, their events, the cards, the disk."""

import os
import time

from . import dispatcher, files, jobs, leases, settle, situation

CARD_AGE_S = 5.0


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
    }
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
    """The judged card report: the dispatcher's last one if it is not older than `max_age_s`, else a new one."""
    from . import cards, procs, readings
    from .accelerators import KINDS
    from .accelerators.seen import read_leases

    age = CARD_AGE_S if max_age_s is None else float(max_age_s)
    report = None if count else _kept(layout, device, age)
    if report is None:
        began = time.time()
        report = cards.fallback_report(device, int(count)) if count else cards.read_cards(device)
        if not count and report.get("cards"):
            files.make_dir(layout.home)
            files.write_json(
                readings.report_path(layout, report.get("device")), {"at": began, "report": report}, sync=False
            )
    kind = report.get("device")
    families = procs.carriers()
    owned = {job_id: [process.pid for process in members] for job_id, members in families.items()}
    held = read_leases(kind) if kind in KINDS else []
    return cards.judge(report, held + kept_by_processes(layout, kind, held, families), owned)


def _kept(layout, device, age_s):
    """The last full report that is fresh enough; with no device named, of any."""
    from . import readings
    from .accelerators import KINDS

    newest = None
    for kind in [device] if device else sorted(KINDS):
        kept = files.read_json(readings.report_path(layout, kind))
        at = kept.get("at") if isinstance(kept, dict) else None
        if isinstance(at, (int, float)) and 0 <= time.time() - at <= age_s and (newest is None or at > newest["at"]):
            newest = kept
    return newest["report"] if newest and newest["report"].get("cards") else None


def kept_by_processes(layout, device, held, families):
    """Leases in all but name: cards of our jobs whose processes live while the kernel's name is free."""
    named = {lease["index"] for lease in held}
    found = []
    for job_id in families:
        start = jobs.running_start(layout, job_id) or {}
        for index in start.get("cards") or () if start.get("device") == device else ():
            if index not in named:
                found.append(
                    {"index": index, "user": None, "job": job_id, "name": start.get("name"), "since": start.get("at")}
                )
    return found
