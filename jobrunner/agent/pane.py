"""A window on a job's terminal, run inside tmux: keys and the size go in, what the job prints comes out."""

import os
import signal
import struct
import sys

from . import jobs
from .files import AgentError


def ensure_session(layout, job_id):
    """See that a running `launcher: tmux` job has its session and return the words that attach to it."""
    from .launchers import tmux

    view = jobs.job_view(layout, job_id)
    if view is None:
        raise AgentError("no_such_job", "{} is not on this host".format(job_id), "See `jobrunner ls --all`.")
    if view["launcher"] != "tmux":
        raise AgentError(
            "no_terminal",
            "{} was started without a terminal".format(job_id),
            "Only jobs with `launcher: tmux` have one; `jobrunner logs -f` follows the others.",
        )
    if view["state"] != "RUNNING":
        raise AgentError(
            "not_running", "{} is {}".format(job_id, view["state"]), "See `jobrunner logs` for what it printed."
        )
    if tmux.tmux(["has-session", "-t", "=" + job_id])[0] != 0 and not tmux.new_session(layout, job_id):
        raise AgentError("no_session", "tmux made no session for {}".format(job_id), "Run `jobrunner doctor`.")
    return ["tmux", "-u", "-L", tmux.SERVER, "-f", "/dev/null", "attach-session", "-t", "=" + job_id]


def run(session, request):
    """Operation `attach`: the words that attach to a running job's terminal."""
    return {"argv": ensure_session(session.layout, request.get("id") or "")}


def main(argv):
    """`pane ROOT INSTANCE ID`: serve one window until the job or the window ends."""
    import _socket

    from .launchers import tmux

    job_id = argv[2]
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(tmux.socket_path(job_id))
    except OSError as error:
        sys.stderr.write("the terminal of {} cannot be reached: {}\n".format(job_id, error.strerror))
        return 1
    restore = _raw(0)
    try:
        _shuttle(connection.fileno(), tmux.HEAD)
    finally:
        restore()
        connection.close()
    return 0


def _raw(descriptor):
    """Every key goes to the job, Ctrl-C included; output stays cooked. Returns what undoes it."""
    import termios

    try:
        before = termios.tcgetattr(descriptor)
    except termios.error:
        return lambda: None
    mode = termios.tcgetattr(descriptor)
    mode[0] &= ~(termios.ICRNL | termios.IXON | termios.BRKINT | termios.INPCK | termios.ISTRIP)
    mode[3] &= ~(termios.ECHO | termios.ICANON | termios.IEXTEN | termios.ISIG)
    mode[6][termios.VMIN], mode[6][termios.VTIME] = 1, 0
    termios.tcsetattr(descriptor, termios.TCSANOW, mode)
    return lambda: termios.tcsetattr(descriptor, termios.TCSANOW, before)


def _size():
    try:
        columns, rows = os.get_terminal_size(0)
    except OSError:
        return None
    return struct.pack("HH", rows, columns)


def _shuttle(link, head):
    import select

    wake, waker = os.pipe()
    for end in (wake, waker):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(waker)
    signal.signal(signal.SIGWINCH, lambda *_: None)
    poller = select.poll()
    for descriptor in (0, link, wake):
        poller.register(descriptor, select.POLLIN)
    size = None
    while True:
        if _size() != size:
            size = _size()
            if size:
                _send(link, head.pack(b"W", 4) + size)
        for descriptor, _ in poller.poll():
            data = os.read(descriptor, 4096)
            if descriptor == wake:
                continue
            if not data:
                return
            if descriptor == 0:
                _send(link, head.pack(b"D", len(data)) + data)
            else:
                _send(1, data)


def _send(descriptor, data):
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
