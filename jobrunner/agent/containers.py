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


def owners(pids):
    """`{pid: job id}` of those processes that run in a container of a job, by their control groups."""
    output = ask(["ps", "--no-trunc", "--filter", "label=" + LABEL, "--format", '{{.ID}} {{.Label "' + LABEL + '"}}'])
    jobs = dict(line.split(None, 1) for line in files.to_text(output or b"").splitlines() if " " in line.strip())
    found = {}
    for pid in pids if jobs else ():
        try:
            with open("/proc/{}/cgroup".format(pid)) as groups:
                text = groups.read(1 << 16)
        except (OSError, ValueError):
            continue
        found.update((pid, jobs[container].strip()) for container in jobs if container in text)
    return found
