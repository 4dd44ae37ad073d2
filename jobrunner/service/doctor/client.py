"""Checks of this machine: its Python, folders, ledger, programs, and the files that jobrunner reads.

`facts_of` looks, the rules judge. Values of secrets are never read.
"""

from __future__ import annotations

import os
import shutil
import socket
import stat
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jobrunner.core.amounts import counted
from jobrunner.core.errors import JobrunnerError, LedgerError, SecretError, SpecError, UsageError
from jobrunner.core.values import dataclass
from jobrunner.service.doctor.finding import Check, Finding, bad, good, size, unsure
from jobrunner.service.session import Session

THIS_MACHINE = "this machine"
OLDEST = (3, 10)
LOW_DISK = 500 * 2**20
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class LocalRule:
    """One row of the table of this machine: as `finding.Rule`, with the error that the command ends with."""

    name: str
    judge: Callable[[Facts], Finding]
    about: str
    error: Callable[[str, str], JobrunnerError] | None = None


def facts_of(session: Session) -> tuple[dict[str, Any], list[JobrunnerError]]:
    """What this machine is like, and the errors of files that cannot be used."""
    errors: list[JobrunnerError] = []
    state = _state(session.home)
    facts: dict[str, Any] = {
        "python": {"version": list(sys.version_info[:3]), "path": sys.executable},
        "state": state,
        "ledger": _ledger(session, errors) if not state["error"] else {"error": "the state folder cannot be used"},
        "hosts": _hosts(session, errors),
        "secrets": _mode(session.secrets_file),
        "programs": {name: shutil.which(name) for name in ("ssh", "git")},
        "ssh_agent": _ssh_agent(session.environ),
        "ssh_config": _ssh_config(session),
    }
    return facts, errors


def _state(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"path": str(home), "error": None, "remote": None, "free_bytes": None, "mode": None}
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=home):
            pass
        found["free_bytes"] = shutil.disk_usage(home).free
        found["mode"] = stat.S_IMODE(home.stat().st_mode) if os.name == "posix" else None
    except OSError as error:
        found["error"] = f"{error.strerror or error}"
        return found
    from jobrunner.ledger.disk import remote_file_system

    found["remote"] = remote_file_system(str(home))
    return found


def _ledger(session: Session, errors: list[JobrunnerError]) -> dict[str, Any]:
    try:
        return {"error": None, "path": str(session.home / "ledger.db"), "hosts": len(session.ledger.hosts())}
    except LedgerError as error:
        errors.append(error)
        return {"error": error.message, "remedy": error.remedy}


def _hosts(session: Session, errors: list[JobrunnerError]) -> dict[str, Any]:
    there = session.hosts_file.exists()
    try:
        return {"path": str(session.hosts_file), "there": there, "count": len(session.hosts.hosts), "problems": []}
    except SpecError as error:
        errors.append(error)
        return {
            "path": str(session.hosts_file),
            "there": there,
            "problems": [str(problem) for problem in error.problems],
        }
    except UsageError as error:
        errors.append(error)
        return {"path": str(session.hosts_file), "there": there, "problems": [error.message]}


def _mode(path: Path) -> dict[str, Any]:
    try:
        seen = path.stat()
    except OSError:
        return {"path": str(path), "there": False}
    ours = not hasattr(os, "geteuid") or seen.st_uid in (os.geteuid(), 0)
    return {
        "path": str(path),
        "there": True,
        "mode": stat.S_IMODE(seen.st_mode),
        "ours": ours,
        "posix": os.name == "posix",
    }


def _ssh_agent(environ: Mapping[str, str]) -> dict[str, Any]:
    path = environ.get("SSH_AUTH_SOCK")
    if not path or not hasattr(socket, "AF_UNIX"):
        return {"path": None, "answers": None}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(2.0)
            sock.connect(path)
        return {"path": path, "answers": True}
    except OSError:
        return {"path": path, "answers": False}


def _ssh_config(session: Session) -> dict[str, Any]:
    from jobrunner.transport.sshconfig import home_folder

    try:
        named = session.hosts.ssh_config
    except JobrunnerError:
        named = None
    named = named or session.environ.get("JOBRUNNER_SSH_CONFIG") or None
    path = Path(named).expanduser() if named else Path(home_folder(), ".ssh", "config")
    found: dict[str, Any] = {"path": str(path), "named": named is not None, "there": path.exists(), "error": None}
    if found["there"]:
        try:
            with path.open("rb") as file:
                file.read(1)
            found["mode"] = stat.S_IMODE(path.stat().st_mode)
        except OSError as error:
            found["error"] = error.strerror or str(error)
    return found


def _python(facts: Facts) -> Finding:
    version = tuple(facts["python"]["version"])
    found = f"{'.'.join(map(str, version))} at {facts['python']['path']}"
    return good(found) if version >= OLDEST else bad(found, "install jobrunner into a Python of 3.10 or newer")


def _state_folder(facts: Facts) -> Finding:
    told = facts["state"]
    if told["error"]:
        return bad(f"{told['path']}: {told['error']}", "make it writable, or set JOBRUNNER_HOME to another folder")
    if told["mode"] is not None and told["mode"] & 0o022:
        return bad(f"{told['path']} can be changed by others (mode {told['mode']:03o})", f"chmod 700 {told['path']}")
    return good(told["path"])


