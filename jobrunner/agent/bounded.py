"""Work that may never end, or eat what there is, in a child with limits.

For what users give us (a regular expression, say): whoever calls this stays alive, small, and goes on in time.
"""

import os
import select
import signal
import time

from . import kernel

KEEP = 64 * 1024  # of what the child tells
MEMORY = 1 << 30


class Told:
    """What came of it. `ok`: the work came to its end; `words`: what it told, a list of lines (bytes)."""

    def __init__(self, ok, words):
        self.ok = ok
        self.words = words


def run(work, cpu_s, wall_s):
    """Call `work(tell)` in a forked child with so many seconds of processor time and of time; waits for its end.

    `tell(line)` sends bytes without a newline to us; they arrive although the child is killed later.
    """
    read, write = os.pipe()
    child = os.fork()
    if not child:
        status = 1
        try:
            os.close(read)
            _limit(cpu_s)
            work(lambda line: os.write(write, line + b"\n"))
            status = 0
        except BaseException as error:  # there is nobody above us: an end without a word would not be understood
            os.write(write, b"!" + "{}: {}".format(type(error).__name__, error).encode("utf-8", "replace")[:500])
        finally:
            os._exit(status)
    os.close(write)
    try:
        words = _listen(read, time.monotonic() + wall_s)
    finally:
        os.close(read)
        ended = _reap(child)
    return Told(ended == 0, [line for line in words.split(b"\n") if line])


def _limit(cpu_s):
    import resource

    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGXCPU, signal.SIG_DFL)
    kernel.die_with_parent(signal.SIGKILL)
    spent = int(sum(os.times()[:2]))
    wanted = ((resource.RLIMIT_CPU, spent + int(cpu_s) + 1), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0))
    for kind, limit in wanted:
        most = resource.getrlimit(kind)[1]
        limit = limit if most == resource.RLIM_INFINITY else min(limit, most)
        resource.setrlimit(kind, (limit, most))


def _listen(read, end):
    """What the child tells until it closes its end or time is up."""
    poller = select.poll()
    poller.register(read, select.POLLIN)
    words = b""
    while True:
        left = end - time.monotonic()
        if left <= 0 or not poller.poll(int(left * 1000) + 1):
            return words
        data = os.read(read, 65536)
        if not data:
            return words
        words = (words + data)[-KEEP:]


def _reap(child):
    """The child's wait status. One that has not ended yet has had its time, and is ended."""
    for _ in range(200):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.001)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


class TooLong(Exception):
    """One step of the work takes more than its share."""


class Watchdog:
    """Raises TooLong in a single step that takes more processor time than `seconds` to twice of it.

    Each step has its own `serial`, and `busy` is set while one goes on. Python's regular expressions look for signals
    now and then while they search. For the main thread of a process of its own only.
    """

    def __init__(self, seconds):
        self.serial, self.busy = 0, False
        self._seen = -1
        signal.signal(signal.SIGVTALRM, self._tick)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds, seconds)

    def _tick(self, _number, _frame):
        if self.busy and self.serial == self._seen:
            self._seen = -1
            raise TooLong()
        self._seen = self.serial

    def close(self):
        """No more ticks."""
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
