"""Proving who we are: which keys are offered, in which order, and what is said when none is taken.

As OpenSSH does: keys named by IdentityFile, through the agent where it holds them; then the agent's other keys unless
IdentitiesOnly. Only where no IdentityFile is set come the agent's keys before the default files. Named key files go
first, so that an agent full of keys does not use up the server's patience.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import socket
import sys
from collections.abc import Iterator
from dataclasses import field
from typing import Any

import paramiko
from paramiko.agent import AgentSSH

from jobrunner.core.errors import AuthError, ConnectError, LinkLostError
from jobrunner.core.values import dataclass
from jobrunner.transport.settings import HostTarget
from jobrunner.transport.sshwords import second_factor
from jobrunner.transport.wire_ssh import LinkTransport

_MAGIC = b"openssh-key-v1\0"
_CLASSES = {"ssh-ed25519": paramiko.Ed25519Key, "ssh-rsa": paramiko.RSAKey}
_PEM = {"RSA": paramiko.RSAKey, "EC": paramiko.ECDSAKey}


@dataclass(frozen=True)
class KeyFile:
    """What a key file says without being opened: its public part (if it shows), and whether it is encrypted.

    `kind` is the key's type, or the word of an older format (RSA, EC), or `public` where there is no private part.
    """

    path: str
    kind: str
    public: bytes
    encrypted: bool


@dataclass
class _Attempt:
    """The course of one authentication: what was offered, and what could not be."""

    target: HostTarget
    offered: list[str] = field(default_factory=list)
    locked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class AgentAt(AgentSSH):  # type: ignore[misc]
    """The keys of the SSH agent at a socket; none where it does not answer."""

    def __init__(self, path: str, limit: float) -> None:
        super().__init__()
        if sys.platform == "win32":
            self._keys = paramiko.Agent().get_keys()
            return
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(limit)
        try:
            sock.connect(path)
            self._connect(sock)
        except (OSError, paramiko.SSHException, UnicodeDecodeError, ValueError):
            self._conn, self._keys = None, ()
            sock.close()

    def close(self) -> None:
        self._close()


def inspect_key(path: str) -> KeyFile | None:
    """What can be known of a key file without its passphrase; None where there is no such file."""
    try:
        with open(path, "rb") as handle:
            data = handle.read(65536)
    except OSError:
        data = b""
    public = _public_beside(path)
    if not data:
        return KeyFile(path, "public", public, False) if public else None
    match = re.search(rb"-----BEGIN (?:(\w+) )?(ENCRYPTED )?PRIVATE KEY-----", data)
    word = match[1].decode() if match and match[1] else ""
    if match is None and public:
        return KeyFile(path, "public", public, False)
    if word != "OPENSSH":
        return KeyFile(path, word, public, b"ENCRYPTED" in data)
    try:
        body = base64.b64decode(b"".join(data.split(b"-----")[2].split()))
    except (binascii.Error, IndexError):
        return KeyFile(path, "", public, False)
    if not body.startswith(_MAGIC):
        return KeyFile(path, "", public, False)
    message = paramiko.Message(body[len(_MAGIC) :])
    cipher, _, _, _ = message.get_binary(), message.get_binary(), message.get_binary(), message.get_int()
    blob = message.get_binary()
    kind = paramiko.Message(blob).get_binary().decode("ascii", "replace")
    return KeyFile(path, kind, blob, cipher != b"none")


def _public_beside(path: str) -> bytes:
    """The public key in the file itself (a `.pub` given as identity) or in the `.pub` file beside it."""
    for name in (path, path + ".pub"):
        try:
            with open(name, encoding="utf-8", errors="replace") as handle:
                words = handle.read(65536).split()
        except OSError:
            continue
        if len(words) >= 2 and words[0].startswith(("ssh-", "ecdsa-", "sk-")):
            try:
                return base64.b64decode(words[1], validate=True)
            except binascii.Error:
                continue
    return b""


def authenticate(transport: LinkTransport, target: HostTarget) -> None:
    """Log in with the first key that the host takes. Raises AuthError, or ConnectError where it does not answer."""
    attempt = _Attempt(target)
    agents: list[AgentAt] = []
    try:
        for label, key in _keys(attempt, agents):
            attempt.offered.append(label)
            try:
                more = transport.auth_publickey(target.config.user, key)
            except paramiko.BadAuthenticationType as error:
                raise second_factor(target, list(error.allowed_types), partial=False) from error
            except (paramiko.SSHException, EOFError, OSError, ValueError) as error:
                if not transport.is_active():
                    raise _cut_off(attempt, transport) from error
                if "timeout" in str(error).lower():
                    raise _too_slow(target) from error
                continue
            if not more:
                return
            raise second_factor(target, more, partial=True)
    finally:
        for agent in agents:
            agent.close()
    raise _refused(attempt)


def _keys(attempt: _Attempt, agents: list[AgentAt]) -> Iterator[tuple[str, Any]]:
    """Keys with a label each, in the order of offering. The agent is asked only when it matters."""
    config = attempt.target.config
    held: dict[bytes, Any] = {}

    def ask_agent() -> dict[bytes, Any]:
        if not agents and config.identity_agent is not None:
            agents.append(AgentAt(config.identity_agent, attempt.target.settings.auth_s))
            held.update({bytes(key.asbytes()): key for key in agents[0].get_keys()})
        return held

    files = [found for path in config.identity_files if (found := inspect_key(path)) is not None]
    used: set[bytes] = set()
    if not config.identities_explicit:
        named = {found.public for found in files if found.public}
        for blob, key in sorted(ask_agent().items(), key=lambda item: item[0] not in named):
            if not config.identities_only or blob in named:
                used.add(blob)
                yield _agent_label(key), key
    for found in files:
        if found.public in used:
            continue
        if (found.encrypted or found.kind == "public") and found.public in ask_agent():
            used.add(found.public)
            yield f"{found.path} (from the agent)", held[found.public]
        else:
            for key in _load(attempt, found):
                used.add(bytes(key.asbytes()))
                yield found.path, key
    if config.identities_explicit and not config.identities_only:
        for blob, key in ask_agent().items():
            if blob not in used:
                yield _agent_label(key), key


def _agent_label(key: Any) -> str:
    return f"{key.comment or key.get_name()} (from the agent)"


def _load(attempt: _Attempt, found: KeyFile) -> Iterator[Any]:
    """The private key of a file: with its certificate if there is one, then plain. Nothing where it stays locked."""
    passphrase = None
    if found.kind == "public":
        attempt.notes.append(f"{found.path}: only its public half is here, and no agent holds it")
        return
    if found.encrypted:
        source = attempt.target.settings.passphrase
        passphrase = source(found.path) if source else None
        if passphrase is None:
            attempt.locked.append(found.path)
            return
    kind = found.kind
    cls = paramiko.ECDSAKey if kind.startswith("ecdsa-") else _CLASSES.get(kind) or _PEM.get(kind)
    if cls is None:
        attempt.notes.append(f"{found.path}: keys of this kind cannot be used here ({kind or 'unknown format'})")
        return
    try:
        key = cls.from_private_key_file(found.path, passphrase)
    except (paramiko.SSHException, ValueError, TypeError, OSError) as error:
        if passphrase is not None:
            raise AuthError(
                f"wrong passphrase for the key {found.path}",
                host=attempt.target.alias,
                code="passphrase",
                remedy=f"Try again, or load the key once into an agent: `ssh-add {found.path}`.",
            ) from error
        attempt.notes.append(f"{found.path}: {error}")
        return
    for name in (found.path + "-cert.pub", *attempt.target.config.certificate_files):
        if os.path.isfile(name):
            signed = cls.from_private_key_file(found.path, passphrase)
            try:
                signed.load_certificate(name)
            except (paramiko.SSHException, ValueError, OSError):
                continue
            yield signed
    yield key


def _who(target: HostTarget) -> str:
    return f"{target.config.user} at {target.alias} ({target.config.hostname} port {target.config.port})"


def _refused(attempt: _Attempt) -> AuthError:
    target = attempt.target
    port = f" -p {target.config.port}" if target.config.port != 22 else ""
    place = f"{target.config.user}@{target.config.hostname}"
    if attempt.locked:
        first = attempt.locked[0]
        tried = f"; turned down: {', '.join(attempt.offered)}" if attempt.offered else ""
        return AuthError(
            f"the key {first} needs a passphrase, no agent holds it, and nobody can be asked{tried}",
            host=target.alias,
            code="passphrase",
            remedy=f"Load it into an agent: `eval $(ssh-agent)` and `ssh-add {first}`.",
        )
    if not attempt.offered:
        files = ", ".join(target.config.identity_files) or "none named"
        notes = "; ".join(attempt.notes)
        return AuthError(
            f"there is no key to log in as {_who(target)}: key files: {files}; agent: "
            f"{target.config.identity_agent or 'none'}" + (f"; {notes}" if notes else ""),
            host=target.alias,
            code="no_keys",
            remedy=f"Make one with `ssh-keygen -t ed25519`, then `ssh-copy-id{port} {place}`.",
        )
    count = len(attempt.offered)
    shown = ", ".join(attempt.offered[:5]) + (f" and {count - 5} more" if count > 5 else "")
    return AuthError(
        f"{_who(target)} turned down every key that was offered: {shown}"
        + (f"; not offered: {'; '.join(attempt.notes)}" if attempt.notes else ""),
        host=target.alias,
        code="auth",
        remedy=f"Put your public key there: `ssh-copy-id{port} {place}`; or name the right key by IdentityFile.",
    )


def _cut_off(attempt: _Attempt, transport: LinkTransport) -> AuthError | LinkLostError:
    """The connection ended while keys were offered: the server's patience (no first key wears it out), or the link."""
    target, count = attempt.target, len(attempt.offered)
    words = f": {transport.farewell}" if transport.farewell else ""
    if not transport.farewell and (transport.fell_silent or count < 2):
        return LinkLostError(
            f"the link to {target.alias} died while logging in", host=target.alias, remedy="Run the command again."
        )
    return AuthError(
        f"the server refused {_who(target)} after {count} key{'s' if count != 1 else ''}{words}",
        host=target.alias,
        code="too_many_keys",
        remedy=f"Name the right key for {target.alias} in the SSH configuration: IdentityFile, and IdentitiesOnly yes.",
    )


def _too_slow(target: HostTarget) -> ConnectError:
    return ConnectError(
        f"{_who(target)} did not answer a login within {target.settings.auth_s:.0f} s",
        host=target.alias,
        code="timeout",
        remedy="The host may be overloaded; try again.",
    )


def refused(target: HostTarget, offered: list[str]) -> AuthError:
    """The error for keys that OpenSSH's client offered in vain; with the keys that it could not open."""
    attempt = _Attempt(target, offered)
    for path in target.config.identity_files:
        found = inspect_key(path)
        if found is not None and found.encrypted:
            attempt.locked.append(path)
    attempt.offered = [label for label in offered if label not in attempt.locked]
    return _refused(attempt)
