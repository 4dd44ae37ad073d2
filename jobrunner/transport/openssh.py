"""The second transport: connections that OpenSSH's own client holds, shared by all commands of some minutes.

A shared connection is ours (made by `master`, its socket in the state folder) or the user's own (ControlMaster and
ControlPath of the SSH configuration). It outlives the command; the next one logs in no more.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from jobrunner.core.errors import HostError, LinkLostError
from jobrunner.transport import mux, sockets, spawning
from jobrunner.transport.settings import HostTarget

INHERITED_S = 6.0  # a connection that was there already, and gives no channel for so long, is taken for dead
BULK_PERSIST_S = 60  # a connection for one transfer ends by itself where its command was killed
_silent: set[Path] = set()  # connections of the user's that did not answer, in this process


class Inherited(LinkLostError):
    """A connection that was there already turned out to be dead: a new one may work."""


class SharedConnection:
    """A connection over a control socket (see `channel.Connection`). `own` if the master is one of ours."""

    kind = "openssh"
    shared = True
    farewell = ""

    def __init__(self, target: HostTarget, path: Path, *, own: bool, fresh: bool, spare: int = 0) -> None:
        self.target, self.path, self.own, self.fresh, self.spare = target, path, own, fresh, spare
        self.banner = ""
        self.round_trip = 0.0
        self.fell_silent = False
        self.took: dict[str, float] = {}
        self._closed = False

    @property
    def is_connected(self) -> bool:
        return not self._closed and not self.fell_silent and mux.master_pid(self.path) is not None

    def is_active(self) -> bool:
        """paramiko's word for `is_connected`."""
        return self.is_connected

    @property
    def transport(self) -> Any:
        return self

    def start_channel(self, command: str, limit: float, round_trip: float) -> mux.MuxChannel:
        """See `channel.Connection`. Raises Inherited where the connection was there before us and is dead."""
        limit = limit if self.fresh else min(limit, INHERITED_S)
        began = time.monotonic()
        try:
            channel = mux.MuxChannel(self.path, command, self, limit)
        except (OSError, EOFError) as error:
            late = isinstance(error, TimeoutError)
            if late or not self.fresh:
                self._give_up(late)
            if self.fresh:
                raise
            raise Inherited(
                f"the shared connection to {self.target.alias} gave no channel: {error or 'no answer'}",
                host=self.target.alias,
                code="timeout" if late else "link_lost",
                remedy=f"End it: `jobrunner hosts disconnect {self.target.alias}`."
                if self.own
                else f"End it: `ssh -O exit {self.target.alias}`.",
            ) from error
        took = time.monotonic() - began
        self.round_trip = min(self.round_trip, took) if self.round_trip else took
        self.fresh = True  # it has shown that it lives
        return channel

    def _give_up(self, late: bool) -> None:
        """Nothing comes from the host any more: no other command shall wait for this connection, too."""
        self.fell_silent = late
        if self.own:
            mux.terminate(self.path)
            sockets.remove(self.path)
        else:
            _silent.add(self.path)

    def run_on_terminal(self, argv: list[str]) -> int:
        """Run a program of the host on this terminal, by an `ssh` of its own over this connection."""
        from jobrunner.transport import master
        from jobrunner.transport.bootstrap import words_command
        from jobrunner.transport.failures import link_lost
        from jobrunner.transport.terminal import require_terminal

        require_terminal()
        options = ["ControlMaster=no", spawning.control_path(self.path), "BatchMode=yes", "LogLevel=ERROR"]
        words = spawning.argv(master.route(self.target), flags=["-t"], options=options)
        code = _run_here([*words, words_command(self.target.python, argv)])
        if code == 255 and not self.is_connected:
            raise link_lost(self.target.alias, self)
        return code

    def close(self) -> None:
        """Nothing is opened over it any more. The connection stays for others."""
        self._closed = True


class OwnConnection(SharedConnection):
    """A connection for the transfers of one command, over a master of its own: it ends when it is closed."""

    def close(self) -> None:
        """End the connection and its master."""
        if not self._closed:
            super().close()
            mux.terminate(self.path)
            sockets.remove(self.path)


def _run_here(words: list[str]) -> int:
    """Run a program on this terminal to its end; it is told of a new size even where the terminal does not do so."""
    size = shutil.get_terminal_size()
    process = subprocess.Popen(words)
    try:
        while True:
            try:
                return process.wait(0.25)
            except subprocess.TimeoutExpired:
                now = shutil.get_terminal_size()
            if now != size:
                size = now
                process.send_signal(signal.SIGWINCH)
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()


