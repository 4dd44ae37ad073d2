"""Host keys: what known_hosts files say of a key that a host shows, with OpenSSH's verdicts.

Files are read line by line; a line that cannot be read is passed over, as OpenSSH does. Host certificates cannot be
checked here: a host that is known only by its `@cert-authority` is asked for its plain key.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Literal

from jobrunner.core.errors import HostKeyError
from jobrunner.core.values import dataclass
from jobrunner.transport.sshconfig import HostConfig
from jobrunner.transport.sshconfig_reader import matches_list

log = logging.getLogger("jobrunner.transport")

# What OpenSSH offers first where nothing is known about the host.
PREFERRED = (
    "ssh-ed25519",
    "ecdsa-sha2-nistp256",
    "ecdsa-sha2-nistp384",
    "ecdsa-sha2-nistp521",
    "rsa-sha2-512",
    "rsa-sha2-256",
)


@dataclass(frozen=True)
class HostKey:
    """A public host key: its type (`ssh-ed25519`, `ssh-rsa`, …) and the bytes that the host sends."""

    type: str
    blob: bytes

    @property
    def fingerprint(self) -> str:
        """`SHA256:…`, as `ssh-keygen -l` prints it."""
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode("ascii").rstrip("=")

    @property
    def text(self) -> str:
        """`ssh-ed25519 AAAA…`, as it stands in a known_hosts file."""
        return f"{self.type} {base64.b64encode(self.blob).decode('ascii')}"


@dataclass(frozen=True)
class KnownKey:
    """One line of a known_hosts file. `marker` is "", `cert-authority` or `revoked`; `line` counts from 1."""

    names: str
    key: HostKey
    marker: str
    file: str
    line: int

    def covers(self, name: str) -> bool:
        """True if this line speaks of `name` (lower case; `[host]:port` for ports other than 22)."""
        if self.names.startswith("|"):
            return _hash_matches(self.names, name)
        return matches_list(name, self.names.lower().split(","))


@dataclass(frozen=True)
class Verdict:
    """What the files say of the key that a host shows; `known` is the line that decided, if there is one."""

    status: Literal["ok", "unknown", "changed", "revoked"]
    offered: HostKey
    known: KnownKey | None = None
    note: str = ""


def _hash_matches(names: str, name: str) -> bool:
    parts = names.split("|")
    if len(parts) != 4 or parts[1] != "1":
        return False
    try:
        salt, wanted = base64.b64decode(parts[2], validate=True), base64.b64decode(parts[3], validate=True)
    except (binascii.Error, ValueError):
        return False
    return hmac.compare_digest(hmac.new(salt, name.encode("utf-8", "surrogateescape"), "sha1").digest(), wanted)


def parse_key(kind: str, data: str) -> HostKey | None:
    """The key of `type base64`, or None where the two do not agree or it is no base64."""
    try:
        blob = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        return None
    length = int.from_bytes(blob[:4], "big")
    if len(blob) < 5 or blob[4 : 4 + length] != kind.encode("ascii", "replace") or len(blob) <= 4 + length:
        return None
    return HostKey(kind, blob)


def parse_line(line: str, file: str, number: int) -> KnownKey | None:
    """One line as OpenSSH reads it; None for comments and for what is no entry."""
    words = line.split()
    if not words or words[0].startswith("#"):
        return None
    marker = ""
    if words[0].startswith("@"):
        marker = words.pop(0)[1:]
        if marker not in ("cert-authority", "revoked"):
            words = []
    key = parse_key(words[1], words[2]) if len(words) >= 3 else None
    if key is None:
        log.debug("%s:%d: not a known_hosts entry, passed over", file, number)
        return None
    return KnownKey(words[0], key, marker, file, number)


def read_known_hosts(files: Iterable[str]) -> Iterator[KnownKey]:
    """Every entry of the files that are there, in order; bad lines and bad bytes are passed over."""
    for file in files:
        try:
            with open(file, encoding="utf-8", errors="surrogateescape", newline="\n") as handle:
                lines = handle.read().split("\n")
        except OSError as error:
            if os.path.exists(file) and file != os.devnull:
                log.debug("%s: cannot be read: %s", file, error)
            continue
        for number, line in enumerate(lines, 1):
            entry = parse_line(line, file, number)
            if entry is not None:
                yield entry


class KnownHosts:
    """What is known about one host, from all files of its configuration."""

    def __init__(self, config: HostConfig) -> None:
        entries = list(read_known_hosts((*config.known_hosts, *config.global_known_hosts)))
        name = config.lookup_name
        self.config = config
        self.entries = [entry for entry in entries if entry.covers(name)]
        # OpenSSH's rule: where nothing is known with the port, a key kept without one is accepted, but never missed.
        bare = config.hostname.lower()
        other_port = name != bare and not config.host_key_alias
        self.portless = [entry for entry in entries if entry.covers(bare)] if other_port else []

    def algorithms(self) -> tuple[str, ...]:
        """Host key algorithms to offer: those first for which a key is known, so that it is the one to be compared."""
        known = {entry.key.type for entry in self.entries if not entry.marker}
        known = known or {entry.key.type for entry in self.portless if not entry.marker}
        return tuple(sorted(PREFERRED, key=lambda name: ("ssh-rsa" if "rsa" in name else name) not in known))

    def judge(self, offered: HostKey) -> Verdict:
        """The verdict on a key; any line with the very key accepts it, unless one revokes it."""
        for entry in (*self.entries, *self.portless):
            if entry.marker == "revoked" and entry.key == offered:
                return Verdict("revoked", offered, entry)
        if self.config.revoked_host_keys:
            revoked = _revoked_in(self.config.revoked_host_keys, offered)
            if revoked:
                return revoked
        plain = [entry for entry in self.entries if not entry.marker]
        portless = [entry for entry in self.portless if not entry.marker]
        for entry in plain or portless:
            if entry.key == offered:
                return Verdict("ok", offered, entry)
        if plain:
            same_type = [entry for entry in plain if entry.key.type == offered.type]
            return Verdict("changed", offered, (same_type or plain)[0])
        if any(entry.marker == "cert-authority" for entry in self.entries):
            return Verdict("unknown", offered, None, "only a certificate authority is known for it; pin its plain key")
        return Verdict("unknown", offered)


def _revoked_in(file: str, offered: HostKey) -> Verdict | None:
    """RevokedHostKeys: a list of public keys. As in OpenSSH, a file that cannot be read refuses every key."""
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        return Verdict("revoked", offered, None, f"RevokedHostKeys {file} cannot be read: {error}")
    if data.startswith(b"SSHKRL\n"):
        return Verdict(
            "revoked", offered, None, f"RevokedHostKeys {file} is a binary list, which only OpenSSH can read"
        )
    for number, line in enumerate(data.decode("utf-8", "surrogateescape").splitlines(), 1):
        words = line.split()
        if len(words) >= 2 and parse_key(words[0], words[1]) == offered:
            return Verdict("revoked", offered, KnownKey("*", offered, "revoked", file, number))
    return None


def accept(config: HostConfig, verdict: Verdict) -> None:
    """Return if the host may be spoken to; raise HostKeyError otherwise.

    An unknown key is taken (and pinned) only where the user's own SSH configuration says so: StrictHostKeyChecking
    `accept-new` or `no`. A changed or revoked key is always refused.
    """
    if verdict.status == "ok":
        return
    if verdict.status == "unknown" and config.strict in ("accept-new", "no"):
        if config.known_hosts:
            try:
                pin(config.known_hosts[0], config, verdict.offered)
            except OSError as error:
                log.debug("%s: cannot pin the key: %s", config.known_hosts[0], error)
        return
    raise refusal(config, verdict)


def refusal(config: HostConfig, verdict: Verdict) -> HostKeyError:
    """The error for a key that must not be spoken to."""
    place = f"{verdict.known.file}:{verdict.known.line}" if verdict.known else ""
    shown = f"{verdict.offered.type} {verdict.offered.fingerprint}"
    if verdict.status == "changed":
        assert verdict.known is not None
        return HostKeyError(
            f"{config.alias} ({config.lookup_name}) shows another host key than the one known: it shows {shown}, "
            f"{place} has {verdict.known.key.type} {verdict.known.key.fingerprint}",
            host=config.alias,
            code="hostkey_changed",
            remedy="Somebody may be listening in. If its administrator confirms the new key, remove the old one with "
            f"`ssh-keygen -R '{config.lookup_name}' -f {verdict.known.file}` "
            f"and pin the new one: `jobrunner hosts add {config.alias}`.",
        )
    if verdict.status == "revoked":
        return HostKeyError(
            f"{config.alias} ({config.lookup_name}) shows a host key that is revoked: {shown}"
            f" ({place or verdict.note})",
            host=config.alias,
            code="hostkey_revoked",
            remedy="Do not connect; ask the administrator of the host.",
        )
    return HostKeyError(
        f"the host key of {config.alias} ({config.lookup_name}) is not known: it shows {shown}"
        + (f" ({verdict.note}{', ' + place if place else ''})" if verdict.note else ""),
        host=config.alias,
        code="hostkey_unknown",
        remedy=f"Compare the fingerprint with the host's, then pin it: `jobrunner hosts add {config.alias}`.",
    )


def pin(file: str | Path, config: HostConfig, key: HostKey) -> None:
    """Append a key to a known_hosts file (made 0600, its folder 0700) under the name by which it will be looked up.

    Raises OSError where the file cannot be written. A key that is there already is not written twice.
    """
    path = Path(file)
    if any(
        entry.key == key and not entry.marker and entry.covers(config.lookup_name)
        for entry in read_known_hosts([str(path)])
    ):
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0), 0o600)
    with os.fdopen(handle, "r+b") as stream:
        stream.seek(0, os.SEEK_END)
        size = stream.tell()
        if size:
            stream.seek(size - 1)
        broken = bool(size) and stream.read(1) != b"\n"
        stream.seek(0, os.SEEK_END)
        stream.write((b"\n" if broken else b"") + f"{config.lookup_name} {key.text}\n".encode())
