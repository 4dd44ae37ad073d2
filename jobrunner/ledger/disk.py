"""Whether a path is on a local disk: SQLite's write-ahead log needs memory that all its users share."""

from __future__ import annotations

import os
import sys

_NAMES = "ext2 ext3 ext4 xfs btrfs zfs f2fs jfs reiserfs bcachefs tmpfs ramfs overlay aufs vfat exfat ntfs3 apfs"
LOCAL = frozenset(_NAMES.split())
"""File systems that are known to live on this machine. What is not named here counts as remote."""


def remote_file_system(path: str, mounts: str = "/proc/self/mounts") -> str | None:
    """The kind of the file system that holds `path` if it is remote or unknown ("nfs4"), None for a local disk."""
    platform: str = sys.platform
    if platform == "win32":
        return _windows(path)
    if platform.startswith("linux"):
        kind = _mounted(os.path.realpath(path), mounts)
        return None if kind in LOCAL else kind
    real = os.path.realpath(path)
    return "a mounted volume" if real.startswith(("/Volumes/", "/net/", "/Network/")) else None


def _mounted(path: str, mounts: str) -> str:
    """The type of the deepest mount point above `path`; of several on one point, the last one mounted."""
    try:
        with open(mounts, encoding="utf-8", errors="surrogateescape") as table:
            lines = table.readlines()
    except OSError:
        return "unknown"
    best, kind = "", "unknown"
    for line in lines:
        words = line.split()
        if len(words) < 3:
            continue
        point = _unescape(words[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, words[2]
    return kind


def _unescape(word: str) -> str:
    """A mount point as the kernel writes it, with blanks as octal escapes, in plain text."""
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        word = word.replace(code, char)
    return word


def _windows(path: str) -> str | None:
    """A share (\\\\server\\…) or a drive letter that stands for one."""
    import ctypes

    full = os.path.abspath(path)
    if full.startswith("\\\\"):
        return "a network share"
    remote = 4  # DRIVE_REMOTE
    windll = getattr(ctypes, "windll", None)
    root = os.path.splitdrive(full)[0] + "\\"
    if windll is not None and windll.kernel32.GetDriveTypeW(root) == remote:
        return "a network drive"
    return None
