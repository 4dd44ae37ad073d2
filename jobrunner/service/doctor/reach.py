"""The way to a host as a ladder of checks: what was passed, where it ended, and what was therefore not tried.

The transport's error codes say on which rung it ended.
"""

from __future__ import annotations

from jobrunner.core.errors import JobrunnerError
from jobrunner.core.values import dataclass
from jobrunner.service.doctor.finding import Check, Facts


@dataclass(frozen=True)
class Rung:
    """One step on the way to a host: its check's name, the codes of what can go wrong, what success means."""

    name: str
    codes: tuple[str, ...]
    passed: str


LADDER = (
    Rung("address", ("dns", "ssh_config", "no_host", "address", "usage"), "the name leads to an address"),
    Rung("port", ("refused", "unreachable", "proxy", "timeout"), "something answers there"),
    Rung("ssh", ("silent", "not_ssh", "throttled", "ssh", "connect"), "it is an SSH server"),
    Rung("host key", ("hostkey_unknown", "hostkey_changed", "hostkey_revoked", "hostkey"), "its key is the known one"),
    Rung("login", ("auth", "second_factor", "passphrase", "too_many_keys", "no_keys"), "it takes our key"),
    Rung("channels", ("sessions_full", "busy"), "it opens channels for commands"),
    Rung("shell", ("nologin", "shell_exits"), "the login shell runs commands"),
    Rung("python", ("no_python", "old_python"), "there is a Python"),
    Rung(
        "root",
        ("root_not_writable", "root_not_ours", "no_space", "read_only", "permission", "storage", "gone"),
        "the root folder can be used",
    ),
    Rung("agent", (), "the agent answers"),
)


def rung_of(error: JobrunnerError) -> int:
    """The number of the rung on which an error ended the way. What no rung names was the agent's fault."""
    if error.code == "timeout" and type(error).__name__ != "ConnectError":
        return len(LADDER) - 1  # an answer that did not come is no connect that did not come
    for number, rung in enumerate(LADDER):
        if error.code in rung.codes:
            return number
    return len(LADDER) - 1


def failed(error: JobrunnerError) -> list[Check]:
    """The checks of a host that could not be asked: passed, failed, and not reached."""
    at = rung_of(error)
    found = [Check(rung.name, True, rung.passed) for rung in LADDER[:at]]
    found.append(Check(LADDER[at].name, False, error.message, error.remedy))
    found += [Check(rung.name, None, f"not tried: {LADDER[at].name} failed") for rung in LADDER[at + 1 :]]
    return found


def passed(facts: Facts) -> list[Check]:
    """The checks of the rungs that have no rule of their own, of a host that answered."""
    link, host = facts.get("link") or {}, facts["host"]
    far = link.get("round_trip_ms") or 0.0
    told = {
        "address": f"{link.get('hostname', '?')} port {link.get('port', '?')}",
        "port": f"answers, {far:.0f} ms there and back",
        "ssh": "an SSH server" + (f"; it says {link['banner']!r}" if link.get("banner") else ""),
        "host key": f"it is the known one ({link['key_file']})" if link.get("key_file") else "it is the known one",
        "login": f"as {host.get('user')} on {host.get('hostname')}",
    }
    return [Check(name, True, found) for name, found in told.items()]
