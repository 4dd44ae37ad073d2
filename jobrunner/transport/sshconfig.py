"""The effective SSH configuration of one host, as OpenSSH itself sees it.

Where there is an `ssh` program it is asked (`ssh -G`): it knows Include, Match and all the rest. Elsewhere our own
reader (`sshconfig_reader`) gives the same results for what it knows, and refuses the rest by name and line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path

from jobrunner.core.errors import HostError, UsageError
from jobrunner.core.values import dataclass

Options = Mapping[str, Sequence[str]]

DEFAULT_IDENTITIES = tuple(
    f"~/.ssh/id_{kind}" for kind in ("rsa", "ecdsa", "ecdsa_sk", "ed25519", "ed25519_sk", "xmss", "dsa")
)
ASK_LIMIT = 15.0  # seconds that `ssh -G` may take; a `Match exec` may be slow

_ADDRESS = re.compile(
    r"(?:(?P<user>[^@]+)@)?(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[^@:\[\]]+))(?::(?P<port>\d+))?\Z"
)
_BAD_NAME = re.compile(r"[\s\x00-\x1f\x7f'\"`$\\;&<>|(){}]")


@dataclass(frozen=True)
class Address:
    """What a person writes for a host: `user@host:port`, of which only the host is needed."""

    host: str
    user: str | None = None
    port: int | None = None


@dataclass(frozen=True)
class HostConfig:
    """How to reach one host. Paths are absolute and tokens are replaced; `proxy_command` keeps its tokens replaced too.

    `identity_agent` is a socket path, None where no agent may be asked. `strict` is one of yes, ask, accept-new, no.
    `control_path` is where the user's own shared connection would be. `special` names options that are set and that
    only OpenSSH's client follows; `digest` stands for the whole configuration, known to us or not. `ciphers` are those
    that it allows, by commas.
    """

    alias: str
    hostname: str
    port: int
    user: str
    identity_files: tuple[str, ...]
    identities_explicit: bool
    identities_only: bool
    identity_agent: str | None
    certificate_files: tuple[str, ...]
    proxy_jump: str
    proxy_command: str
    known_hosts: tuple[str, ...]
    global_known_hosts: tuple[str, ...]
    revoked_host_keys: str
    host_key_alias: str
    strict: str
    connect_timeout: float | None
    address_family: str
    control_path: str = field(default="", compare=False)
    special: tuple[str, ...] = field(default=(), compare=False)
    digest: str = field(default="", compare=False)
    ciphers: str = field(default="", compare=False)

    @property
    def lookup_name(self) -> str:
        """The name under which known_hosts files keep the host's key."""
        if self.host_key_alias:
            return self.host_key_alias.lower()
        host = self.hostname.lower()
        return host if self.port == 22 else f"[{host}]:{self.port}"


def parse_address(text: str) -> Address:
    """`user@host:port`, `host`, `user@[::1]:2222`, or a bare IPv6 address. Raises UsageError for anything else."""
    if text.count(":") > 1 and "[" not in text:
        user, at, host = text.rpartition("@")
        text = f"{user}{at}[{host}]"
    match = _ADDRESS.match(text)
    if match is None or text.startswith("-"):
        raise UsageError(
            f"{text!r} is not an address of a host", remedy="Write it as user@host:port, host:port or host."
        )
    host = match["six"] or match["host"]
    port = int(match["port"]) if match["port"] else None
    if _BAD_NAME.search(host) or _BAD_NAME.search(match["user"] or "") or host.startswith("-"):
        raise UsageError(f"{text!r} has characters that no host or user name has", remedy="Write it as user@host:port.")
    if port is not None and not 0 < port < 65536:
        raise UsageError(f"{text!r} names port {port}, which does not exist", remedy="Ports run from 1 to 65535.")
    return Address(host, match["user"], port)


def home_folder() -> str:
    """The user's home as OpenSSH takes it: from the account, not from $HOME."""
    try:
        import pwd
    except ImportError:  # not on Windows
        return os.path.expanduser("~")
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return os.path.expanduser("~")


def local_user() -> str:
    """The name of the user who runs us."""
    import getpass

    try:
        import pwd

        return pwd.getpwuid(os.getuid()).pw_name
    except (ImportError, KeyError):
        return getpass.getuser()


