"""Starting OpenSSH's client as the holder of a shared connection, and waiting until it is logged in."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import threading
import time
from pathlib import Path

from jobrunner.core.errors import AuthError, HostError, LinkLostError
from jobrunner.transport import spawning, sshwords
from jobrunner.transport.settings import HostTarget

PERSON_S = 120.0  # how long a person may take to answer what ssh asks
_TERMINAL = threading.Lock()


def route(target: HostTarget) -> spawning.Route:
    """What of a target goes into `ssh`'s command line."""
    return spawning.Route(target.alias, target.address, target.ssh_config, target.config.strict, target.config.ciphers)


def start(
    target: HostTarget, path: Path, *, ask: bool, stop: threading.Event, persist_s: int = spawning.PERSIST_S
) -> sshwords.Heard:
    """Connect, log in, and leave the connection to a process of its own that listens at `path`.

    With `ask`, ssh may ask the person at the terminal; otherwise it never asks. Raises a HostError. If somebody else
    listens there already, nothing is left of ours (`elsewhere` of what is returned).
    """
    settings = target.settings
    words = spawning.master_argv(
        route(target),
        path,
        limit=target.connect_limit,
        probe_s=settings.probe_s,
        dead_after_s=settings.dead_after_s,
        ask=ask,
        persist_s=persist_s,
    )
    with _TERMINAL if ask else contextlib.nullcontext():
        try:
            process = spawning.spawn(path, words, own_session=not ask)
        except OSError as error:
            raise HostError(f"cannot run {words[0]}: {error}", host=target.alias, code="ssh") from error
        try:
            return _Start(target, process, ask, stop).wait()
        finally:
            spawning.end(process)


class _Start:
    """The course of one start, read from what ssh says."""

    def __init__(self, target: HostTarget, process: spawning.Process, ask: bool, stop: threading.Event) -> None:
        self.target, self.process, self.ask, self.stop = target, process, ask, stop
        self.heard = sshwords.Heard()
        self._rest = b""

    def _count(self, stage: str, seconds: float) -> None:
        name = "authenticate" if stage == "login" else "connect"
        self.heard.took[name] = self.heard.took.get(name, 0.0) + seconds

    def _limit(self) -> float:
        """Seconds for the stage that it is in."""
        config, settings = self.target.config, self.target.settings
        through = bool(config.proxy_jump or config.proxy_command)
        if self.ask and (through or self.heard.stage == "login"):
            return PERSON_S
        if self.heard.stage == "login":
            return settings.auth_s
        return self.target.connect_limit * (2 if through else 1)

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
