"""Speaking to a running `ssh` that shares its connection: the protocol of its control socket (PROTOCOL.mux, version 4).

One process of OpenSSH, the master, holds the connection; whoever can open its socket gets channels from it. To speak
to it ourselves saves a process for every channel, and tells apart what `ssh` has only the exit code 255 for.

POSIX only: file handles are passed through the socket.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from jobrunner.transport.channel import ChannelRefused

VERSION = 4
_HELLO = 0x00000001
_NEW_SESSION = 0x10000002
_ALIVE_CHECK = 0x10000004
_TERMINATE = 0x10000005
_OK = 0x80000001
_DENIED = 0x80000002
_FAILURE = 0x80000003
_EXIT = 0x80000004
_ALIVE = 0x80000005
_OPENED = 0x80000006
_NO_ESCAPE = 0xFFFFFFFF
_LONGEST = 1 << 20
PIPE = 512 * 1024
_FROM_FILES = str(sys.platform) == "linux"  # elsewhere `sendfile` is for sockets
LOCAL_S = 2.0  # how long a master may take for what needs no network


class NotAMaster(OSError):
    """Something else than OpenSSH's master answers at a control socket, or it answers nothing."""


def _u32(*values: int) -> bytes:
    return struct.pack(f">{len(values)}I", *values)


def _text(data: bytes) -> bytes:
    return _u32(len(data)) + data


class Control:
    """A connection to a master's socket. Raises OSError: FileNotFoundError or ConnectionRefusedError for none there."""

    def __init__(self, path: Path, limit: float = LOCAL_S) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._seen = b""
        try:
            self.sock.settimeout(limit)
            self.sock.connect(os.fspath(path))
            self.send(_u32(_HELLO, VERSION))
            kind, body = self.receive(limit)
            if kind != _HELLO or len(body) < 4 or struct.unpack(">I", body[:4])[0] != VERSION:
                raise NotAMaster(f"{path} speaks another protocol than OpenSSH's")
        except BaseException:
            self.sock.close()
            raise

    def send(self, message: bytes) -> None:
        """Send one message. Raises OSError."""
        self.sock.settimeout(LOCAL_S)
        self.sock.sendall(_text(message))

    def receive(self, limit: float) -> tuple[int, bytes]:
        """The next message: its kind and the rest. Raises TimeoutError, EOFError at the end, OSError."""
        ends = time.monotonic() + limit
        while True:
            message = self._whole()
            if message is not None:
                return message
            self.sock.settimeout(max(ends - time.monotonic(), 0.001))
            piece = self.sock.recv(4096)
            if not piece:
                raise EOFError("the shared connection's process closed its control socket")
            self._seen += piece

    def _whole(self) -> tuple[int, bytes] | None:
        if len(self._seen) < 4:
            return None
        length = struct.unpack(">I", self._seen[:4])[0]
        if not 4 <= length <= _LONGEST:
            raise NotAMaster("a message that is none came from the control socket")
        if len(self._seen) < 4 + length:
            return None
        message, self._seen = self._seen[4 : 4 + length], self._seen[4 + length :]
        return struct.unpack(">I", message[:4])[0], message[4:]

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Control:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def master_pid(path: Path) -> int | None:
    """The process id of the master at a socket, or None where none answers. The network is not asked."""
    with contextlib.suppress(OSError, EOFError), Control(path) as control:
        control.send(_u32(_ALIVE_CHECK, 0))
        kind, body = control.receive(LOCAL_S)
        if kind == _ALIVE and len(body) >= 8:
            return int(struct.unpack(">I", body[4:8])[0])
    return None


def terminate(path: Path) -> bool:
    """Ask the master at a socket to end its connection and itself; False where none answers, or it will not."""
    try:
        with Control(path) as control:
            control.send(_u32(_TERMINATE, 0))
            try:
                return control.receive(LOCAL_S)[0] == _OK
            except EOFError:
                return True  # it was gone before it could say so
    except (OSError, EOFError):
        return False


