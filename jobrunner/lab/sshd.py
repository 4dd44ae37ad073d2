"""A real OpenSSH server on loopback, run as the current user: for the tests and for `jobrunner demo`.

It has its own configuration, host key, user key and log in a folder of its own, listens on 127.0.0.1 only, and is
stopped by the process id that we started. Nothing of the machine's own SSH set-up is read or changed.
"""

from __future__ import annotations

import base64
import contextlib
import getpass
import hashlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobrunner.core.errors import HostSetupError

START_LIMIT = 10.0
PORT_TRIES = 5
_PLACES = ("/usr/sbin", "/usr/local/sbin", "/usr/libexec", "/usr/lib/ssh", "/opt/homebrew/sbin")


class SshdMissing(HostSetupError):
    """There is no OpenSSH server on this machine."""

    default_code = "no_sshd"


def find_sshd() -> str:
    """The path of `sshd`, which must be absolute for it to start. Raises SshdMissing."""
    found = shutil.which("sshd", path=os.pathsep.join((os.environ.get("PATH", ""), *_PLACES)))
    if found is None or os.name == "nt":
        raise SshdMissing(
            "there is no OpenSSH server (sshd) on this machine",
            remedy="Install your system's openssh-server package; the service itself need not run.",
        )
    return os.path.realpath(found)


def write_key_pair(path: Path, comment: str) -> str:
    """A fresh ed25519 key without passphrase at `path` (0600), its public half beside it and returned as text."""
    from cryptography.hazmat.primitives import serialization as s
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(s.Encoding.PEM, s.PrivateFormat.OpenSSH, s.NoEncryption())
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as stream:
        stream.write(private)
    public = key.public_key().public_bytes(s.Encoding.OpenSSH, s.PublicFormat.OpenSSH).decode("ascii")
    path.with_name(path.name + ".pub").write_text(f"{public} {comment}\n", encoding="ascii")
    return public


