"""A process that is forked ahead of its work: a card that comes free need not wait for a fork, nor for a new process to
find its memory. `jr-spare` becomes the supervisor of the job that starts next, its child `jr-setup` that job's command.

It knows nothing of any job until it is given one: what a child is forked with otherwise comes in one message, with the
descriptors that it is to have. It ends with its parent. One that was killed is not made again: starts fork then.
"""

import _socket
import json
import os
import signal
import sys

from . import kernel, leases, procs

LIMIT = 1 << 16  # a longer message is not sent
MOST = 250  # descriptors in one message
NOT_NOW = 75  # the exit code of a supervisor that could not commit its start here and now


class Spare:
    """The parent's end: at most one such process at a time."""

    def __init__(self, name=b"jr-spare"):
        self._name = name
        self._pid = self._socket = None
        self._wanted = True

    def make(self, prepare, drop=None):
        """Fork it, unless there is one, or was one that ended by itself. It keeps none of `drop`; without that, nothing
        but the standard streams.

        In it `prepare()` comes first. What that returns, `become(told, descriptors)`, is called once there is work; the
        process ends with what it returns.
        """
        if self._pid is not None or not self._wanted:
            return
        ends = []
        try:
            ends += _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
            pid = os.fork()
        except OSError:
            for end in ends:
                end.close()
            return  # no room for one now: the next start forks
        ours, theirs = ends
        if pid:
            theirs.close()
            self._pid, self._socket = pid, ours
            return
        status = 70
        try:
            kernel.name_process(self._name)
            kernel.die_with_parent(signal.SIGKILL)
            ours.close()
            if drop is None:
                procs.close_all_but([0, 1, 2, theirs.fileno()])
            else:
                leases.release(drop)
            status = _wait(theirs, prepare())
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def give(self, told, descriptors):
        """Have it do its work: `told` is JSON. Its pid; None if there is none to take it. Our copies stay."""
        pid, data, rights = self._pid, json.dumps(told).encode("ascii"), _packed(descriptors)
        if pid is None or len(descriptors) > MOST or len(data) > LIMIT:
            return None
        try:
            self._socket.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        except OSError:
            return None  # it was killed
        self.close()
        return pid

    def close(self):
        """Have nothing to do with it any more: unless it was given work, it ends."""
        if self._socket is not None:
            self._socket.close()
        self._pid = self._socket = None

    def descriptors(self):
        """What other children must not keep of it."""
        return [] if self._socket is None else [self._socket.fileno()]

    def ended(self, pid):
        """True if that child was it."""
        if pid != self._pid:
            return False
        self.close()
        self._wanted = False
        return True


def _wait(sock, become):
    """Wait for work, or for the end of the parent."""
    data, ancillary, flags, _ = sock.recvmsg(LIMIT, _socket.CMSG_SPACE(4 * MOST), _socket.MSG_CMSG_CLOEXEC)
    sock.close()
    if not data:
        return 0
    if flags & _socket.MSG_CTRUNC:
        return NOT_NOW  # some descriptors found no place in our table: nothing is begun without its locks
    descriptors = [number for _, _, rights in ancillary for number in _unpacked(rights)]
    return become(json.loads(data.decode("ascii")), descriptors)


def _packed(numbers):
    return b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)


def _unpacked(data):
    return [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4)]