class _Pipes:
    """The three streams of a session: our ends (`ours`: input, output, errors) and the master's."""

    def __init__(self) -> None:
        self.ours: list[int] = []
        self.theirs: list[int] = []
        try:
            for mine_writes in (True, False, False):
                reader, writer = os.pipe()
                self.ours.append(writer if mine_writes else reader)
                self.theirs.append(reader if mine_writes else writer)
                os.set_blocking(self.ours[-1], False)
                _widen(self.ours[-1])
        except BaseException:
            self.close(self.ours, self.theirs)
            raise

    @staticmethod
    def close(*groups: list[int]) -> None:
        for group in groups:
            while group:
                os.close(group.pop())


def _widen(pipe: int) -> None:
    """Let a pipe hold more, where that can be said: fewer turns between us and the master."""
    import fcntl

    if hasattr(fcntl, "F_SETPIPE_SZ"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE)


class MuxChannel:
    """A command of the host, over a shared connection. The names are those of paramiko's Channel, for `Session`.

    Opening it waits for the host to give a channel, at most `limit` seconds: ChannelRefused where it does not,
    TimeoutError where it says nothing, OSError or EOFError where the master goes away.
    """

    most = PIPE // 2  # bytes that are worth giving to `send` at once

    def __init__(self, path: Path, command: str, owner: object, limit: float) -> None:
        self._owner = owner
        self._timeout: float | None = None
        self._lock = threading.Lock()
        self._users = 0
        self._over = False
        self.closed = False
        self.exit_status = -1
        self.status_event = _Status(self)
        self._control = Control(path)
        try:
            self._pipes = _Pipes()
        except BaseException:
            self._control.close()
            raise
        self._reading = select.poll()
        for handle in self._pipes.ours[1:]:
            self._reading.register(handle, select.POLLIN)
        try:
            self._begin(command, limit)
        except BaseException:
            self.close()
            raise

    def _begin(self, command: str, limit: float) -> None:
        flags = _u32(0, 0, 0, 0, _NO_ESCAPE)  # no terminal, no X11, no agent, no subsystem
        words = _text(b"") + flags + _text(b"") + _text(command.encode("utf-8", "surrogateescape"))
        self._control.send(_u32(_NEW_SESSION, 0) + words)
        for handle in self._pipes.theirs:
            socket.send_fds(self._control.sock, [b"\0"], [handle])
        self._pipes.close(self._pipes.theirs)
        kind, body = self._control.receive(limit)
        if kind in (_FAILURE, _DENIED):
            length = struct.unpack(">I", body[4:8])[0] if len(body) >= 8 else 0
            raise ChannelRefused(body[8 : 8 + length].decode("utf-8", "replace") or "no reason was given")
        if kind != _OPENED:
            raise NotAMaster(f"the shared connection's process answered with a message of kind {kind:#x}")

    # Streams

    def settimeout(self, seconds: float | None) -> None:
        self._timeout = seconds

    def recv(self, count: int) -> bytes:
        """Output of the command; b"" at its end. Raises TimeoutError, also at once when errors wait to be read."""
        with self._using() as open_:
            if not open_:
                return b""
            ready = dict(self._reading.poll(_millis(self._timeout)))
            errors = self._pipes.ours[2]
            if self._pipes.ours[1] in ready:
                return self._take(1, count)
            if errors in ready and not ready[errors] & select.POLLIN:
                self._reading.unregister(errors)  # they are at their end
            raise TimeoutError

    def recv_ready(self) -> bool:
        with self._using() as open_:
            return open_ and self._ready(1, select.POLLIN, 0.0, only=select.POLLIN)

    def recv_stderr(self, count: int) -> bytes:
        """What it writes to standard error; b"" at the end. Raises TimeoutError."""
        with self._using() as open_:
            if not open_:
                return b""
            if not self._ready(2, select.POLLIN, self._timeout):
                raise TimeoutError
            return self._take(2, count)

    def recv_stderr_ready(self) -> bool:
        with self._using() as open_:
            return open_ and self._ready(2, select.POLLIN, 0.0, only=select.POLLIN)

    def _take(self, stream: int, count: int) -> bytes:
        try:
            return os.read(self._pipes.ours[stream], count)
        except BlockingIOError:
            raise TimeoutError from None

    def send(self, data: bytes) -> int:
        """Bytes of `data` that were taken. Raises TimeoutError, BrokenPipeError."""
        return self._give(lambda pipe: os.write(pipe, data))

    def send_file(self, handle: int, at: int, count: int) -> int:
        """`send` for bytes of a file, without a copy of them here where the kernel can do that."""
        if _FROM_FILES:
            try:
                return self._give(lambda pipe: os.sendfile(pipe, handle, at, count))
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS):
                    raise  # else: not from this file system
        return self.send(os.pread(handle, min(count, self.most), at))

    def _give(self, write: Callable[[int], int]) -> int:
        with self._using() as open_:
            if not open_:
                return 0
            if not self._ready(0, select.POLLOUT, self._timeout):
                raise TimeoutError
            try:
                return write(self._pipes.ours[0])
            except BlockingIOError:
                raise TimeoutError from None

    def shutdown_write(self) -> None:
        """The command's input ends here."""
        with self._using() as open_, self._lock:
            if open_ and self._pipes.ours[0] >= 0:
                null = os.open(os.devnull, os.O_WRONLY)
                os.dup2(null, self._pipes.ours[0], inheritable=False)
                os.close(null)

    def _ready(self, stream: int, events: int, seconds: float | None, *, only: int = 0) -> bool:
        waiting = select.poll()
        waiting.register(self._pipes.ours[stream], events)
        found = waiting.poll(_millis(seconds))
        return any(happened & (only or ~0) for _, happened in found)

    @contextlib.contextmanager
    def _using(self) -> Iterator[bool]:
        """Within the block the handles stay open, whoever closes the channel meanwhile. False: it is closed."""
        with self._lock:
            open_ = not self.closed
            self._users += open_
        try:
            yield open_
        finally:
            if open_:
                with self._lock:
                    self._users -= 1
                    self._release()

    def _release(self) -> None:
        if self.closed and not self._users:
            self._pipes.close(self._pipes.ours, self._pipes.theirs)
            self._control.close()

    # Ends

    @property
    def eof_received(self) -> bool:
        """True once the command has ended, as far as is known without waiting."""
        self.await_end(0.0)
        return self._over

    def await_end(self, seconds: float) -> bool:
        """Wait for the command's end; `exit_status` is then its exit code, or stays -1 after a signal."""
        ends = time.monotonic() + seconds
        with self._using() as open_:
            while open_ and not self._over:
                try:
                    kind, body = self._control.receive(max(0.0, ends - time.monotonic()))
                except TimeoutError:
                    break
                except (OSError, EOFError):
                    self._over = True
                    break
                if kind == _EXIT and len(body) >= 8:
                    self.exit_status = int(struct.unpack(">I", body[4:8])[0])
                    self._over = True
        return self._over

    def get_transport(self) -> object:
        """The connection that this channel belongs to."""
        return self._owner

    def close(self) -> None:
        """Give the channel back; the command loses its input and output. Reads of other threads end."""
        with self._lock:
            if self.closed:
                return
            self.closed = True
            with contextlib.suppress(OSError):
                self._control.sock.shutdown(socket.SHUT_RDWR)  # the master closes its ends, which wakes readers
            self._release()


def _millis(seconds: float | None) -> float | None:
    return None if seconds is None else max(0.0, seconds) * 1000


class _Status:
    """The end of a channel's command, to be waited for."""

    def __init__(self, channel: MuxChannel) -> None:
        self._channel = channel

    def wait(self, seconds: float) -> bool:
        return self._channel.await_end(seconds)
