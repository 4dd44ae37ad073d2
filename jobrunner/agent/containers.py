"""Containers of jobs: found by their label, reached by their name. A container is no child of ours."""

from . import files, procs
from .runtime import LABEL


def ask(words):
    """What `docker WORDS…` prints, or None if it failed or is not there."""
    status, output = procs.output(["docker", *list(words)], procs.own_environment())
    return output if status == 0 else None


def of_job(job_id):
    """The ids of a job's live containers; empty also where docker cannot be asked."""
    output = ask(["ps", "--quiet", "--no-trunc", "--filter", "label={}={}".format(LABEL, job_id)])
    return [files.to_text(line) for line in (output or b"").split()]


def living_jobs():
    """The ids of all jobs that have a live container."""
    output = ask(["ps", "--no-trunc", "--filter", "label=" + LABEL, "--format", '{{.Label "' + LABEL + '"}}'])
    return {files.to_text(line) for line in (output or b"").split()}


def signal_job(job_id, name):
    """Send a signal (`TERM`, `KILL`) to a job's containers. Returns how many there were."""
    found = of_job(job_id)
    if found:
        ask(["kill", "--signal", name, *found])
    return len(found)
