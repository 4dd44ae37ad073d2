"""A process that is forked ahead and becomes the supervisor of the job that starts next: a card that comes free need
not wait for a fork, nor for a new process to find its memory.

It knows nothing of any job until it is given one: what a supervisor is forked with otherwise comes in one message, the
job's lock and its leases with it. It ends with its dispatcher. One that was killed is not made again: starts fork then.
"""

import _socket
import json
import os
import signal
import sys

from . import kernel, leases

LIMIT = 1 << 16  # a longer message is not sent
MOST = 250  # descriptors in one message


class Spare:
    """The dispatcher's end: at most one such process at a time."""

    def __init__(self):
        self._pid = self._socket = None
        self._wanted = True

    def make(self, become, drop):
        """Fork it, unless there is one, or was one that ended by itself. It keeps none of `drop`, and ends with what
        `become(told, lock, leases)` returns."""
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
            kernel.die_with_parent(signal.SIGKILL)
            kernel.name_process(b"jr-spare")
            ours.close()
            leases.release(drop)
            status = _wait(theirs, become)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(status)

    def give(self, told, lock, held):
        """Have it supervise a job: `told` is JSON. Its pid; None if there is none to take it. Our copies stay."""
        pid, data, rights = self._pid, json.dumps(told).encode("ascii"), _packed([lock, *held])
        if pid is None or len(held) >= MOST or len(data) > LIMIT:
            return None
        try:
            self._socket.sendmsg([data], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, rights)])
        except OSError:
            return None  # it was killed
        self._socket.close()
        self._pid = self._socket = None
        return pid

    def descriptors(self):
        """What other children must not keep of it."""
        return [] if self._socket is None else [self._socket.fileno()]

    def ended(self, pid):
        """True if that child was it."""
        if pid != self._pid:
            return False
        self._socket.close()
        self._pid = self._socket = None
        self._wanted = False
        return True


def _wait(sock, become):
    """Wait for a job, or for the end of the dispatcher."""
    data, ancillary, _, _ = sock.recvmsg(LIMIT, _socket.CMSG_SPACE(4 * (MOST + 1)), _socket.MSG_CMSG_CLOEXEC)
    sock.close()
    if not data:
        return 0
    kernel.die_with_parent(0)
    lock, *held = [number for _, _, rights in ancillary for number in _unpacked(rights)]
    return become(json.loads(data.decode("ascii")), lock, held)


def _packed(numbers):
    return b"".join(number.to_bytes(4, sys.byteorder) for number in numbers)


def _unpacked(data):
    return [int.from_bytes(data[at : at + 4], sys.byteorder) for at in range(0, len(data), 4)]