def _state_disk(facts: Facts) -> Finding:
    told = facts["state"]
    if told["error"]:
        return unsure("the state folder cannot be used")
    if told["remote"]:
        return unsure(
            f"{told['path']} is on {told['remote']}",
            "set JOBRUNNER_HOME to a folder on a local disk: SQLite's fast mode does not work over a network",
        )
    if told["free_bytes"] < LOW_DISK:
        return bad(f"{size(told['free_bytes'])} free", "make room: the ledger and pulled files lie there")
    return good(f"a local disk, {size(told['free_bytes'])} free")


def _ledger_opens(facts: Facts) -> Finding:
    told = facts["ledger"]
    if told["error"]:
        return bad(told["error"], told.get("remedy") or "`jobrunner adopt` rebuilds a lost ledger from the hosts")
    return good(told["path"])


def _hosts_file(facts: Facts) -> Finding:
    told = facts["hosts"]
    if told["problems"]:
        return bad("; ".join(told["problems"]), f"correct {told['path']} (`jobrunner schema hosts` is its form)")
    if not told["there"]:
        return unsure(
            f"{told['path']} is not there", "not needed for aliases of the SSH configuration; `jobrunner init`"
        )
    if not told["count"]:
        return unsure(f"{told['path']} names no host", "`jobrunner hosts add NAME`")
    return good(f"{counted(told['count'], 'host')} in {told['path']}")


def _secrets_file(facts: Facts) -> Finding:
    told = facts["secrets"]
    if not told["there"]:
        return good(f"{told['path']} is not there; secrets come from the environment")
    if told["posix"] and (told["mode"] & 0o077 or not told["ours"]):
        return bad(
            f"{told['path']} is open to others (mode {told['mode']:03o}) and is refused", f"chmod 600 {told['path']}"
        )
    return good(f"{told['path']} is for this user alone")


def _ssh_program(facts: Facts) -> Finding:
    path = facts["programs"]["ssh"]
    if path:
        return good(f"{path} is asked what the SSH configuration means")
    return unsure(
        "there is no ssh here", "not needed; without it Match exec and the like in the configuration are refused"
    )


def _git_program(facts: Facts) -> Finding:
    path = facts["programs"]["git"]
    return good(path) if path else unsure("there is no git here", "commit and branch of sent code will not be known")


def _agent(facts: Facts) -> Finding:
    told = facts["ssh_agent"]
    if told["path"] is None:
        return good("none is named; keys are read from their files")
    if told["answers"]:
        return good("it answers")
    return bad(f"SSH_AUTH_SOCK names {told['path']}, where nothing answers", "start a new one, or unset SSH_AUTH_SOCK")


def _configuration(facts: Facts) -> Finding:
    told = facts["ssh_config"]
    if told["error"]:
        return bad(f"{told['path']} cannot be read: {told['error']}", f"chmod 600 {told['path']}")
    if not told["there"]:
        if told["named"]:
            return bad(
                f"{told['path']} does not exist", "correct `ssh_config` in the hosts file or $JOBRUNNER_SSH_CONFIG"
            )
        return unsure(f"{told['path']} is not there", "not needed where the hosts file has `address`")
    if os.name == "posix" and told["mode"] & 0o022:
        return bad(f"{told['path']} can be changed by others (mode {told['mode']:03o})", f"chmod 600 {told['path']}")
    return good(told["path"])


RULES: tuple[LocalRule, ...] = (
    LocalRule("python", _python, "the Python that runs jobrunner"),
    LocalRule("state folder", _state_folder, "can be written, and by nobody else",
              lambda found, remedy: LedgerError(f"the state folder cannot be used: {found}", remedy=remedy)),
    LocalRule("ledger disk", _state_disk, "on a local disk with room"),
    LocalRule("ledger", _ledger_opens, "opens and is whole"),
    LocalRule("hosts file", _hosts_file, "is valid"),
    LocalRule("secrets file", _secrets_file, "is 0600, else it is refused",
              lambda found, remedy: SecretError(found, remedy=remedy, code="secrets_file")),
    LocalRule("ssh program", _ssh_program, "OpenSSH's own reading of the SSH configuration"),
    LocalRule("ssh configuration", _configuration, "there, readable, and changed by nobody else"),
    LocalRule("ssh agent", _agent, "the agent that the environment names answers"),
    LocalRule("git", _git_program, "tells the commit of sent code"),
)  # fmt: skip


def examine(facts: Facts) -> tuple[list[Check], list[JobrunnerError]]:
    """Every check of this machine, and errors for those that would stop a command."""
    checks, errors = [], []
    for rule in RULES:
        finding = rule.judge(facts)
        checks.append(Check(rule.name, finding.ok, finding.found, finding.remedy))
        if finding.ok is False and rule.error is not None and _stops(rule, facts):
            errors.append(rule.error(finding.found, finding.remedy))
    return checks, errors


def _stops(rule: LocalRule, facts: Facts) -> bool:
    return rule.name != "state folder" or bool(facts["state"]["error"])
