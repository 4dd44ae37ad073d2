"""Started on a terminal of the supervisor's, which is copied into the log and to the windows that panes open on it.

The job belongs to the supervisor: the tmux server, its session and the pane may die, and be made again, at any time.
From a pane come small frames, kind and length first: `D` bytes typed, `W` rows and columns.
"""

import _socket
import errno
import fcntl
import os
import struct
import termios

from .. import files, procs, share
from ..files import AgentError

SERVER = "jobrunner"
HEAD = struct.Struct(">cH")
BACKLOG = 32768
PENDING = 1 << 18


def socket_path(job_id):
    """The socket on which a job's terminal is served; short, as such paths must be."""
    folder = share.own_folder()
    if folder is None:
        raise AgentError(
            "no_share",
            "{} is not ours to use".format(files.to_text(share.BASE)),
            "Have the folder {} there removed.".format(files.to_text(share.folder_name(os.getuid()))),
        )
    return os.path.join(folder, files.to_bytes(job_id) + b".tty")


def environment():
    """What the tmux server is started with: nothing of a job, and a locale that has UTF-8."""
    table = procs.own_environment()
    table.pop(b"LC_ALL", None)
    table[b"LC_CTYPE"] = b"C.UTF-8"
    table.setdefault(b"TERM", b"xterm-256color")
    return table


def tmux(words):
    """`(exit status, output)` of our own tmux server's command."""
    return procs.output(["tmux", "-u", "-L", SERVER, "-f", "/dev/null", *words], environment())


def new_session(layout, job_id):
    """Make the session of a job, a window on its terminal. True if it is there now; AgentError without tmux."""
    pane = procs.agent_argv("pane", [files.to_text(layout.root), layout.instance, job_id])
    status, _ = tmux(["new-session", "-d", "-s", job_id, "-x", "120", "-y", "40", *pane])
    if status == 127:
        raise AgentError(
            "no_tmux",
            "`launcher: tmux` is asked for and this host has no tmux",
            "Have tmux installed, or use `launcher: nohup`.",
        )
    return status == 0 or tmux(["has-session", "-t", "=" + job_id])[0] == 0


class Terminal:
    """A pseudo-terminal, its log, and the panes on it."""

    def __init__(self, layout, job_id, attempt, log):
        self._log = log
        self._log_path = os.path.join(layout.attempt(job_id, attempt), b"log")
        self._path = socket_path(job_id)
        self._panes = {}
        self.master, self._slave = os.openpty()
        self._no_newline_change()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
        os.set_blocking(self.master, False)
        self._listener = _listen(self._path)

    def _no_newline_change(self):
        """The log keeps the job's bytes: the terminal does not make CR LF of LF; the pane's own does."""
        mode = termios.tcgetattr(self._slave)
        mode[1] &= ~termios.ONLCR
        termios.tcsetattr(self._slave, termios.TCSANOW, mode)

    def output(self):
        return self._slave

    def started(self):
        os.close(self._slave)
        self._slave = None

    def descriptors(self):
        found = [self._listener.fileno(), *list(self._panes)]
        return [*found, self.master] if self.master is not None else found

    def writers(self):
        return [descriptor for descriptor, pane in self._panes.items() if pane["out"]]

    def serve(self, descriptor):
        if descriptor == self.master:
            self._copy_out()
        elif descriptor == self._listener.fileno():
            self._accept()
        elif descriptor in self._panes:
            self._from_pane(descriptor)

    def _copy_out(self):
        """One piece from the job to the log and the panes. True if there was one."""
        if self.master is None:
            return False
        try:
            data = os.read(self.master, 1 << 16)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno != errno.EIO:
                raise
            data = b""  # nobody has the terminal open any more
        if not data:
            os.close(self.master)
            self.master = None
            return False
        self._write_log(data)
        for descriptor in list(self._panes):
            self._to_pane(descriptor, data)
        return True

    def _write_log(self, data):
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._log, view) :]
        except OSError:
            pass  # a full disk costs log lines, not the job

    def _accept(self):
        try:
            number, _ = self._listener._accept()
        except OSError:
            return
        os.set_blocking(number, False)
        os.set_inheritable(number, False)
        self._panes[number] = {"in": b"", "out": b""}
        self._to_pane(number, self._backlog())

    def _backlog(self):
        try:
            handle = os.open(self._log_path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return b""
        try:
            return os.pread(handle, BACKLOG, max(0, os.fstat(handle).st_size - BACKLOG))
        finally:
            os.close(handle)

    def _to_pane(self, descriptor, data):
        """Send without ever waiting; a pane that does not read misses what does not fit its buffer."""
        pane = self._panes[descriptor]
        waiting = (pane["out"] + data)[-PENDING:]
        try:
            sent = os.write(descriptor, waiting) if waiting else 0
        except BlockingIOError:
            sent = 0
        except OSError:
            self._drop(descriptor)
            return
        pane["out"] = waiting[sent:]

    def _from_pane(self, descriptor):
        self._to_pane(descriptor, b"")
        if descriptor not in self._panes:
            return
        try:
            data = os.read(descriptor, 1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._drop(descriptor)
            return
        pane = self._panes[descriptor]
        pane["in"] += data
        while len(pane["in"]) >= HEAD.size:
            kind, length = HEAD.unpack(pane["in"][: HEAD.size])
            if len(pane["in"]) < HEAD.size + length:
                break
            payload = pane["in"][HEAD.size : HEAD.size + length]
            pane["in"] = pane["in"][HEAD.size + length :]
            self._do(kind, payload)

    def _do(self, kind, payload):
        if self.master is None:
            return
        try:
            if kind == b"D":
                os.write(self.master, payload)
            elif kind == b"W" and len(payload) == 4:
                fcntl.ioctl(self.master, termios.TIOCSWINSZ, payload + b"\0\0\0\0")
        except OSError:
            pass  # a terminal whose input is full takes no more typing

    def _drop(self, descriptor):
        os.close(descriptor)
        del self._panes[descriptor]

    def drain(self):
        while self._copy_out():
            pass

    def close(self):
        for descriptor in list(self._panes):
            self._drop(descriptor)
        self._listener.close()
        if self.master is not None:
            os.close(self.master)
            self.master = None
        try:
            os.unlink(self._path)
        except OSError:
            pass


def _listen(path):
    try:
        os.unlink(path)
    except OSError:
        pass
    listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(path)
    finally:
        os.umask(before)
    listener.listen(8)
    listener.setblocking(False)
    return listener


def open_terminal(layout, job_id, attempt, log):
    """A `Terminal`, and the tmux session that shows it. AgentError where tmux is missing."""
    terminal = Terminal(layout, job_id, attempt, log)
    try:
        new_session(layout, job_id)
    except BaseException:
        terminal.close()
        raise
    return terminal
