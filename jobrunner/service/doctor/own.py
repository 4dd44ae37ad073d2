"""Rules about what jobrunner itself leans on: shell, Python, launchers, leases, the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobrunner.core.amounts import counted
from jobrunner.service.doctor.finding import Facts, Finding, bad, good, part, unsure

if TYPE_CHECKING:
    from jobrunner.core.inventory import Host

RESTRICTED = ("rbash", "rksh", "rzsh", "rssh", "git-shell", "scponly", "lshell")
OLD_LOG_S = 7 * 86400


def shell(facts: Facts, declared: Host) -> Finding:
    """A start-up file that prints breaks scp, rsync and sftp, and stands before every answer."""
    notes = [str(note) for note in facts.get("notes") or []]
    if notes:
        remedy = "let the start-up file print only for terminals: put `case $- in *i*) ;; *) return;; esac` at its top"
        return bad(notes[0], remedy)
    return good("prints nothing by itself")


def login_shell(facts: Facts, declared: Host) -> Finding:
    """Which shell sshd gives commands to. Ours goes through any; set-up lines and commands are bash's."""
    path = str(facts["probe"].get("shell") or "")
    name = path.rpartition("/")[2]
    if name in RESTRICTED:
        return bad(f"{path} is a restricted shell", "ask for bash (`chsh -s /bin/bash`): jobs may not find programs")
    if name in ("csh", "tcsh", "fish", "nu", "xonsh"):
        return good(f"{path}; set-up lines and commands of jobs are run by bash all the same")
    return good(path) if path else unsure("the host does not say")


def python(facts: Facts, declared: Host) -> Finding:
    """The interpreter of the agent."""
    told = part(facts, "python")
    return good(f"{told['version']} at {told['path']}")


def modules(facts: Facts, declared: Host) -> Finding:
    """A Python built without some headers lacks modules that the agent cannot do without."""
    missing = part(facts, "modules")["missing"]
    if missing:
        return bad(
            f"the host's Python lacks {', '.join(missing)}",
            f"name another interpreter (`python:` of {declared.name} in the hosts file), such as the system's own",
        )
    return good("the agent has all that it needs")


def bash(facts: Facts, declared: Host) -> Finding:
    """Set-up lines and commands that are a string are bash's."""
    path = part(facts, "programs").get("bash")
    if path is None:
        return bad(
            "there is none in /bin, /usr/bin or /usr/local/bin", "install bash: set-up lines and commands need it"
        )
    return good(str(path))


def tmux(facts: Facts, declared: Host) -> Finding:
    """Needed for `launcher: tmux` and `attach` only."""
    told = part(facts, "tmux")
    wanted = declared.launcher == "tmux"
    remedy = "install tmux; needed for `launcher: tmux` and attach only (nohup needs nothing)"
    if not told["path"]:
        return bad("not on the PATH of commands", remedy) if wanted else unsure("not on the PATH of commands", remedy)
    if told.get("error"):
        return bad(f"{told['path']} does not run: {told['error']}", "mend or remove it; `launcher: nohup` needs none",
                   stops=wanted)  # fmt: skip
    digits = "".join(char if char.isdigit() or char == "." else " " for char in str(told.get("version") or "")).split()
    if digits and tuple(int(word) for word in digits[0].split(".")[:2] if word) < (2, 1):
        return bad(
            f"{told['version']} at {told['path']}", "install 2.1 or newer, or use `launcher: nohup`", stops=wanted
        )
    return good(f"{told['version']} at {told['path']}")


def logout(facts: Facts, declared: Host) -> Finding:
    """logind may end everything of a user when the last session ends, whatever started it."""
    told = part(facts, "login")
    if told.get("kill_user_processes") and not told.get("linger"):
        return bad(
            "logind ends a user's processes at logout (KillUserProcesses=yes, no linger)",
            "`loginctl enable-linger` on the host, or ask its administrator for it",
        )
    return good("processes live on after logout" + (" (linger)" if told.get("linger") else ""))


def channels(facts: Facts, declared: Host) -> Finding:
    """sshd's MaxSessions: logs, waiting and commands use a channel each on one connection."""
    told = facts.get("sessions") or {}
    if not told:
        return unsure("not tried")
    found = f"{told['opened']} at once on one connection"
    if told["opened"] >= told["asked"]:
        return good(found)
    if told.get("full"):
        return bad(found, "ask for `MaxSessions 10` (4 at least) in sshd_config: following a log may be refused")
    return unsure(f"{found}; a further one failed: {told.get('error')}", "try again; the host may be busy")