def resolve(
    alias: str, *, ssh_config: str | Path | None = None, address: str | None = None, ssh: str | None = None
) -> HostConfig:
    """The effective configuration of `alias`; with `address`, of that host with its user and port taking precedence.

    `ssh_config` is the file to read (None: the user's own, then the system's). `ssh` is the program to ask (None:
    the one on the PATH; "": none, use our own reader). Raises UsageError for an impossible name, HostError (code
    `ssh_config`) where the configuration cannot be read.
    """
    wanted = parse_address(address or alias)
    program = (shutil.which("ssh") or "") if ssh is None else ssh
    file = os.path.abspath(os.path.expanduser(str(ssh_config))) if ssh_config else None
    if file is not None and not os.path.isfile(file):
        raise HostError(
            f"the SSH configuration {file} does not exist",
            host=alias,
            code="ssh_config",
            remedy="Correct `ssh_config` in the hosts file or $JOBRUNNER_SSH_CONFIG.",
        )
    if program:
        options = _ask_ssh(program, wanted, file, alias)
    else:
        from jobrunner.transport.sshconfig_reader import read_options

        options = read_options(wanted, file, alias)
    return host_config(alias, wanted.host, options)


_answers: dict[tuple[object, ...], Options] = {}
_answers_lock = threading.Lock()


def _ask_ssh(program: str, wanted: Address, file: str | None, alias: str) -> Options:
    """`ssh -G`, once per process for each question (a changed file is asked about anew)."""
    stamp = os.stat(file).st_mtime_ns if file else 0
    question = (program, wanted, file, stamp)
    with _answers_lock:
        if question in _answers:
            return _answers[question]
    argv = [program, "-T", "-G"]
    argv += ["-F", file] if file else []
    argv += ["-l", wanted.user] if wanted.user else []
    argv += ["-p", str(wanted.port)] if wanted.port else []
    argv += ["--", wanted.host]
    try:
        done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=ASK_LIMIT, check=False)
    except subprocess.TimeoutExpired:
        raise HostError(
            f"`ssh -G {wanted.host}` did not answer within {ASK_LIMIT:.0f} s",
            host=alias,
            code="ssh_config",
            remedy="Run it by hand: a `Match exec` in the SSH configuration may hang.",
        ) from None
    except OSError as error:
        raise HostError(f"cannot run {program}: {error}", host=alias, code="ssh_config") from error
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip() or f"exit code {done.returncode}"
        raise HostError(
            f"ssh cannot read its configuration for {wanted.host}: {said}",
            host=alias,
            code="ssh_config",
            remedy=f"Correct the SSH configuration until `ssh -G {wanted.host}` works.",
        )
    options = parse_ssh_g(done.stdout.decode("utf-8", "surrogateescape"))
    with _answers_lock:
        _answers[question] = options
    return options


def parse_ssh_g(text: str) -> dict[str, list[str]]:
    """The lines of `ssh -G`: lower-case key to its values, in order."""
    options: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _, value = line.partition(" ")
        options.setdefault(key.lower(), []).append(value)
    return options


def host_config(alias: str, original: str, options: Options) -> HostConfig:
    """The values that matter to us, out of `ssh -G`'s options (or the own reader's, which have the same shape)."""

    def last(key: str, default: str = "") -> str:
        values = options.get(key) or [default]
        return "" if values[0].lower() == "none" else values[0]

    hostname, port, user = last("hostname", original), int(last("port", "22")), last("user") or local_user()
    key_alias = last("hostkeyalias")
    tokens = _tokens(original, hostname, port, user, key_alias)

    def path(text: str) -> str:
        return expand_path(text, tokens)

    identities = [name for name in options.get("identityfile", ()) if name.lower() != "none"]
    explicit = bool(options.get("identityfile")) and tuple(identities) != DEFAULT_IDENTITIES
    if explicit and len(identities) > 4 and all(re.fullmatch(r"~/\.ssh/id_\w+", name) for name in identities):
        explicit = False  # the defaults of another version of OpenSSH
    return HostConfig(
        alias=alias,
        hostname=hostname,
        port=port,
        user=user,
        identity_files=tuple(path(name) for name in identities),
        identities_explicit=explicit,
        identities_only=_is_yes(last("identitiesonly", "no")),
        identity_agent=_agent(options.get("identityagent", ()), tokens),
        certificate_files=tuple(path(name) for name in options.get("certificatefile", ()) if name.lower() != "none"),
        proxy_jump=last("proxyjump"),
        proxy_command=expand_tokens(last("proxycommand"), tokens),
        known_hosts=tuple(path(p) for p in _files(options, "userknownhostsfile")),
        global_known_hosts=tuple(path(p) for p in _files(options, "globalknownhostsfile")),
        revoked_host_keys=path(last("revokedhostkeys")) if last("revokedhostkeys") else "",
        host_key_alias=expand_tokens(key_alias, tokens),
        strict=_strict(last("stricthostkeychecking", "ask")),
        connect_timeout=float(last("connecttimeout")) if last("connecttimeout").isdigit() else None,
        address_family=last("addressfamily", "any"),
        control_path=expand_path(last("controlpath"), tokens) if last("controlpath") else "",
        special=_special(options),
        digest=hashlib.sha256(json.dumps([original, options]).encode()).hexdigest()[:16],
        ciphers=last("ciphers"),
    )


