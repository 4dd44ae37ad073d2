"""Tell a waiting job what only a client can know: how jobs on other hosts ended, and their checkpoints."""

import os

from . import dispatcher, files, jobs, queue, settle
from .files import AgentError


def run(session, request):
    """Operation `resolve`: note what is told, and let the queue look again."""
    layout = session.layout
    job_id = request.get("id") or ""
    if not jobs.exists(layout, job_id):
        raise AgentError("no_such_job", "{} is not on this host".format(job_id), "See `jobrunner ls --all`.")
    path = os.path.join(layout.job(job_id), b"after.json")
    told = merged(files.read_json(path) or {}, request)
    files.write_json(path, told)
    jobs.journal(layout, job_id, "resolved", after=told["after"])
    queue.wake(layout)
    dispatcher.ensure_running(layout)
    return {"jobs": {job_id: settle.settle(layout, job_id)}}


def merged(old, request):
    """What is known after a further telling. Final states never change: the first word on a job stays. Pure."""
    after, paths = dict(_table(request.get("after"))), dict(_table(request.get("checkpoints")))
    after.update(_table(old.get("after")))
    paths.update(_table(old.get("checkpoints")))
    return {"v": jobs.FORMAT, "after": after, "checkpoints": paths}


def _table(value):
    return {name: word for name, word in value.items() if isinstance(word, str)} if isinstance(value, dict) else {}
