"""One command on one SSH channel of the demo's Python server: its pipes or its terminal, and its exit status."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable
from typing import IO

import paramiko

PIECE = 1 << 15
# A session's leader gets the first terminal that it opens as its controlling one; then the user's shell takes over.
TAKE_TERMINAL = 'exec 0<>"$0" 1>&0 2>&0; exec "$@"'


class Execution:
    """A channel's command. `start` runs it; threads of its own carry the bytes both ways.

    `answered` is set by the server once the client has been told that its request was granted.
    """

    def __init__(self, channel: paramiko.Channel, *, shell: str, home: str, env: dict[str, str]) -> None:
        self.channel = channel
        self.shell = shell
        self.home = home
        self.env = dict(env)
        self.terminal: tuple[int, int] | None = None  # master, slave
        self.answered = threading.Event()

    def want_terminal(self, term: bytes, width: int, height: int) -> None:
        """The client asked for a terminal before its command."""
        self.env["TERM"] = os.fsdecode(term) or "dumb"
        self.terminal = pty.openpty()
        self.resize(width, height)

    def resize(self, width: int, height: int) -> None:
        """Set the terminal's size in characters; the kernel tells the programs on it."""
        if self.terminal is not None:
            try:
                fcntl.ioctl(self.terminal[0], termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            except OSError:  # closed meanwhile
                pass

    def start(self, arguments: list[str]) -> None:
        """Run the shell with these arguments in a session of its own."""
        words = [self.shell, *arguments]
        if self.terminal is not None:
            words = ["/bin/sh", "-c", TAKE_TERMINAL, os.ttyname(self.terminal[1]), *words]
        pipe = subprocess.DEVNULL if self.terminal is not None else subprocess.PIPE
        process = subprocess.Popen(
            words, cwd=self.home, env=self.env, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        target = self._serve_terminal if self.terminal is not None else self._serve_pipes
        threading.Thread(target=target, args=(process,), daemon=True).start()

    def _serve_pipes(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin and process.stdout and process.stderr
        threading.Thread(target=self._feed, args=(process.stdin.fileno(), process.stdin.close), daemon=True).start()
        readers = [
            threading.Thread(target=pump, args=(process.stdout, self.channel.sendall), daemon=True),
            threading.Thread(target=pump, args=(process.stderr, self.channel.sendall_stderr), daemon=True),
        ]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        self._finish(process.wait())

    def _serve_terminal(self, process: subprocess.Popen[bytes]) -> None:
        assert self.terminal is not None
        master, slave = self.terminal
        threading.Thread(target=self._feed, args=(master, lambda: self._hang_up(process)), daemon=True).start()
        screen = os.fdopen(os.dup(master), "rb", buffering=0)
        reader = threading.Thread(target=pump, args=(screen, self.channel.sendall), daemon=True)
        reader.start()
        status = process.wait()
        self.terminal = None
        os.close(slave)  # the last one open here: the reader sees the end once what was written has been read
        reader.join(2.0)
        self._finish(status)
        os.close(master)

    def _feed(self, handle: int, at_end: Callable[[], object]) -> None:
        """The client's bytes to the command, until the client sends no more or the command reads no more."""
        try:
            while data := self.channel.recv(PIECE):
                write_all(handle, data)
        except OSError:  # a broken pipe, a closed terminal, or a lost connection
            pass
        try:
            at_end()
        except OSError:
            pass

    def _hang_up(self, process: subprocess.Popen[bytes]) -> None:
        """The client is gone and its terminal with it: the session is told so. One that only stopped sending is not."""
        if self.channel.closed and process.poll() is None:
            os.killpg(process.pid, signal.SIGHUP)

    def _finish(self, status: int) -> None:
        self.answered.wait(1.0)  # a close that overtakes the answer to the request would look like a refusal
        try:
            self.channel.send_exit_status(status if status >= 0 else 128 - status)
            self.channel.close()
        except (OSError, EOFError, paramiko.SSHException):  # nobody is there any more to hear it
            pass


def pump(source: IO[bytes], send: Callable[[bytes], object]) -> None:
    """Bytes from a command to the client until either ends, then close: who writes on gets SIGPIPE, as under sshd."""
    try:
        with source:
            while data := os.read(source.fileno(), PIECE):
                send(data)
    except (OSError, EOFError):  # a terminal whose last program has ended, or a client that has gone
        pass


def write_all(handle: int, data: bytes) -> None:
    """Write all of it to a descriptor."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(handle, rest) :]
