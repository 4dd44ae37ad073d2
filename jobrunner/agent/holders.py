"""Who holds an abstract name, as the kernel says it: the user of every socket (socket diagnostics, for everybody), and
the process where we may look (our own processes; as root all).
"""

import os
import struct

from . import procs, share

_BY_FAMILY, _DUMP_NAME, _DUMP_UID, _UID = 20, 1, 0x40, 7
_ANY = 0xFFFFFFFF


def uids(inodes):
    """`{inode: uid}` of unix sockets; without those of which the kernel does not tell (Linux before 5.3)."""
    import socket

    found = {}
    try:
        asker = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 4)
    except OSError:
        return found
    with asker:
        asker.settimeout(1.0)
        for number, inode in enumerate(sorted(inodes), 1):
            question = struct.pack("=BBHIIIII", 1, 0, 0, _ANY, inode, _DUMP_NAME | _DUMP_UID, _ANY, _ANY)
            head = struct.pack("=IHHII", 16 + len(question), _BY_FAMILY, 1, number, 0)
            try:
                asker.send(head + question)
                uid = _uid_in(asker.recv(8192), number, inode)
            except (OSError, struct.error):
                continue
            if uid is not None:
                found[inode] = uid
    return found


def _uid_in(answer, number, inode):
    """The uid in one answer of the kernel, or None."""
    size, kind, _, asked, _ = struct.unpack_from("=IHHII", answer)
    if kind != _BY_FAMILY or asked != number or struct.unpack_from("=I", answer, 20)[0] != inode:
        return None
    at, end = 32, min(size, len(answer))
    while at + 4 <= end:
        length, name = struct.unpack_from("=HH", answer, at)
        if name == _UID and length >= 8:
            return struct.unpack_from("=I", answer, at + 4)[0]
        if length < 4:
            return None
        at += (length + 3) & ~3
    return None


def process(inode):
    """`(pid, command line)` of a process that has a socket open, or None where none is found or we may not look."""
    wanted = "socket:[{}]".format(inode)
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        folder = "/proc/{}/fd".format(name)
        try:
            for entry in os.listdir(folder):
                if os.readlink(folder + "/" + entry) == wanted:
                    return int(name), procs.command_line(int(name))
        except OSError:
            continue
    return None


def described(inode, uid):
    """Who holds a name that no job is shown for, for a person: user, uid, process, as far as they are found."""
    words = "{} (uid {})".format(share.user_name(uid), uid) if uid is not None else "somebody"
    found = process(inode)
    if found:
        words += ", process {} ({})".format(found[0], found[1] or "?")
    return words
