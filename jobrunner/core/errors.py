"""Every error that jobrunner shows to a person.

    JobrunnerError
    ├── UsageError            exit 2   a wrong command line, value or spec
    │   └── SpecError         exit 2   a spec or hosts file, with every problem at once
    ├── HostError             exit 3   a host or the way to it
    │   ├── ConnectError               name unknown, refused, silent, throttled, not SSH
    │   ├── HostKeyError               unknown, changed or revoked host key
    │   ├── AuthError                  the host turned every key down
    │   ├── LinkLostError              an open connection died
    │   ├── AgentError                 the agent answered with an error of its own
    │   └── HostSetupError             no usable python, shell, folder or space on the host
    ├── LedgerError           exit 4   the ledger cannot be read or written
    ├── NotFoundError         exit 5   no such job, host or checkpoint
    └── SecretError           exit 2   a secret that a job needs is not to be had

Exit 1 is not an error: a job that was waited for did not complete. A message says what was being done, to
what, and what came back; the remedy says what to do now.
"""

from __future__ import annotations

from jobrunner.core.values import dataclass


class JobrunnerError(Exception):
    """Base of all errors shown to a person.

    `code` is a stable word for programs (`--json`), `remedy` one sentence on what to do now.
    """

    exit_code = 1
    default_code = "error"

    def __init__(self, message: str, *, remedy: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.code = code or self.default_code

    def as_json(self) -> dict[str, str]:
        """The shape that `--json` prints in `errors[]`."""
        return {"code": self.code, "message": self.message, "remedy": self.remedy}


class UsageError(JobrunnerError):
    """A command line or value that cannot mean anything."""

    exit_code = 2
    default_code = "usage"


@dataclass(frozen=True)
class Problem:
    """One fault in a file: where it stands (1-based line and column), what was found, the nearest valid word."""

    file: str
    line: int | None
    column: int | None
    message: str
    suggestion: str = ""
    code: str = "spec"

    def __str__(self) -> str:
        place = self.file
        if self.line is not None:
            place += f":{self.line}"
            if self.column is not None:
                place += f":{self.column}"
        hint = f" (did you mean {self.suggestion!r}?)" if self.suggestion else ""
        return f"{place}: {self.message}{hint}"


class SpecError(UsageError):
    """A spec or hosts file was refused; `problems` holds every fault in it."""

    default_code = "spec"

    def __init__(self, problems: list[Problem], *, remedy: str = "") -> None:
        self.problems = problems
        super().__init__("\n".join(str(p) for p in problems), remedy=remedy)


class SecretError(UsageError):
    """A secret that a job needs is not in the environment, nor in secrets.env."""

    default_code = "secret_missing"


class HostError(JobrunnerError):
    """A host, or the way to it. `host` is its alias."""

    exit_code = 3
    default_code = "host"

    def __init__(self, message: str, *, host: str = "", remedy: str = "", code: str = "") -> None:
        super().__init__(message, remedy=remedy, code=code)
        self.host = host


class ConnectError(HostError):
    """No SSH connection. Codes: dns, refused, timeout, silent, not_ssh, throttled, proxy, unreachable."""

    default_code = "connect"


class HostKeyError(HostError):
    """The host's key is unknown, changed or revoked. Codes: hostkey_unknown, hostkey_changed, hostkey_revoked."""

    default_code = "hostkey"


class AuthError(HostError):
    """The host turned every key down. Codes: auth, passphrase, too_many_keys, no_keys."""

    default_code = "auth"


class LinkLostError(HostError):
    """A connection that was open has died; nothing is known about what the host did meanwhile."""

    default_code = "link_lost"


class AgentError(HostError):
    """The agent on the host answered with an error of its own; its code is passed on."""

    default_code = "agent"


class HostSetupError(HostError):
    """The host cannot run jobs as it is. Codes: no_python, old_python, nologin, shell_exits, root_not_writable,
    no_space, no_tmux, other_machine."""

    default_code = "host_setup"


class LedgerError(JobrunnerError):
    """The ledger cannot be read or written."""

    exit_code = 4
    default_code = "ledger"


class NotFoundError(JobrunnerError):
    """No such job, host, attempt or checkpoint."""

    exit_code = 5
    default_code = "not_found"