@dataclass
class LoopbackHost:
    """One SSH server in `folder`. `alias` names it in its `ssh_config`; `env` is set for every session there.

    `max_sessions` and `max_startups` are the server's own limits; `user` is who logs in with the user key; `lines` are
    lines of sshd_config that win over ours; `wrapper` stands before the server's command, and must exec it.
    """

    folder: Path
    alias: str = "lab"
    env: Mapping[str, str] = field(default_factory=dict)
    max_sessions: int = 10
    max_startups: str = "10:30:100"
    user: str = field(default_factory=getpass.getuser)
    lines: Iterable[str] = ()
    wrapper: Iterable[str] = ()
    port: int = 0

    def __post_init__(self) -> None:
        self.folder = Path(self.folder).resolve()
        self.process: subprocess.Popen[bytes] | None = None
        self.host_public = ""

    @property
    def user_key(self) -> Path:
        return self.folder / "user_key"

    @property
    def ssh_config(self) -> Path:
        """What a client reads to reach this host: give it to `--ssh-config` or `ssh -F`."""
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        return self.folder / "known_hosts"

    @property
    def log(self) -> Path:
        return self.folder / "sshd.log"

    def __enter__(self) -> LoopbackHost:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> LoopbackHost:
        """Bring the server up; returns when it answers. Raises SshdMissing or HostSetupError with the server's log.

        One that runs already is left as it is.
        """
        if self.process is not None and self.process.poll() is None:
            return self
        sshd = find_sshd()
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._write_keys()
        fixed = bool(self.port)
        for attempt in range(PORT_TRIES):
            self.port = self.port if fixed else _free_port()
            self._write_server_config()
            try:
                if self._launch(sshd):
                    self._write_client_files()
                    return self
            except BaseException:
                self.stop()
                raise
            self.stop()
            if fixed or attempt == PORT_TRIES - 1:
                break
        raise HostSetupError(
            f"the loopback SSH server did not start on port {self.port}: {self._log_tail()}",
            host=self.alias,
            code="sshd_failed",
            remedy=f"Read {self.log}.",
        )

    def stop(self) -> None:
        """Stop the server and the sessions it has open. Jobs that were started through it go on."""
        if self.process is None:
            return
        self.drop_sessions()
        self.process.terminate()
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.drop_sessions()
        self.process = None

    def restart(self) -> None:
        """Stop and start again on the same port, as an administrator would."""
        port = self.port
        self.stop()
        self.port = port
        self.start()

    def session_pids(self) -> list[int]:
        """The processes of sshd that serve open connections (not what runs in them)."""
        if self.process is None:
            return []
        parents = _parents()
        return [
            pid
            for pid, (parent, name) in parents.items()
            if name.startswith("sshd") and _under(pid, self.process.pid, parents)
        ]

    def drop_sessions(self) -> None:
        """Cut every open connection, as a crash of the server's session processes would."""
        for pid in self.session_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def hosts_entry(self) -> dict[str, Any]:
        """The host's entry for a hosts file, under `self.alias`; its `ssh_config` belongs at the file's top."""
        return {"root": str(self.folder / "root")}

    def _write_keys(self) -> None:
        if not self.user_key.exists():
            write_key_pair(self.user_key, "jobrunner-lab")
        host_key = self.folder / "host_key"
        if not host_key.exists():
            write_key_pair(host_key, "jobrunner-lab-host")
        self.host_public = " ".join(host_key.with_name("host_key.pub").read_text("ascii").split()[:2])
        authorized = self.folder / "authorized_keys"
        if not authorized.exists():
            authorized.write_text(self.user_key.with_name("user_key.pub").read_text("ascii"), encoding="ascii")

    def _write_server_config(self) -> None:
        if os.getuid() == 0:
            os.makedirs("/run/sshd", 0o755, exist_ok=True)  # sshd insists on it when it runs as root
        lines = [
            *self.lines,  # first, since sshd keeps the first value that it meets
            f"Port {self.port}",
            "ListenAddress 127.0.0.1",
            f'HostKey "{self.folder / "host_key"}"',
            f'PidFile "{self.folder / "sshd.pid"}"',
            f'AuthorizedKeysFile "{self.folder / "authorized_keys"}"',
            "StrictModes no",
            "UsePAM no",
            "PasswordAuthentication no",
            "KbdInteractiveAuthentication no",
            "PermitRootLogin prohibit-password",
            "PrintMotd no",
            "LogLevel VERBOSE",
            f"MaxSessions {self.max_sessions}",
            f"MaxStartups {self.max_startups}",
        ]
        if self.env:
            lines.append("SetEnv " + " ".join(_set_env(name, value) for name, value in self.env.items()))
        (self.folder / "sshd_config").write_text("\n".join(lines) + "\n", encoding="utf-8")

    def _launch(self, sshd: str) -> bool:
        argv = [*self.wrapper, sshd, "-D", "-f", str(self.folder / "sshd_config"), "-E", str(self.log)]
        # A session of its own: an interrupt at the terminal must not take the server down before its user does.
        self.process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        ends = time.monotonic() + START_LIMIT
        while time.monotonic() < ends and self.process.poll() is None:
            if self._answers():
                return self.process.poll() is None
            time.sleep(0.01)
        return False

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1.0) as sock:
                return sock.recv(4) == b"SSH-"
        except OSError:
            return False

    def _write_client_files(self) -> None:
        self.known_hosts.write_text(f"[127.0.0.1]:{self.port} {self.host_public}\n", encoding="ascii")
        self.ssh_config.write_text(
            f"Host {self.alias}\n"
            "  HostName 127.0.0.1\n"
            f"  Port {self.port}\n"
            f"  User {self.user}\n"
            f'  IdentityFile "{self.user_key}"\n'
            "  IdentitiesOnly yes\n"
            f'  UserKnownHostsFile "{self.known_hosts}"\n'
            "  GlobalKnownHostsFile none\n",
            encoding="utf-8",
        )
        self.ssh_config.chmod(0o600)

    def _log_tail(self) -> str:
        try:
            return " / ".join(self.log.read_text("utf-8", "replace").splitlines()[-5:]) or "it said nothing"
        except OSError:
            return "it left no log"

    @property
    def fingerprint(self) -> str:
        """`SHA256:…` of the host key."""
        digest = hashlib.sha256(base64.b64decode(self.host_public.split()[1])).digest()
        return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")


def _set_env(name: str, value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{name}={escaped}"'


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _parents() -> dict[int, tuple[int, str]]:
    """Every process: its parent and the name of its program."""
    done = subprocess.run(["ps", "-A", "-o", "pid=,ppid=,comm="], capture_output=True, check=False, text=True)
    found = {}
    for line in done.stdout.splitlines():
        pid, parent, name = (*line.split(None, 2), "")[:3]
        found[int(pid)] = (int(parent), os.path.basename(name))
    return found


def _under(pid: int, root: int, parents: Mapping[int, tuple[int, str]]) -> bool:
    """True if `pid` descends from `root` through processes of sshd only."""
    for _ in range(10):
        parent, name = parents.get(pid, (0, ""))
        if not name.startswith("sshd"):
            return False
        if parent == root:
            return True
        pid = parent
    return False
