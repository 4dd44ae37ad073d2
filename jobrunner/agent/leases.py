"""Locks that the kernel takes back: abstract Unix socket names, bound and never listening.

A lock is a descriptor (an int). It is free again when the last copy of the descriptor is closed, by whatever
death. `_socket` instead of `socket`: a long-lived process does not pay for what it does not use.
"""

import _socket
import errno
import os


def bind(name):
    """The descriptor that holds `name` (bytes with the leading NUL), or None if somebody else holds it.

    The descriptor is not inherited over exec. Errors other than "taken" are raised.
    """
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM)
    try:
        sock.bind(name)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            return None
        raise
    return sock.detach()


def bind_patiently(name, seconds):
    """`bind`, tried again for so many seconds."""
    import time

    end = time.monotonic() + seconds
    while True:
        lock = bind(name)
        if lock is not None or time.monotonic() >= end:
            return lock
        time.sleep(0.005)


def bind_all(names):
    """The descriptors of all `names`, or None (and none of them held) if one is taken."""
    held = []
    try:
        for name in names:
            lock = bind(name)
            if lock is None:
                break
            held.append(lock)
        else:
            return held
    except BaseException:
        release(held)
        raise
    release(held)
    return None


def release(locks):
    """Close the descriptors of locks."""
    for lock in locks:
        try:
            os.close(lock)
        except OSError:
            pass


def held_names():
    """The abstract names of ours that anybody on this machine holds now (bytes, leading NUL as in `bind`).

    Looking does not disturb: unlike a trial bind it never makes anybody else find the name taken.
    """
    names = set()
    try:
        with open("/proc/net/unix", "rb") as table:
            data = table.read()
    except OSError:
        return names
    for line in data.splitlines():
        at = line.find(b" @jobrunner/1/")
        if at >= 0:
            names.add(b"\0" + line[at + 2 :])
    return names
