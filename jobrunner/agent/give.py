"""Files that a client brings to a waiting job: the checkpoint of a job on another host. They lie in `given/<job>/`."""

import os

from . import blobs, files, jobs, manifest, worktree
from .files import AgentError
from .layout import JOB_ID

GIVEN = b"given"


def run(session, request):
    """Operation `give`: take a tree whose first name is the checkpoint's; `path` is where that is then.

    The exchange is that of `stage`. May be repeated: what was given before stays.
    """
    layout = session.layout
    job_id, other = request.get("id"), request.get("job")
    if not isinstance(job_id, str) or not jobs.exists(layout, job_id):
        raise AgentError("no_such_job", "{} is not on this host".format(job_id), "See `jobrunner ls --all`.")
    entries = manifest.check(request.get("manifest"))
    if not isinstance(other, str) or not JOB_ID.match(other) or not entries:
        raise AgentError("bad_request", "nothing to give, or of no job")
    wanted = manifest.contents(entries)
    files.make_dir(layout.blobs)
    need = blobs.missing(layout, wanted)
    size, names = manifest.total(entries)
    blobs.check_space(layout.root, sum(wanted[index][1] for index in need) + size, len(need) + names)
    session.send_json({"need": need})
    blobs.receive_all(layout, session, [wanted[index] for index in need])
    return {"path": files.to_text(place(layout, job_id, other, entries))}


def place(layout, job_id, other, entries):
    """Write the tree out, unless one of that job is there; the path of what it holds."""
    top = os.path.join(layout.job(job_id), GIVEN)
    target = os.path.join(top, files.to_bytes(other))
    if not os.path.isdir(target):
        aside = os.path.join(top, b".tmp-" + os.urandom(4).hex().encode())
        files.make_dir(aside)
        modes = worktree.write_tree(layout, entries, aside)
        for path, mode in sorted(modes, reverse=True):
            os.chmod(path, mode)
        try:
            os.rename(aside, target)
        except OSError:  # somebody else was quicker
            if not os.path.isdir(target):
                raise
    return os.path.join(target, files.to_bytes(entries[0][1]).partition(b"/")[0])
