"""The demo's host: an SSH server on loopback, run as whoever starts it, with simulated cards.

Everything lies in one folder (0700): keys, `ssh_config`, `known_hosts` and `hosts.yaml` for the client; `home/`, the
host's home folder; `bin/` and `lab/`, what its PATH and its simulated cards need; `demo.json`, who runs it. OpenSSH's
sshd is used where it is installed, else a server in Python. Linux only, since the host's side is.
"""

from __future__ import annotations

import getpass
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from jobrunner.core.errors import HostError, UsageError
from jobrunner.lab import simcards
from jobrunner.lab.processes import descendants, end_all, end_carriers, is_alive, start_ticks
from jobrunner.lab.sshd import LoopbackHost, SshdMissing, write_key_pair

ALIAS = "demo"
SCOPE = "JOBRUNNER_LEASE_SCOPE"
START_SECONDS = 20.0
LOGIN_SECONDS = 10.0
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

_left_running: list[subprocess.Popen[bytes]] = []  # servers that outlive us on purpose; reaped by `stop` if it is we


@dataclass(frozen=True)
class DemoHost:
    """A demo host that answers. `server` is "sshd" or "python"; `pid` and `ticks` name its process."""

    folder: str
    server: str
    port: int
    user: str
    device: str
    cards: int
    scope: str
    pid: int
    ticks: int

    @property
    def alias(self) -> str:
        """The name by which `--host` and listings know it."""
        return ALIAS

    @property
    def hosts_file(self) -> Path:
        """For `--hosts` or JOBRUNNER_HOSTS."""
        return Path(self.folder) / "hosts.yaml"

    @property
    def ssh_config(self) -> Path:
        """For `ssh -F`."""
        return Path(self.folder) / "ssh_config"

    @property
    def log(self) -> Path:
        """What the SSH server has to say."""
        return Path(self.folder) / ("sshd.log" if self.server == "sshd" else "server.log")

    @property
    def state_folder(self) -> Path:
        """For JOBRUNNER_HOME: a ledger that has nothing but the demo's jobs."""
        return Path(self.folder) / "state"


def folder_for(home: Path) -> Path:
    """The demo's folder for a state folder: `demo` in it; or the demo that the state folder itself belongs to."""
    return home.parent if home.name == "state" and (home.parent / "demo.json").is_file() else home / "demo"


def start(folder: Path, device: str = "npu", cards: int = 4, python: str = sys.executable) -> DemoHost:
    """Start the host, or return the one that runs in this folder already.

    `python` is what its `python3` runs: an interpreter that has numpy and scikit-learn. Raises UsageError where there
    is no Linux, HostError if the server does not come up.
    """
    if device not in simcards.TOOLS:
        raise UsageError(f"there are no simulated {device} cards", remedy=f"one of {', '.join(simcards.TOOLS)}")
    if sys.platform != "linux":
        raise UsageError(
            "the demo's host needs Linux: jobs are kept apart by the Linux kernel",
            remedy="run it on Linux, or submit to a real host from here: jobrunner init",
        )
    folder = folder.resolve()
    already = running(folder)
    if already is not None:
        return already
    _clear(folder)
    env = _lay_out(folder, device, cards, python)
    server, port, pid = _start_server(folder, env)
    ticks = start_ticks(pid)
    if ticks is None:
        raise HostError(f"the demo's host ended at once; its log is in {folder / 'server.log'}")
    host = DemoHost(str(folder), server, port, _user(), device, cards, env[SCOPE], pid, ticks)
    _write_client_files(host)
    _write(folder / "demo.json", json.dumps(asdict(host)))
    return host


