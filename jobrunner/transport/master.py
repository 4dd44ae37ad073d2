"""Starting OpenSSH's client as the holder of a shared connection, and waiting until it is logged in."""

from __future__ import annotations

import contextlib
import math
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from jobrunner.core.errors import AuthError, HostError, LinkLostError
from jobrunner.transport import sshwords
from jobrunner.transport.settings import HostTarget
from jobrunner.transport.sshconfig import parse_address

PERSIST_S = 600  # a connection that nobody uses ends after so long
PERSON_S = 120.0  # how long a person may take to answer what ssh asks
_TERMINAL = threading.Lock()


def program() -> str:
    """The `ssh` to run, "" where there is none that can share connections."""
    return "" if os.name == "nt" else shutil.which("ssh") or ""


def argv(target: HostTarget, *, options: list[str], flags: list[str]) -> list[str]:
    """`ssh` for this host by its own SSH configuration, with `flags`, and `options` that win over it."""
    wanted = parse_address(target.address or target.alias)
    words = [program(), *flags, "-a", "-x"]
    words += ["-F", os.path.abspath(os.path.expanduser(target.ssh_config))] if target.ssh_config else []
    words += ["-l", wanted.user] if wanted.user else []
    words += ["-p", str(wanted.port)] if wanted.port else []
    for option in [
        *options,
        f"StrictHostKeyChecking={'accept-new' if target.config.strict in ('accept-new', 'no') else 'yes'}",
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


def start(target: HostTarget, path: Path, *, ask: bool, stop: threading.Event) -> sshwords.Heard:
    """Connect, log in, and leave the connection to a process of its own that listens at `path`.

    With `ask`, ssh may ask the person at the terminal; otherwise it never asks. Raises a HostError. If somebody else
    listens there already, nothing is left of ours (`elsewhere` of what is returned).
    """
    settings, limit = target.settings, target.connect_limit
    words = argv(
        target,
        flags=["-M", "-N", "-T"],
        options=[
            "ControlMaster=yes",
            control_path(path),
            f"ControlPersist={PERSIST_S}",
            f"BatchMode={'no' if ask else 'yes'}",
            f"ConnectTimeout={max(1, math.ceil(limit))}",
            "ConnectionAttempts=1",
            f"ServerAliveInterval={max(1, round(settings.probe_s))}",
            f"ServerAliveCountMax={max(1, math.ceil(settings.dead_after_s / max(1, round(settings.probe_s))) - 1)}",
            "LogLevel=DEBUG1",
        ],
    )
    environ = {**os.environ, "LC_ALL": "C", "SSH_ASKPASS_REQUIRE": "never"}
    with _TERMINAL if ask else contextlib.nullcontext():
        try:
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                env=environ,
                start_new_session=not ask,  # an interrupt at the terminal is ours to handle
            )
        except OSError as error:
            raise HostError(f"cannot run {words[0]}: {error}", host=target.alias, code="ssh") from error
        try:
            return _Start(target, process, ask, stop).wait()
        finally:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Nothing is left of a start: the first process has handed the connection on, or it goes."""
    assert process.stderr is not None
    process.stderr.close()
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(1.0)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()


class _Start:
    """The course of one start, read from what ssh says."""

    def __init__(self, target: HostTarget, process: subprocess.Popen[bytes], ask: bool, stop: threading.Event) -> None:
        self.target, self.process, self.ask, self.stop = target, process, ask, stop
        self.heard = sshwords.Heard()
        self._rest = b""

    def _count(self, stage: str, seconds: float) -> None:
        name = "authenticate" if stage == "login" else "connect"
        self.heard.took[name] = self.heard.took.get(name, 0.0) + seconds

    def _limit(self) -> float:
        """Seconds for the stage that it is in."""
        if self.heard.stage == "login":
            return PERSON_S if self.ask else self.target.settings.auth_s
        return self.target.connect_limit

    def wait(self) -> sshwords.Heard:
        assert self.process.stderr is not None
        handle = self.process.stderr.fileno()
        waiting = select.poll()
        waiting.register(handle, select.POLLIN)
        stage, began = self.heard.stage, time.monotonic()
        while True:
            if waiting.poll(50):
                piece = os.read(handle, 65536)
                self._take(piece)
                if not piece:
                    return self._ended(self.process.wait())
            elif self.process.poll() is not None:  # it has gone to the background, where it may keep the pipe
                return self._ended(self.process.returncode)
            if self.heard.elsewhere:
                return self.heard
            if self.stop.is_set():
                raise LinkLostError(
                    f"the link to {self.target.alias} was closed", host=self.target.alias, code="closed"
                )
            if self.heard.stage != stage:
                self._count(stage, time.monotonic() - began)
                stage, began = self.heard.stage, time.monotonic()
            if time.monotonic() - began > self._limit() and self.process.poll() is None:
                raise sshwords.silent(self.target, self.heard, self._limit())

    def _take(self, piece: bytes) -> None:
        *lines, self._rest = (self._rest + piece).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").rstrip("\r")
            if self.heard.add(text) and self.ask and self.heard.stage == "login":
                sys.stderr.write(text + "\n")
                sys.stderr.flush()

    def _ended(self, code: int) -> sshwords.Heard:
        if self._rest:
            self._take(b"\n")
        if code == 0:
            return self.heard
        raise sshwords.failure(self.target, self.heard)


def may_ask(error: HostError, target: HostTarget) -> bool:
    """True if a person at the terminal could get on where this failed: a passphrase, a password, a code."""
    return target.settings.attended and isinstance(error, AuthError) and error.code in ("second_factor", "passphrase")
