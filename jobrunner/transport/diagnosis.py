"""Why the agent did not start: what the login shell printed and how it ended, read for a person. Pure."""

from __future__ import annotations

import re

from jobrunner.core.errors import HostError, HostSetupError
from jobrunner.core.values import dataclass

_START_FILES = {
    "bash": "~/.bashrc",
    "zsh": "~/.zshenv",
    "fish": "~/.config/fish/config.fish",
    "tcsh": "~/.tcshrc or ~/.cshrc",
    "csh": "~/.cshrc",
    "ksh": "the file named by $ENV",
}
_NO_COMMAND = re.compile(r"not found|unknown command|no such file|cannot execute|permission denied", re.I)
_NOLOGIN = re.compile(r"not available|nologin|account .*(disabled|expired|locked)|no (usable )?shell", re.I)


@dataclass(frozen=True)
class Silence:
    """What came instead of the agent: output before the fence, standard error, exit code (None: still running)."""

    out: str
    err: str
    exit_code: int | None
    seconds: float


def start_file(shell: str) -> str:
    """The file that a login shell reads for every command, as far as it can be told from its path."""
    return _START_FILES.get(shell.rpartition("/")[2], "its start-up file")


def shown(text: str, limit: int = 300) -> str:
    """Text of a host on one line, without control characters, cut to its last part."""
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07", "", text)
    text = " / ".join(
        line.strip() for line in re.sub(r"[^\S\n]|[\x00-\x09\x0b-\x1f\x7f]", " ", text).splitlines() if line.strip()
    )
    return text if len(text) <= limit else "…" + text[-limit:]


def why_no_agent(alias: str, python: str, silence: Silence) -> HostError:
    """The error for a channel on which the agent never spoke."""
    said = shown(silence.err or silence.out)
    told = f": {said}" if said else ""
    word = python.rpartition("/")[2]
    errors = [line for line in silence.err.splitlines() if word in line and _NO_COMMAND.search(line)]
    if silence.exit_code is None:
        return HostSetupError(
            f"nothing came from {alias} within {silence.seconds:.0f} s: its login shell did not run our command{told}",
            host=alias,
            code="shell_exits",
            remedy="A start-up file there (~/.bashrc, ~/.zshenv, …) waits, or replaces the shell (`exec zsh`); it must "
            "do so only in interactive shells.",
        )
    if errors or silence.exit_code == 127:
        return HostSetupError(
            f"{alias} has no {python}: {shown(errors[0]) if errors else said or 'command not found'}",
            host=alias,
            code="no_python",
            remedy="Install Python 3.6 or newer there, or give its path as `python` in the hosts file.",
        )
    if silence.exit_code == 0 and not said:
        return HostSetupError(
            f"the login shell of {alias} ended without running our command",
            host=alias,
            code="shell_exits",
            remedy="A start-up file there (~/.bashrc, ~/.zshenv, …) calls `exit`; only interactive shells may do so.",
        )
    if _NOLOGIN.search(silence.out + silence.err) or (silence.exit_code == 1 and silence.out and not silence.err):
        return HostSetupError(
            f"the account on {alias} has no usable shell{told}",
            host=alias,
            code="nologin",
            remedy="Ask its administrator for a login shell.",
        )
    return HostSetupError(
        f"the agent did not start on {alias} (exit code {silence.exit_code}){told}",
        host=alias,
        code="shell_exits",
        remedy=f"Run `ssh {alias} {python} -V` by hand: it must print a version, 3.6 or newer.",
    )


def from_status(alias: str, root: str, python: str, status: str) -> HostError | None:
    """The error that a status line of the bootstrap means; None for one that means all is well."""
    kind, _, text = status.partition(" ")
    if kind in ("H", "W"):
        return None
    if kind == "V":
        return HostSetupError(
            f"{python} on {alias} is Python {text}; the agent needs 3.6 or newer",
            host=alias,
            code="old_python",
            remedy="Give the path of a newer one as `python` in the hosts file.",
        )
    if kind == "X":
        full = "space" in text.lower() or "quota" in text.lower()
        return HostSetupError(
            f"the folder {root} on {alias} cannot be used: {text}",
            host=alias,
            code="no_space" if full else "root_not_writable",
            remedy="Free some space there, or give another `root` in the hosts file."
            if full
            else "Give another folder as `root` in the hosts file.",
        )
    return HostSetupError(
        f"{alias} answered the start of the agent with {status[:80]!r}",
        host=alias,
        code="shell_exits",
        remedy="Something on the host changes what programs print; compare `ssh HOST echo hello`.",
    )
