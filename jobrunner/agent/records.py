"""Everything that this machine's files say about its jobs, so that a lost ledger can be made anew."""

import json
import os

from . import checkpoints, jobs, settle
from .files import AgentError, read_lines
from .working import Working

PAGE = 24 * 1024 * 1024


def run(session, request):
    """Operation `records`: `jobs` is a list of ids, `live` or `all`. A long answer ends early and names `next`."""
    layout = session.layout
    ids = chosen(layout, request.get("jobs", "all"))
    begin = request.get("from")
    if isinstance(begin, str):
        ids = [job_id for job_id in ids if job_id >= begin]
    found = {}
    size = 0
    working = Working(session)
    for job_id in ids:
        working()
        if size > PAGE:
            return {"jobs": found, "next": job_id}
        found[job_id] = record_of(layout, job_id)
        size += len(json.dumps(found[job_id]))
    return {"jobs": found, "next": None}


def chosen(layout, wanted):
    """The ids meant, sorted; AgentError `bad_request` for anything but a list, `live` or `all`."""
    if wanted == "all":
        return jobs.all_ids(layout)
    if wanted == "live":
        return [job_id for job_id in jobs.all_ids(layout) if not jobs.is_final(layout, job_id)]
    if not isinstance(wanted, list) or not all(isinstance(job_id, str) for job_id in wanted):
        raise AgentError("bad_request", "jobs has to be a list of ids, `live` or `all`")
    for job_id in wanted:
        layout.job(job_id)
    return sorted(set(wanted))


def record_of(layout, job_id):
    """Request, view, attempts, events and checkpoints of a job; None if it is not here. No secret is in any of them."""
    request = jobs.request(layout, job_id)
    if request is None:
        return None
    view = settle.settle(layout, job_id)
    events, _ = read_lines(os.path.join(layout.job(job_id), b"events.jsonl"), limit=1024 * 1024)
    return {
        "request": request,
        "view": view,
        "attempts": (view or {}).get("attempts") or [],
        "events": events,
        "checkpoints": checkpoints.listing(layout, job_id),
    }