def running(folder: Path) -> DemoHost | None:
    """The host that runs in this folder, or None."""
    try:
        host = DemoHost(**json.loads((folder.resolve() / "demo.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
    return host if is_alive(host.pid, host.ticks) else None


def stop(folder: Path, *, grace: float = 5.0) -> bool:
    """End the host and every job on it; False if none ran. What it wrote stays in the folder.

    Processes are sent TERM, and KILL `grace` seconds later.

    Raises HostError that names the processes which would not end.
    """
    folder = folder.resolve()
    try:
        host = DemoHost(**json.loads((folder / "demo.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return False
    was_alive = is_alive(host.pid, host.ticks)
    left = end_all({**descendants(host.pid), host.pid: host.ticks}, grace=grace) if was_alive else {}
    left.update(end_carriers(SCOPE, host.scope, grace=grace))
    _left_running[:] = [process for process in _left_running if process.poll() is None]
    if left:
        raise HostError(
            f"processes of the demo's host would not end: {', '.join(map(str, left))}",
            host=ALIAS,
            remedy="look at them with ps, and end them by hand",
        )
    (folder / "demo.json").unlink(missing_ok=True)
    return was_alive


def _clear(folder: Path) -> None:
    """A new host starts with a new home: a leftover of a dead one would only confuse."""
    stop(folder)
    for name in ("home", "bin", "lab", "state"):
        shutil.rmtree(folder / name, ignore_errors=True)
    for pattern in ("host_key*", "user_key*", "authorized_keys", "port", "server.*", "sshd*"):
        for path in folder.glob(pattern):
            path.unlink()


def _lay_out(folder: Path, device: str, cards: int, python: str) -> dict[str, str]:
    """Make the host's folders, cards and keys; returns the environment that its commands get."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        for name in ("home", "bin", "lab"):
            (folder / name).mkdir(mode=0o700)
    except OSError as error:
        raise UsageError(
            f"the demo's folder {folder} cannot be made: {error}", remedy="start the demo where you may write"
        ) from error
    wrapper = folder / "bin" / "python3"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(python)} "$@"\n', encoding="utf-8")
    wrapper.chmod(0o755)
    for name in ("host_key", "user_key"):
        write_key_pair(folder / name, "jobrunner-demo")
    simcards.write_lab(folder / "lab", device, cards)
    tool = simcards.TOOLS[device]  # this one only: a host with every vendor's tool would be a strange one
    (folder / "bin" / tool).symlink_to(simcards.tools_dir() / tool)
    return {
        "HOME": str(folder / "home"),
        "USER": _user(),
        "LOGNAME": _user(),
        "SHELL": _shell(),
        "LANG": "C.UTF-8",
        "PATH": f"{folder / 'bin'}:{SYSTEM_PATH}",
        "JOBRUNNER_LAB": str(folder / "lab"),
        SCOPE: f"demo-{secrets.token_hex(4)}",
    }


def _start_server(folder: Path, env: dict[str, str]) -> tuple[str, int, int]:
    """Start sshd, or the server in Python where there is none or it lets us not in. Returns kind, port and pid."""
    sshd = LoopbackHost(folder, alias=ALIAS, env=env, user=_user())
    try:
        sshd.start()
    except (SshdMissing, HostError, OSError):
        return _start_python_server(folder, env)
    process = sshd.process
    if process is None or not _lets_us_in(folder, sshd.port):  # a locked account, a login shell that refuses, ...
        sshd.stop()
        return _start_python_server(folder, env)
    _left_running.append(process)
    return "sshd", sshd.port, process.pid


def _lets_us_in(folder: Path, port: int) -> bool:
    """Whether a command can be run through the server."""
    import paramiko

    host_key = (folder / "host_key.pub").read_text(encoding="ascii").split()
    client = paramiko.SSHClient()
    client.get_host_keys().add(f"[127.0.0.1]:{port}", host_key[0], paramiko.Ed25519Key(data=_decoded(host_key[1])))
    try:
        client.connect(
            "127.0.0.1",
            port,
            _user(),
            key_filename=str(folder / "user_key"),
            allow_agent=False,
            look_for_keys=False,
            timeout=LOGIN_SECONDS,
            banner_timeout=LOGIN_SECONDS,
            auth_timeout=LOGIN_SECONDS,
        )
        _, answer, _ = client.exec_command("echo in", timeout=LOGIN_SECONDS)
        return bytes(answer.read()).split() == [b"in"]
    except (paramiko.SSHException, OSError, EOFError):
        return False
    finally:
        client.close()


def _decoded(text: str) -> bytes:
    import base64

    return base64.b64decode(text)


def _start_python_server(folder: Path, env: dict[str, str]) -> tuple[str, int, int]:
    settings = {
        "port": 0,
        "user": _user(),
        "home": env["HOME"],
        "shell": env["SHELL"],
        "env": env,
        "host_key": str(folder / "host_key"),
        "authorized_keys": str(folder / "user_key.pub"),
        "ready": str(folder / "port"),
    }
    _write(folder / "server.json", json.dumps(settings))
    package_root = str(Path(__file__).resolve().parents[2])
    search = os.pathsep.join(filter(None, [package_root, os.environ.get("PYTHONPATH", "")]))
    with open(folder / "server.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "jobrunner.lab.paramikohost", str(folder / "server.json")],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": search},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            port = int((folder / "port").read_text(encoding="ascii"))  # written once it listens
            _left_running.append(process)
            return "python", port, process.pid
        except (OSError, ValueError):
            time.sleep(0.02)
    process.kill()
    process.wait()
    tail = (folder / "server.log").read_text(encoding="utf-8", errors="replace")[-2000:]
    raise HostError(
        f"the demo's SSH server did not come up within {START_SECONDS:.0f} s: {tail or 'it wrote nothing'}",
        host=ALIAS,
        remedy=f"see {folder / 'server.log'}",
    )


def _write_client_files(host: DemoHost) -> None:
    """hosts.yaml, ssh_config and known_hosts: all that a client needs, and nothing of the user's own is touched."""
    folder = Path(host.folder)
    host_key = " ".join((folder / "host_key.pub").read_text(encoding="ascii").split()[:2])
    _write(folder / "known_hosts", f"[127.0.0.1]:{host.port} {host_key}\n")
    _write(
        host.ssh_config,
        f"Host {ALIAS}\n"
        "    HostName 127.0.0.1\n"
        f"    Port {host.port}\n"
        f"    User {host.user}\n"
        f'    IdentityFile "{folder / "user_key"}"\n'
        "    IdentitiesOnly yes\n"
        f'    UserKnownHostsFile "{folder / "known_hosts"}"\n'
        "    GlobalKnownHostsFile /dev/null\n"
        "    StrictHostKeyChecking yes\n",
    )
    quoted = json.dumps  # a JSON string is a YAML string, whatever the folder is called
    _write(
        host.hosts_file,
        f"# The demo's host: an SSH server on this machine. Its {host.cards} {host.device} cards are simulated.\n"
        f"ssh_config: {quoted(str(host.ssh_config))}\n"
        "hosts:\n"
        f"  {ALIAS}:\n"
        f"    device: {host.device}\n"
        f"    root: {quoted(str(folder / 'home' / '.jobrunner'))}\n"
        "    tags: [simulated]\n",
    )


def _write(path: Path, text: str) -> None:
    """Write a file that only we may read; whoever sees it sees it whole."""
    aside = path.with_name(path.name + ".part")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
    aside.replace(path)


def _user() -> str:
    """The name under which one logs in here: our own."""
    import pwd

    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # a container with a bare number for a user
        try:
            return getpass.getuser()
        except (KeyError, OSError):
            return "demo"


def _shell() -> str:
    return shutil.which("bash", path=SYSTEM_PATH) or "/bin/sh"
