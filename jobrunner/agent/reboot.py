"""`on_reboot: crontab`: one @reboot line of the user's crontab while jobs are queued here that ask for it.

The line runs a small file beside the queue, which starts the dispatcher if this is still the machine that the jobs are
on. Everything else in the crontab stays as it is.
"""

import os

from . import child, files, jobs, leases, queue
from .layout import Layout, lock_name

WORD = "crontab"
PATIENCE_S = 10.0
_ENVIRONMENT = (b"PATH", b"LD_LIBRARY_PATH", b"HOME", b"USER", b"LOGNAME", b"JOBRUNNER_LEASE_SCOPE")
_START = """\
import os
import sys

sys.path.insert(0, os.fsdecode({place!r}))
from {package}.reboot import main

main({root!r}, {instance!r})
"""


def wanted(entry):
    """True if a queue entry's job asks for the line. Pure."""
    return (entry.get("limits") or {}).get("on_reboot") == WORD


def keep(layout, job_id):
    """See that the line is there, for a job that has just been queued. What goes wrong is a warning of that job's."""
    try:
        files.write_file(layout.reboot_file(), _program(layout).encode("ascii"), sync=False)
        problem = _changed(layout, _line(layout))
    except (OSError, files.AgentError) as error:
        problem = getattr(error, "message", None) or str(error)
    if problem:
        text = "`on_reboot: crontab`: the queue will not go on by itself after a reboot: {}".format(problem)
        jobs.journal(layout, job_id, "warning", text=text)


def drop(layout):
    """Remove the line once no queued job asks for it."""
    try:
        if not _changed(layout, None):
            os.unlink(layout.reboot_file())
    except (OSError, files.AgentError):
        pass  # the line stays; at the next boot it finds an empty queue and is removed then


def main(root, instance):
    """After a boot: start the dispatcher of this machine's queue; if nothing is queued, remove the line."""
    from . import dispatcher
    from . import instance as machines

    layout = Layout(root, instance)
    entries = [jobs.read_dict(layout.queued(job_id)) for job_id in queue.names(layout)]
    for entry in entries:
        if entry and wanted(entry):
            _take_environment(layout, entry["id"])
            break
    if machines.attach(root).id != instance:
        return
    if not dispatcher.ensure_running(layout):
        drop(layout)


def _take_environment(layout, job_id):
    """What the dispatcher needs to find the vendors' tools: cron gives next to nothing."""
    path = os.path.join(layout.job(job_id), b"environ.json")
    recorded = {files.to_bytes(name): files.to_bytes(value) for name, value in (files.read_json(path) or {}).items()}
    os.environb.update({name: recorded[name] for name in _ENVIRONMENT if name in recorded})


def _program(layout):
    from . import procs

    place, package, _ = procs.agent_place()
    return _START.format(place=files.to_bytes(place), package=package, root=layout.root, instance=layout.instance)


def _line(layout):
    """The line. cron makes a line end of `%` unless a backslash stands before it."""
    import sys

    words = [files.to_bytes(sys.executable or "python3"), b"-E", b"-s", b"-S", layout.reboot_file()]
    command = b" ".join(b"'" + word.replace(b"'", b"'\\''") + b"'" for word in words)
    return b"@reboot " + command.replace(b"%", b"\\%") + b" " + _mark(layout)


def _mark(layout):
    return b"# jobrunner " + layout.instance.encode("ascii")


def edited(text, mark, line):
    """A crontab with our line (the one that ends with `mark`) as it should be, or without it (None). Pure."""
    lines = [old for old in text.split(b"\n") if not old.endswith(mark)]
    while lines and not lines[-1]:
        lines.pop()
    if line is not None:
        lines.append(line)
    return b"\n".join(lines) + b"\n" if lines else b""


def _changed(layout, line):
    """Bring the crontab to the wanted form, one process at a time; what is wrong as a text, or None.

    A line is only removed if nothing queued asks for it by then.
    """
    lock = leases.bind_patiently(lock_name(WORD, layout.instance), PATIENCE_S)
    if lock is None:
        return "another process has been changing the crontab for {:.0f} s".format(PATIENCE_S)
    try:
        if line is None and any(wanted(entry) for entry in queue.Cache(layout).entries()):
            return "it is still wanted"
        return child.run(_edit, layout, line) or None
    finally:
        leases.release([lock])


def _edit(layout, line):
    """In a process of its own: read the crontab, and write it if it is to be another. What is wrong, or ""."""
    import signal
    import subprocess

    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    environment = dict(os.environb)
    environment[b"LC_ALL"] = b"C"
    pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": environment}
    try:
        shown = subprocess.run(["crontab", "-l"], timeout=PATIENCE_S, **pipes)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "`crontab -l`: {}".format(getattr(error, "strerror", None) or error)
    said = shown.stderr.decode("utf-8", "replace").strip()
    if shown.returncode and not ("no crontab" in said or "No such file" in said):
        return "`crontab -l`: {}".format(said or "exit code {}".format(shown.returncode))
    old = b"" if shown.returncode else shown.stdout
    new = edited(old, _mark(layout), line)
    if new == old or not (new.strip() or old.strip()):
        return ""
    path = os.path.join(layout.home, b".crontab-" + os.urandom(4).hex().encode("ascii"))
    files.write_file(path, new, sync=False)
    try:
        done = subprocess.run([b"crontab", path if new else b"-r"], timeout=PATIENCE_S, **pipes)
    except (OSError, subprocess.TimeoutExpired) as error:
        return "`crontab FILE`: {}".format(getattr(error, "strerror", None) or error)
    finally:
        os.unlink(path)
    if done.returncode:
        return "`crontab FILE`: {}".format(done.stderr.decode("utf-8", "replace").strip() or "it failed")
    return ""
