"""Remove trees that a job left: links are removed and never followed, folders without write permission are opened."""

import os
import stat

from .working import nobody_waits


def tree(path, working=nobody_waits):
    """Remove a file, link, or folder with all in it. What cannot be removed stays, quietly; True if nothing stayed.

    `working` is called for each of them.
    """
    whole = True
    todo = [(path, False)]
    while todo:
        current, emptied = todo.pop()
        working()
        if emptied:
            whole = _quietly(os.rmdir, current) and whole
            continue
        try:
            seen = os.lstat(current)
        except OSError:
            continue
        if not stat.S_ISDIR(seen.st_mode):
            whole = _quietly(os.unlink, current) and whole
            continue
        if stat.S_IMODE(seen.st_mode) & 0o700 != 0o700:
            _quietly(os.chmod, current, 0o700)
        todo.append((current, True))
        try:
            todo.extend((os.path.join(current, name), False) for name in os.listdir(current))
        except OSError:
            whole = False
    return whole


def _quietly(function, *arguments):
    try:
        function(*arguments)
        return True
    except FileNotFoundError:
        return True
    except OSError:
        return False


def size(path, working=nobody_waits):
    """Bytes that a file or a tree takes on disk, links not followed. `working` is called for each file."""
    total = 0
    todo = [path]
    while todo:
        current = todo.pop()
        working()
        try:
            seen = os.lstat(current)
            total += seen.st_blocks * 512
            if stat.S_ISDIR(seen.st_mode):
                todo.extend(os.path.join(current, name) for name in os.listdir(current))
        except OSError:
            continue
    return total
