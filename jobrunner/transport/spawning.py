"""The command lines of OpenSSH's client, and its start. Little is imported here: it may come before everything else.

A master can be started ahead (`begin`), by what is remembered of its host. Whoever needs it (`spawn`) gets that very
process if it has the very same command line; otherwise it is ended.
"""

from __future__ import annotations

import atexit
import contextlib
import math
import os
import subprocess
import threading
from pathlib import Path

from jobrunner.core.values import dataclass
from jobrunner.transport import mux, sockets
from jobrunner.transport.sshconfig import parse_address

PERSIST_S = 600  # a connection that nobody uses ends after so long

Process = subprocess.Popen[bytes]


@dataclass(frozen=True)
class Route:
    """What of a host's target goes into the command line. `strict` is the configuration's StrictHostKeyChecking,
    `ciphers` its Ciphers by commas, "" where they are not known."""

    alias: str
    address: str | None
    ssh_config: str | None
    strict: str
    ciphers: str = ""


def argv(route: Route, *, options: list[str], flags: list[str]) -> list[str]:
    """`ssh` for this host by its own SSH configuration, with `flags`, and `options` that win over it."""
    wanted = parse_address(route.address or route.alias)
    words = [sockets.ssh_program(), *flags, "-a", "-x"]
    words += ["-F", os.path.abspath(os.path.expanduser(route.ssh_config))] if route.ssh_config else []
    words += ["-l", wanted.user] if wanted.user else []
    words += ["-p", str(wanted.port)] if wanted.port else []
    for option in [
        *options,
        f"StrictHostKeyChecking={'accept-new' if route.strict in ('accept-new', 'no') else 'yes'}",
        "ClearAllForwardings=yes",
        "PermitLocalCommand=no",
        "RemoteCommand=none",
        "UpdateHostKeys=no",
        "CheckHostIP=no",
    ]:
        words += ["-o", option]
    return [*words, "--", wanted.host]


def control_path(path: Path) -> str:
    """The option that names a control socket, as `ssh` reads it."""
    return 'ControlPath="{}"'.format(str(path).replace("%", "%%"))


def master_argv(
    route: Route,
    path: Path,
    *,
    limit: float,
    probe_s: float,
    dead_after_s: float,
    ask: bool = False,
    persist_s: int = PERSIST_S,
) -> list[str]:
    """The command line of a master that listens at `path`, with the limits of its connect and of its silence. It ends
    when it was idle for `persist_s`."""
    every = max(1, round(probe_s))
    options = [
        "ControlMaster=yes",
        control_path(path),
        f"ControlPersist={persist_s}",
        f"BatchMode={'no' if ask else 'yes'}",
        f"ConnectTimeout={max(1, math.ceil(limit))}",
        "ConnectionAttempts=1",
        f"ServerAliveInterval={every}",
        f"ServerAliveCountMax={max(1, math.ceil(dead_after_s / every) - 1)}",
        "LogLevel=DEBUG1",
        *_fast(route.ciphers),
    ]
    return argv(route, options=options, flags=["-M", "-N", "-T"])


def _fast(ciphers: str) -> list[str]:
    """The option for the ciphers that the configuration allows, AES-GCM first: quickest where processors have AES."""
    names = ciphers.split(",")
    quick = [name for name in names if name.endswith("-gcm@openssh.com")]
    return [f"Ciphers={','.join(dict.fromkeys([*quick, *names]))}"] if quick else []


_early: dict[Path, tuple[list[str], Process]] = {}
_early_lock = threading.Lock()
_starting: set[Process] = set()


def begin(path: Path, words: list[str]) -> None:
    """Start a master before anybody needs it. Nothing goes wrong aloud."""
    with contextlib.suppress(OSError), _early_lock:
        _early[path] = (words, _spawn(words, own_session=True))


def spawn(path: Path, words: list[str], *, own_session: bool) -> Process:
    """The process of a master with this command line, begun ahead or started now. Raises OSError."""
    with _early_lock:
        early = _early.pop(path, None)
    if early is not None:
        if early[0] == words:
            return early[1]
        end(early[1])
    return _spawn(words, own_session=own_session)


def is_begun(path: Path) -> bool:
    """True if a master for this socket was begun ahead and nobody has taken it."""
    return path in _early


def discard() -> None:
    """End the masters that were begun ahead and that nobody has taken."""
    with _early_lock:
        left = list(_early.items())
        _early.clear()
    for path, (_, process) in left:
        end(process)
        if process.returncode == 0:  # it is logged in already
            mux.terminate(path)


def _spawn(words: list[str], *, own_session: bool) -> Process:
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        bufsize=0,
        env={**os.environ, "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"},
        start_new_session=own_session,  # an interrupt at the terminal is ours to handle
    )
    _starting.add(process)
    return process


@atexit.register
def _end_all() -> None:
    """Whoever waits for a start may be a thread that is not waited for: no start outlives this process."""
    for process in list(_starting):
        if process.poll() is None:
            process.terminate()


def end(process: Process) -> None:
    """Nothing is left of a start: the first process has handed the connection on, or it goes."""
    assert process.stderr is not None
    _starting.discard(process)
    process.stderr.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
