"""What the runtime asks of the checkpoints, without which a job with no checkpoints pays nothing."""

from . import files


def take(layout, job_id):
    """Look for checkpoints, note them, and remove those that `keep` no longer wants."""
    from . import checkpoints

    checkpoints.note(layout, job_id)
    checkpoints.apply_keep(layout, job_id)
    return True


def newest(layout, job_id):
    """The path of the newest valid checkpoint of a job as text, or None."""
    from . import checkpoints

    found = checkpoints.newest_valid(layout, job_id)
    if isinstance(found, dict):
        found = found.get("full") or found.get("path")
    return files.to_text(found) if found else None
