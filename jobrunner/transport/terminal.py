"""A program of the host on this terminal: raw keys there, its screen here, the window's size kept equal."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
from collections.abc import Iterator
from typing import Any

from jobrunner.core.errors import UsageError
from jobrunner.transport.bootstrap import words_command
from jobrunner.transport.failures import link_lost
from jobrunner.transport.settings import HostTarget

RESIZE_S = 0.25


def require_terminal() -> None:
    """Raise UsageError where a program of the host cannot be shown."""
    if os.name == "nt":
        raise UsageError(
            "a live terminal is not to be had from Windows",
            code="no_terminal",
            remedy="Use WSL, or `jobrunner logs -f`.",
        )
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError(
            "a live terminal needs a terminal here: standard input or output is none",
            code="no_terminal",
            remedy="Run it at a terminal; `jobrunner logs -f` works without one.",
        )


def run_on_terminal(transport: Any, target: HostTarget, argv: list[str]) -> int:
    """Run `argv` in a pseudo-terminal of the host, connected to ours; its exit code.

    Raises UsageError where there is no terminal here, LinkLostError where the connection ends.
    """
    require_terminal()
    size = shutil.get_terminal_size()
    channel = transport.open_session(timeout=target.settings.channel_s)
    try:
        channel.get_pty(os.environ.get("TERM") or "xterm", size.columns, size.lines)
        channel.exec_command(words_command(target.python, argv))
        with _raw(sys.stdin.fileno()):
            _shuttle(channel, sys.stdin.fileno(), sys.stdout.fileno())
        channel.status_event.wait(2.0)
        if not transport.is_active():
            raise link_lost(target.alias, transport)
        return int(channel.exit_status) if channel.exit_status >= 0 else 255
    finally:
        channel.close()


@contextlib.contextmanager
def _raw(handle: int) -> Iterator[None]:
    """Every key goes through as it is; what the terminal was before comes back in any case."""
    import termios
    import tty

    before = termios.tcgetattr(handle)
    try:
        tty.setraw(handle)
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)


def _shuttle(channel: Any, keys: int, screen: int) -> None:
    """Copy both ways until the program ends."""
    ended = threading.Event()
    threading.Thread(target=_follow_size, args=(channel, ended), name="terminal-size", daemon=True).start()
    threading.Thread(target=_send_keys, args=(channel, keys, ended), name="terminal-keys", daemon=True).start()
    channel.settimeout(None)
    try:
        while data := channel.recv(65536):
            while data:
                data = data[os.write(screen, data) :]
    finally:
        ended.set()


def _send_keys(channel: Any, keys: int, ended: threading.Event) -> None:
    import select

    with contextlib.suppress(OSError, EOFError):
        while not ended.is_set():
            ready, _, _ = select.select([keys], [], [], RESIZE_S)
            if not ready:
                continue
            data = os.read(keys, 4096)
            if not data:
                channel.shutdown_write()
                return
            channel.sendall(data)


def _follow_size(channel: Any, ended: threading.Event) -> None:
    import paramiko

    size = shutil.get_terminal_size()
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while not ended.wait(RESIZE_S):
            now = shutil.get_terminal_size()
            if now != size:
                size = now
                channel.resize_pty(size.columns, size.lines)
