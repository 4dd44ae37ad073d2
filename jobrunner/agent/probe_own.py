"""Facts about what jobrunner itself needs on a host, and what is left of it there."""

import os
import time

from . import dispatcher, jobs, leases, queue, situation
from .files import read_file, to_text
from .layout import lock_name
from .probe import which
from .probe_deep import asked

NEEDED = ("_ctypes", "_socket", "fcntl", "hashlib", "json", "pwd", "resource", "select", "selectors", "signal", "ssl",
          "subprocess", "zipfile", "zlib")  # fmt: skip
WANTED_ONLY = ("ssl",)
SHELLS = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash")


def own(context):
    """The queue, its dispatcher, agents of other versions, and the last words of the agent's log."""
    layout = context.layout
    names = queue.names(layout)
    held = leases.held_names()
    path = os.path.join(layout.home, b"agent.log")
    log = read_file(path) or b""
    lines = [line for line in log.splitlines() if line.strip()]
    agents = [name for name in _names(layout.agents) if name.endswith(b".pyz")]
    live = [job_id for job_id in jobs.all_ids(layout) if not jobs.is_final(layout, job_id)]
    return {
        "agent": context.agent, "agents": len(agents), "drained": situation.drained(layout),
        "queued": len(names), "held": sum(1 for name in names if _is_held(layout, name)), "live": len(live),
        "dispatcher": dispatcher.lock_of(layout) in held,
        "unguarded": [to_text(job_id) for job_id in live if _unguarded(layout, job_id, held)],
        "log": to_text(lines[-1][:300]) if lines else None,
        "log_age_s": round(time.time() - os.stat(path).st_mtime) if lines else None,
        "half_made": sum(1 for name in _names(layout.jobs) if name.startswith(b".")),
    }  # fmt: skip


def _is_held(layout, name):
    return bool((jobs.read_dict(layout.queued(to_text(name))) or {}).get("hold"))


def _unguarded(layout, job_id, held):
    """True for a job that has begun and not ended while nobody holds its lock: no supervisor watches it."""
    return jobs.running_start(layout, job_id) is not None and layout.job_lock(to_text(job_id)) not in held


def _names(folder):
    try:
        return os.listdir(folder)
    except OSError:
        return []


def modules(context):
    """Modules of the host's own Python that the agent needs and that are missing (a build without their headers)."""
    import importlib

    missing = []
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError:
            missing.append(name)
    return {"missing": [name for name in missing if name not in WANTED_ONLY],
            "unused": [name for name in missing if name in WANTED_ONLY]}  # fmt: skip


def locks(context):
    """Whether the kernel's names work as leases: one is bound, seen in /proc/net/unix, and refused a second time."""
    name = lock_name("doctor", context.layout.instance, os.urandom(6).hex())
    lock = leases.bind(name)
    if lock is None:
        return {"binds": False, "shows": False, "excludes": False}
    try:
        again = leases.bind(name)
        if again is not None:
            leases.release([again])
        return {"binds": True, "shows": name in leases.held_names(), "excludes": again is None,
                "private_network": _private_network()}  # fmt: skip
    finally:
        leases.release([lock])


def _private_network():
    """True if our network name space is another than that of process 1; null where that cannot be seen."""
    try:
        return os.readlink("/proc/self/ns/net") != os.readlink("/proc/1/ns/net")
    except OSError:
        return None


def crontab(context):
    """Whether a line for the next boot could be kept: the program `crontab`, what it says, and a running cron."""
    tool = which("crontab")
    if tool is None:
        return {"tool": None, "allowed": None, "running": None}
    answer = asked([tool, "-l"], context)
    text = answer.out + answer.err
    empty = "no crontab for" in text
    allowed = None if answer.hung or answer.failure else answer.code == 0 or empty
    running = any(_comm(name) in ("cron", "crond", "anacron", "systemd-cron", "fcron") for name in os.listdir("/proc"))
    return {"tool": tool, "allowed": allowed, "said": "" if allowed else text.strip()[:200], "running": running}


def _comm(name):
    if not name.isdigit():
        return ""
    try:
        with open("/proc/{}/comm".format(name), "rb") as file:
            return file.read(64).decode("ascii", "replace").strip()
    except OSError:
        return ""


def programs(context):
    """Paths of the programs that jobs lean on; null where a program is not there."""
    bash = next((path for path in SHELLS if os.access(path, os.X_OK)), None)
    found = {name: which(name) for name in ("env", "git", "conda", "nohup", "setsid")}
    found["bash"] = bash
    return found
