"""Port ranges of a job: free on this host, and different for any two jobs at once.

A range is kept by an abstract name (`@jobrunner/1/ports/<first>`), held like a card's lease for the job's life and
seen by all users; that its ports are free is tried by binding each for a moment.
"""

import _socket
import errno
import os

from . import leases
from .layout import lock_name

WIDTH = 32
FIRST = 20000
LAST = 32000  # below the ports that Linux hands out by itself (32768 and up)


def take(count, seed=None):
    """`[(first port, lock)]` for `count` ranges of `WIDTH` ports; OSError if the host has not that many left."""
    blocks = (LAST - FIRST) // WIDTH
    at = (int.from_bytes(os.urandom(4), "big") if seed is None else seed) % blocks
    found = []
    for step in range(blocks):
        if len(found) == count:
            break
        first = FIRST + (at + step) % blocks * WIDTH
        lock = leases.bind(lock_name("ports", str(first)))
        if lock is None:
            continue
        if all(_free(port) for port in range(first, first + WIDTH)):
            found.append((first, lock))
        else:
            leases.release([lock])
    if len(found) < count:
        leases.release([lock for _, lock in found])
        raise OSError(errno.EADDRINUSE, "no {} free ports in a row between {} and {}".format(WIDTH, FIRST, LAST))
    return found


def _free(port):
    sock = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM)
    try:
        sock.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
        sock.bind(("", port))
        return True
    except OSError:
        return False
    finally:
        sock.close()
