"""What OpenSSH's client writes to standard error while it connects (LogLevel DEBUG1), read for us. Pure but for files.

Its exit code is 255 for everything; the text tells the stage that it reached and what went wrong there. The errors are
those that the other transport raises for the same causes.
"""

from __future__ import annotations

import os
import re
from dataclasses import field
from typing import Literal

from jobrunner.core.errors import AuthError, ConnectError, HostError, HostKeyError, LinkLostError
from jobrunner.core.values import dataclass
from jobrunner.transport.dial import no_answer
from jobrunner.transport.hostkeys import HostKey, KnownHosts, Verdict, refusal
from jobrunner.transport.settings import HostTarget

Stage = Literal["connect", "handshake", "login", "in"]
KEEP = 200  # lines

_KEY_SHOWN = re.compile(r"debug1: Server host key: (\S+) (SHA256:\S+)")
_OFFERED = re.compile(r"debug1: (Offering public|Trying private) key: (.+?)(?: [A-Z0-9-]+ SHA256:\S+.*)?$")
_DENIED = re.compile(r"Permission denied \(([^)]*)\)")
_THROTTLED = (
    "kex_exchange_identification: connection closed",
    "kex_exchange_identification: read: connection reset",
    "ssh_exchange_identification: connection closed",
    "ssh_exchange_identification: read: connection reset",
    "exceeded maxstartups",
    "not allowed at this time",
)


@dataclass
class Heard:
    """The lines so far, and what they mean."""

    lines: list[str] = field(default_factory=list)
    stage: Stage = "connect"
    shown_key: tuple[str, str] | None = None
    offered: list[str] = field(default_factory=list)
    partial: bool = False
    elsewhere: bool = False  # another master has the control socket already
    banner: list[str] = field(default_factory=list)
    took: dict[str, float] = field(default_factory=dict)  # seconds by phase

    def add(self, line: str) -> bool:
        """Take in a line; True if it is meant for a person, not for us."""
        self.lines = [*self.lines[-KEEP:], line]
        if line.startswith("debug1: "):
            self._note(line)
            return False
        if line.startswith("Authenticated using ") and "partial success" in line:
            self.partial = True
            return False
        if line.startswith("Authenticated to "):
            self.stage = "in"
            return False
        if "disabling multiplexing" in line:
            self.elsewhere = True
            return False
        if self.stage == "login":
            self.banner.append(line)
        return True

    def _note(self, line: str) -> None:
        text = line.removeprefix("debug1: ")
        if text.startswith("Connection established"):
            self.stage = "handshake"
        elif text.startswith("SSH2_MSG_NEWKEYS received"):
            self.stage = "login"
        elif text.startswith("Authentication succeeded"):
            self.stage = "in"
        elif found := _KEY_SHOWN.match(line):
            self.shown_key = (found[1], found[2])
        elif (found := _OFFERED.match(line)) and (found[1].startswith("Offering") or os.path.isfile(found[2])):
            # It "tries" every file whose public half it does not have, also such as are not there.
            self.offered += [found[2]] if found[2] not in self.offered else []

    @property
    def greeting(self) -> str:
        """What stood where an SSH server greets, if it was something else."""
        found = (line.partition("banner line 0: ")[2] for line in self.lines if "banner line 0: " in line)
        return next(found, "").strip()

    @property
    def words(self) -> str:
        """What it said to a person, on one line."""
        lines = [line.strip() for line in self.lines if not line.startswith("debug") and line.strip()]
        return " / ".join(lines[-4:])[-400:]


class _Shown(HostKey):
    """A key of which only type and fingerprint are known."""

    @property
    def fingerprint(self) -> str:
        return self.blob.decode("ascii", "replace")


def failure(target: HostTarget, heard: Heard) -> HostError:
    """The error for an `ssh` that ended without a connection."""
    text = "\n".join(line for line in heard.lines if not line.startswith("debug"))
    low = text.lower()
    denied = _DENIED.search(text)
    if (target.config.proxy_jump or target.config.proxy_command) and heard.shown_key is None:
        return _proxy(target, heard)  # the host itself has not been heard of
    if "host key verification failed" in low or "host key is marked as revoked" in low:
        return _host_key(target, heard, low)
    if "too many authentication failures" in low and heard.stage != "in":
        return _too_many(target, heard)
    if denied or "no more authentication methods" in low:
        return _denied(target, heard, denied[1].split(",") if denied else [])
    greeting = heard.greeting.lower()
    if greeting and not any(words in greeting for words in _THROTTLED):
        return _not_ssh(target, heard)
    if greeting or any(words in low for words in _THROTTLED):
        return _throttled(target, heard)
    if "unable to negotiate" in low or "banner line contains invalid" in low or "invalid format" in low:
        return _not_ssh(target, heard)
    return _network(target, heard, low)


def _place(target: HostTarget) -> str:
    return f"{target.alias} ({target.config.hostname} port {target.config.port})"


def _who(target: HostTarget) -> str:
    return f"{target.config.user} at {_place(target)}"


