"""SHA-256 of files and folders, a block at a time."""

import hashlib
import os

from . import inside

BLOCK = 1 << 20


def of(path):
    """Hex SHA-256 of a file; of a folder: that of its sorted lines `<sha256>  <relative path>`. None if unreadable."""
    try:
        if not os.path.isdir(path):
            return of_file(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
        lines = []
        for relative, _ in inside.files_below(path):
            if not os.path.islink(os.path.join(path, relative)):
                lines.append((relative, of_file(inside.open_at(path, relative))))
        listed = b"".join(digest.encode() + b"  " + name + b"\n" for name, digest in sorted(lines))
        return hashlib.sha256(listed).hexdigest()
    except OSError:
        return None


def of_file(handle, working=lambda: None):
    """Hex SHA-256 of what a descriptor reads; it is closed. `working` is called after every block."""
    seen = hashlib.sha256()
    try:
        while True:
            block = os.read(handle, BLOCK)
            if not block:
                return seen.hexdigest()
            seen.update(block)
            working()
    finally:
        os.close(handle)