def leases(facts: Facts, declared: Host) -> Finding:
    """A card's lease is a name of the kernel; it must exclude, and must be seen."""
    told = part(facts, "leases")
    if not told["binds"] or not told["excludes"] or not told["shows"]:
        missing = (
            "cannot be taken" if not told["binds"] else "do not exclude" if not told["excludes"] else "are not seen"
        )
        return bad(
            f"names of the kernel (abstract Unix sockets) {missing} here",
            "a sandbox (gVisor, SELinux, AppArmor) takes them away: jobs cannot share cards on this host",
        )
    return good("the kernel keeps cards apart")


def lease_space(facts: Facts, declared: Host) -> Finding:
    """Leases are shared by all in one network name space: a container with its own sees none of the host's."""
    private = part(facts, "leases").get("private_network")
    container = bool(facts["probe"].get("container"))
    if private or (container and private is None):
        where = "a container" if container else "a network name space of its own"
        return unsure(
            f"this session runs in {where}: leases hold only among those in the same network",
            "if others use the machine's cards from outside, start the container with `--network host`",
        )
    return good("leases are seen by all users of this machine")


def notifications(facts: Facts, declared: Host) -> Finding:
    """With the kernel's word about changed folders, jobs start at once."""
    if facts["probe"].get("notify"):
        return good("the kernel tells about changes: starts are immediate")
    return unsure("the kernel does not tell about changes here", "starts may take seconds longer; nothing else")


def agent(facts: Facts, declared: Host) -> Finding:
    """The agent that answered is the one of this version."""
    trouble = facts.get("probe_error")
    if trouble is not None:
        return bad(f"it could not tell about the host: {trouble.message}", trouble.remedy or "try again", stops=True)
    told, wanted = facts["host"].get("agent"), facts.get("agent")
    others = max(0, (part(facts, "own").get("agents") or 1) - 1)
    if wanted and told and told != wanted:
        return bad(f"{told} answered, not {wanted}", "remove `agent/` in the root folder; it is sent anew")
    found = str(told or "?") + (f"; beside it {counted(others, 'other version')}" if others else "")
    if others > 20:
        return unsure(found, f"`jobrunner gc {declared.name}` removes those that no job names")
    return good(found)


def queue(facts: Facts, declared: Host) -> Finding:
    """Left-overs: a queue that nobody serves, jobs that nobody watches, a drain that was forgotten."""
    told = part(facts, "own")
    waiting = told["queued"] - told["held"]
    if told["unguarded"]:
        ids = ", ".join(told["unguarded"][:3])
        return bad(
            f"nobody watches {ids}", "`jobrunner ls` settles it; if it stays so, see agent.log on the host", stops=False
        )
    if waiting > 0 and not told["dispatcher"]:
        said = f"; its log ends: {told['log']}" if told.get("log") else ""
        return bad(
            f"no dispatcher runs, and {counted(waiting, 'job')} should start{said}",
            "`jobrunner ls` starts it; see agent.log on the host",
        )
    if told.get("log") and (told.get("log_age_s") or 0) < OLD_LOG_S:
        return unsure(
            f"{told['queued']} queued; agent.log says: {told['log']}", "please report it if a job was lost by it"
        )
    busy = f"{told['queued']} queued, {told['live']} not finished" if told["live"] else "empty"
    return good(busy + (f" ({told['held']} held)" if told["held"] else ""))


def drained(facts: Facts, declared: Host) -> Finding:
    """A drained host starts none of our jobs."""
    if part(facts, "own").get("drained"):
        return unsure("drained: none of your jobs starts here", f"`jobrunner hosts undrain {declared.name}`")
    return good("your jobs may start here")


def on_reboot(facts: Facts, declared: Host) -> Finding | None:
    """`on_reboot: crontab` needs crontab, the permission, and a cron that runs."""
    if declared.on_reboot != "crontab":
        return None
    told = part(facts, "crontab")
    remedy = (
        "`on_reboot: none` in the hosts file, or ask for cron: else the queue waits for your next visit after a boot"
    )
    if told.get("tool") is None:
        return bad("there is no crontab", remedy)
    if not told.get("allowed"):
        return bad(f"crontab refuses: {told.get('said') or 'no answer'}", remedy)
    return good(str(told["tool"])) if told.get("running") else bad("no cron runs", remedy)
