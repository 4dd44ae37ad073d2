"""What the runtime asks of the metrics and checkpoints, without which a job that has none pays nothing."""

from . import files, jobs


def take(layout, job_id, ended):
    """Collect metrics; look for checkpoints, note them, and remove those that `keep` no longer wants."""
    run = jobs.run_of(jobs.request(layout, job_id))
    if run.get("metrics"):
        from . import metrics

        metrics.refresh(layout, {job_id: ended})
    if (run.get("checkpoints") or {}).get("paths"):
        from . import checkpoints

        checkpoints.note(layout, job_id)
        checkpoints.apply_keep(layout, job_id)


def newest(layout, job_id):
    """The path of the newest valid checkpoint of a job as text, or None."""
    from . import checkpoints

    found = checkpoints.newest_valid(layout, job_id)
    if isinstance(found, dict):
        found = found.get("full") or found.get("path")
    return files.to_text(found) if found else None