# Options that only OpenSSH follows, and the values that mean nothing.
_SPECIAL = {
    "knownhostscommand": ("none",),
    "pkcs11provider": ("none",),
    "securitykeyprovider": ("internal", "none"),
    "preferredauthentications": ("publickey", "none"),
    "canonicalizehostname": ("no", "false", "none"),
    "verifyhostkeydns": ("no", "false"),
    "proxyusefdpass": ("no", "false"),
    "bindaddress": ("none",),
    "bindinterface": ("none",),
}


def _special(options: Options) -> tuple[str, ...]:
    """The names of options that are set here and that Fabric cannot follow."""
    return tuple(
        name
        for name, empty in _SPECIAL.items()
        if options.get(name) and options[name][0].lower() not in empty and options[name][0]
    ) + (("gssapiauthentication",) if _is_yes((options.get("gssapiauthentication") or ["no"])[0]) else ())


def _is_yes(text: str) -> bool:
    return text.lower() in ("yes", "true")


def _strict(text: str) -> str:
    word = text.lower()
    return {"true": "yes", "false": "no", "off": "no", "yes": "yes", "no": "no", "accept-new": "accept-new"}.get(
        word, "ask"
    )


def _files(options: Options, key: str) -> list[str]:
    """The files of a list option. `ssh -G` separates them by blanks, so a name with a blank is tried whole first."""
    files: list[str] = []
    for value in options.get(key, ()):
        if " " in value and not os.path.exists(value):
            files += value.split()
        else:
            files.append(value)
    return [file for file in files if file.lower() != "none"]


def _agent(values: Sequence[str], tokens: Mapping[str, str]) -> str | None:
    """The agent's socket: as IdentityAgent says, else $SSH_AUTH_SOCK; None where there is none."""
    value = values[0] if values else "SSH_AUTH_SOCK"
    if value.lower() == "none":
        return None
    if value == "SSH_AUTH_SOCK":
        return os.environ.get("SSH_AUTH_SOCK") or ("" if sys.platform == "win32" else None)
    if value.startswith("$"):
        return os.environ.get(value[1:].strip("{}")) or None
    return expand_path(value, tokens)


def _tokens(original: str, hostname: str, port: int, user: str, key_alias: str) -> dict[str, str]:
    here = socket.gethostname()
    return {
        "%": "%",
        "d": home_folder(),
        "h": hostname,
        "i": str(os.getuid()) if hasattr(os, "getuid") else "0",
        "k": key_alias or original,
        "L": here.partition(".")[0],
        "l": here,
        "n": original,
        "p": str(port),
        "r": user,
        "u": local_user(),
    }


def expand_tokens(text: str, tokens: Mapping[str, str]) -> str:
    """`%h` and its kin replaced; an unknown one stays as it stands."""
    return re.sub(r"%(.)", lambda found: tokens.get(found[1], found[0]), text)


def expand_path(text: str, tokens: Mapping[str, str]) -> str:
    """A path with `~`, `%` tokens and `${NAME}` replaced; a relative one is taken from the current folder."""
    text = re.sub(r"\$\{(\w+)\}", lambda found: os.environ.get(found[1], found[0]), text)
    text = expand_tokens(text, tokens)
    if text == "~" or text.startswith(("~/", "~\\")):
        text = home_folder() + text[1:]
    elif text.startswith("~"):
        text = os.path.expanduser(text)
    return os.path.abspath(text)