def _host_key(target: HostTarget, heard: Heard, low: str) -> HostKeyError:
    kind, print_ = heard.shown_key or ("", "a key that ssh does not name")
    offered = _Shown(kind, print_.encode("ascii", "replace"))
    known = KnownHosts(target.config)
    plain = [entry for entry in known.entries or known.portless if not entry.marker]
    same = [entry for entry in plain if entry.key.type == kind]
    if "revoked" in low:
        return refusal(target.config, Verdict("revoked", offered, None, "as ssh says"))
    if "identification has changed" in low and plain:
        return refusal(target.config, Verdict("changed", offered, (same or plain)[0]))
    return refusal(target.config, Verdict("unknown", offered))


def _too_many(target: HostTarget, heard: Heard) -> AuthError:
    count = len(heard.offered)
    return AuthError(
        f"the server refused {_who(target)} after {count} key{'s' if count != 1 else ''}: too many failures",
        host=target.alias,
        code="too_many_keys",
        remedy=f"Name the right key for {target.alias} in the SSH configuration: IdentityFile, and IdentitiesOnly yes.",
    )


def _denied(target: HostTarget, heard: Heard, allowed: list[str]) -> AuthError:
    others = [name for name in allowed if name and name not in ("publickey", "gssapi-with-mic", "hostbased")]
    if others and (heard.partial or not heard.offered or "publickey" not in allowed):
        return second_factor(target, allowed, partial=heard.partial)
    from jobrunner.transport.auth import refused

    return refused(target, heard.offered)


def second_factor(target: HostTarget, allowed: list[str], *, partial: bool) -> AuthError:
    """The error for a login that needs a person."""
    what = "wants a second proof besides the key" if partial else "takes no keys"
    asks = any(name in ("password", "keyboard-interactive") for name in allowed)
    return AuthError(
        f"{_who(target)} {what}: it asks for {', '.join(allowed) or 'nothing we have'}",
        host=target.alias,
        code="second_factor" if asks else "auth",
        remedy=f"At a terminal, `jobrunner hosts check {target.alias} --transport openssh` lets ssh ask you; "
        "the commands of the next minutes share that connection."
        if asks
        else "jobrunner logs in by key; ask for key login, or use a ProxyJump host that allows it.",
    )


def _throttled(target: HostTarget, heard: Heard) -> ConnectError:
    if heard.stage == "connect":
        return _proxy(target, heard)
    return ConnectError(
        f"{_place(target)} turns connections away: {heard.greeting or heard.words}",
        host=target.alias,
        code="throttled",
        remedy="Too many connections at once, or too many failed logins from here; wait a minute and try again.",
    )


def _not_ssh(target: HostTarget, heard: Heard) -> ConnectError:
    said = heard.greeting
    words = f"is not an SSH server: it answered {said!r}" if said else f"cannot be followed: {heard.words}"
    return ConnectError(f"{_place(target)} {words}", host=target.alias, code="not_ssh", remedy="Check the port.")


def silent(target: HostTarget, heard: Heard, seconds: float) -> ConnectError:
    """The error for an `ssh` that did not get on within its time."""
    if heard.stage == "connect":
        return no_answer(target, _place(target))
    if heard.stage == "login":
        return ConnectError(
            f"{_who(target)} did not answer a login within {seconds:.0f} s",
            host=target.alias,
            code="timeout",
            remedy="The host may be overloaded; try again.",
        )
    return ConnectError(
        f"{_place(target)} accepted the connection and said nothing for {seconds:.0f} s",
        host=target.alias,
        code="silent",
        remedy="It may be overloaded, or something else than an SSH server listens there.",
    )


def _proxy(target: HostTarget, heard: Heard) -> ConnectError:
    config = target.config
    name, value = ("ProxyJump", config.proxy_jump) if config.proxy_jump else ("ProxyCommand", config.proxy_command)
    return ConnectError(
        f"{_place(target)} was not reached; its {name} is `{value}`; ssh said: {heard.words}",
        host=target.alias,
        code="proxy",
        remedy=f"Try `ssh -v {target.alias}`: it shows which part of the way fails.",
    )


def _network(target: HostTarget, heard: Heard, low: str) -> HostError:
    config = target.config
    if "could not resolve hostname" in low and not (config.proxy_jump or config.proxy_command):
        said = heard.words.rpartition(": ")[2]
        return ConnectError(
            f"the name {config.hostname} of host {target.alias} cannot be found: {said}",
            host=target.alias,
            code="dns",
            remedy="Check the name, or give `address` in the hosts file or HostName in the SSH configuration.",
        )
    if config.proxy_jump or config.proxy_command:
        return _proxy(target, heard)
    if "timed out" in low:
        return silent(target, heard, target.connect_limit)
    if heard.stage == "connect" and "connection refused" in low:
        return ConnectError(
            f"{_place(target)} refused the connection: nothing listens there",
            host=target.alias,
            code="refused",
            remedy="Check the port, and whether the SSH server of that machine runs.",
        )
    if heard.stage == "connect":
        return ConnectError(
            f"{_place(target)} cannot be reached: {heard.words or 'ssh does not say why'}",
            host=target.alias,
            code="unreachable",
            remedy="Check the network of this machine and the way to the host.",
        )
    if heard.stage == "login" and "connection closed" in low and len(heard.offered) > 1:
        return _too_many(target, heard)
    return LinkLostError(
        f"ssh lost {_place(target)} while connecting: {heard.words or 'it does not say why'}",
        host=target.alias,
        remedy="Run the command again: whatever reached the host is kept.",
    )
