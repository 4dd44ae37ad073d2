"""What in a host's SSH configuration only OpenSSH's own client can do: then `transport: auto` takes that."""

from __future__ import annotations

import os

from jobrunner.core.errors import JobrunnerError
from jobrunner.transport.hostkeys import KnownHosts
from jobrunner.transport.settings import HostTarget
from jobrunner.transport.sshconfig import HostConfig, parse_address, resolve


def why_openssh(target: HostTarget) -> str:
    """The reason in a few words, "" where Fabric can do all of it. Reads key files and known_hosts, asks nobody."""
    reason = _of_config(target.config)
    if reason:
        return reason
    for hop in filter(None, target.config.proxy_jump.split(",")):
        name = hop.strip().removeprefix("ssh://").rstrip("/")
        try:
            config = resolve(parse_address(name).host, ssh_config=target.ssh_config, address=name)
        except JobrunnerError:
            return ""  # whoever connects tells it
        if reason := _of_config(config):
            return f"{reason} (for the jump host {name})"
    return _unreadable(target)


def _of_config(config: HostConfig) -> str:
    for name in config.special:
        if name != "gssapiauthentication" or _has_ticket():
            return f"{name} is set"
    return _keys(config) or _host_keys(config)


def _has_ticket() -> bool:
    """True if a Kerberos ticket is kept in a file, so that GSSAPI, which many systems switch on, may be used."""
    named = os.environ.get("KRB5CCNAME", "")
    if named and not named.startswith(("FILE:", "/")):
        return True  # kept by a daemon or the kernel
    file = named.removeprefix("FILE:") or f"/tmp/krb5cc_{os.getuid() if hasattr(os, 'getuid') else 0}"
    return os.path.exists(file)


def _keys(config: HostConfig) -> str:
    """Keys that live in hardware, or whose certificate goes with a key that only an agent has."""
    kinds = {path: kind for path in config.identity_files if (kind := _kind(path))}
    hardware = [path for path, kind in kinds.items() if kind.startswith("sk-")]
    if hardware and (config.identities_explicit or len(hardware) == len(kinds)):
        return f"the key {hardware[0]} lives in hardware"
    if any(map(os.path.isfile, config.certificate_files)) and not any(map(_is_private, config.identity_files)):
        return "a certificate goes with a key that is not in a file"
    return ""


def _kind(path: str) -> str:
    """The type of a key file as far as its public half shows it; "" where there is no such key."""
    for name in (path + ".pub", path):
        try:
            with open(name, "rb") as handle:
                words = handle.read(16384).split()
        except OSError:
            continue
        if words and words[0].startswith((b"ssh-", b"ecdsa-", b"sk-")):
            return words[0].decode("ascii", "replace")
        if words:
            return "private"
    return ""


def _is_private(path: str) -> bool:
    try:
        with open(path, "rb") as handle:
            return handle.read(10) == b"-----BEGIN"
    except OSError:
        return False


def _host_keys(config: HostConfig) -> str:
    """Host certificates, and lists of revoked keys in OpenSSH's own format."""
    entries = KnownHosts(config).entries
    if any(entry.marker == "cert-authority" for entry in entries) and all(entry.marker for entry in entries):
        return "its host key is known by a certificate authority"
    try:
        with open(config.revoked_host_keys or os.devnull, "rb") as handle:
            return "RevokedHostKeys is a binary list" if handle.read(7) == b"SSHKRL\n" else ""
    except OSError:
        return ""


def _unreadable(target: HostTarget) -> str:
    """What our own reader would have to refuse for this host: `Match exec` and the like, with file and line."""
    from jobrunner.transport.sshconfig_reader import read_options

    file = os.path.abspath(os.path.expanduser(target.ssh_config)) if target.ssh_config else None
    try:
        read_options(parse_address(target.address or target.alias), file, target.alias)
    except JobrunnerError as error:
        return error.message.rpartition(" cannot be read for ")[2] or error.message
    return ""