def impossible(target: HostTarget, *, make: bool = False) -> str:
    """Why there can be no shared connection here, in a few words; "" where there can. `make`: one is going to be made,
    so the folder for its socket is."""
    if not hasattr(socket, "AF_UNIX") or not hasattr(socket, "send_fds"):
        return "this system has no sockets that programs can share"
    if not sockets.ssh_program():
        return "there is no `ssh` program"
    if target.settings.sockets is None or sockets.folder(target.settings.sockets, make=make) is None:
        return "there is no private folder with a short enough name for its socket"
    return ""


def find(target: HostTarget, spare: int = 0) -> SharedConnection | None:
    """The shared connection that is up already: the user's own, else one of ours."""
    theirs = Path(target.config.control_path) if target.config.control_path else None
    if theirs is not None and not spare and theirs not in _silent and _is_ours(theirs):
        return SharedConnection(target, theirs, own=False, fresh=False)
    path = _path(target, spare)
    if path is not None and path.exists() and mux.master_pid(path) is not None:
        return SharedConnection(target, path, own=True, fresh=False, spare=spare)
    return None


def _is_ours(path: Path) -> bool:
    """True if a master of this user listens there."""
    with contextlib.suppress(OSError):
        return os.stat(path).st_uid == os.getuid() and mux.master_pid(path) is not None
    return False


def _path(target: HostTarget, spare: int) -> Path | None:
    wanted = target.settings.sockets
    place = sockets.folder(wanted) if wanted is not None else None
    return sockets.socket_path(place, target.config.digest, spare) if place is not None else None


def open_shared(target: HostTarget, stop: threading.Event, spare: int = 0) -> SharedConnection:
    """The shared connection to a host, made if there is none. Raises a HostError that says what is wrong."""
    path = _path(target, spare)
    if path is None:
        raise HostError(impossible(target), host=target.alias, code="ssh")
    found = None if spawning.is_begun(path) else find(target, spare)
    if found is not None:
        return found
    with sockets.locked(path, target.connect_limit + target.settings.auth_s):
        if not spawning.is_begun(path):
            found = find(target, spare)  # another command may have made it meanwhile
            if found is not None:
                return found
            with contextlib.suppress(OSError):
                path.unlink()  # left by a master that died
        return _start(target, path, spare, stop)


def open_own(target: HostTarget, stop: threading.Event) -> SharedConnection:
    """A connection for big transfers: one that is up already, else one for this command alone, which nobody is asked
    about. Raises a HostError that says what is wrong."""
    from jobrunner.transport import master

    found = find(target)
    if found is not None:
        return found
    place = sockets.folder(target.settings.sockets, make=True) if target.settings.sockets is not None else None
    if place is None:
        raise HostError(impossible(target), host=target.alias, code="ssh")
    path = sockets.socket_path(place, secrets.token_hex(8), 9)
    sockets.note(path, target.alias, f"{target.config.user}@{target.config.hostname}:{target.config.port}")
    try:
        heard = master.start(target, path, ask=False, stop=stop, persist_s=BULK_PERSIST_S)
    except BaseException:
        sockets.remove(path)
        raise
    connection = OwnConnection(target, path, own=True, fresh=True)
    connection.took = heard.took
    return connection


def _start(target: HostTarget, path: Path, spare: int, stop: threading.Event) -> SharedConnection:
    from jobrunner.transport import master

    asking = path.with_name(f"{target.config.digest}.asks")  # there: a person had to help the last time
    ask = target.settings.attended and asking.exists()
    # Before it starts: should we be killed meanwhile, `hosts disconnect` still knows what it belongs to.
    sockets.note(path, target.alias, f"{target.config.user}@{target.config.hostname}:{target.config.port}")
    try:
        try:
            heard = master.start(target, path, ask=ask, stop=stop)
        except HostError as error:
            if ask or not master.may_ask(error, target):
                raise
            ask, heard = True, master.start(target, path, ask=True, stop=stop)
    except BaseException:
        if not path.exists():
            sockets.remove(path)
        raise
    if ask:
        with contextlib.suppress(OSError):
            asking.touch(0o600)
    connection = SharedConnection(target, path, own=True, fresh=not heard.elsewhere, spare=spare)
    connection.banner = "".join(f"{line}\n" for line in heard.banner)
    connection.took = heard.took
    return connection
