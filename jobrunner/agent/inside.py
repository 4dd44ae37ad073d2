"""Files below a folder, reached without ever following a link out of it; and patterns over them.

A pattern is a relative path with `*`, `?`, `[…]` inside names and `**` for any number of folders. A pattern that ends
in `/` means folders only. `.` and `..` are refused.
"""

import os
import re
import stat

from .files import AgentError, to_bytes, to_text

_SAFE = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


def open_at(top, relative, flags=os.O_RDONLY):
    """A descriptor of `top/relative`, no component of `relative` being a link. OSError ELOOP or ENOTDIR if one is."""
    parts = [part for part in to_bytes(relative).split(b"/") if part]
    if b".." in parts or not parts:
        raise AgentError("bad_path", "not a path inside the job's folder: {!r}".format(to_text(relative)))
    folder = os.open(top, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            deeper = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = deeper
        return os.open(parts[-1], flags | _SAFE, dir_fd=folder)
    finally:
        os.close(folder)


class Opener:
    """`open_at` for files one after the other: those of one folder are opened from it. A context manager."""

    def __init__(self, top):
        self._top = top
        self._folder = None
        self._name = b""

    def open(self, relative):
        """As `open_at(top, relative)`."""
        folder, _, name = relative.rpartition(b"/")
        if not folder or name in (b"", b".", b".."):
            return open_at(self._top, relative)
        if self._folder is None or folder != self._name:
            self.close()
            self._folder, self._name = open_at(self._top, folder, os.O_RDONLY | os.O_DIRECTORY), folder
        return os.open(name, os.O_RDONLY | _SAFE, dir_fd=self._folder)

    def close(self):
        """Let go of the folder."""
        if self._folder is not None:
            os.close(self._folder)
            self._folder = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def split_pattern(pattern):
    """`(segments, folders_only)` of a pattern; AgentError `bad_pattern` if it climbs or is empty."""
    raw = to_bytes(pattern)
    segments = [part for part in raw.split(b"/") if part not in (b"", b".")]
    if raw.startswith(b"/") or b".." in segments or not segments or b"\0" in raw:
        raise AgentError("bad_pattern", "not a relative pattern inside the job's folder: {!r}".format(to_text(pattern)))
    return segments, raw.endswith(b"/")


def name_matcher(segment):
    """A function that says whether a name matches one segment of a pattern."""
    if not any(mark in segment for mark in (b"*", b"?", b"[")):
        return lambda name: name == segment
    import fnmatch

    # As text: `?` is one character, whatever its bytes.
    match = re.compile(fnmatch.translate(to_text(segment)), re.DOTALL).match
    hidden = segment.startswith(b".")
    return lambda name: (hidden or not name.startswith(b".")) and match(to_text(name)) is not None


def find(top, patterns):
    """`{relative path: lstat}` of everything below `top` that a pattern matches (links as links), in no order."""
    found = {}
    for pattern in patterns:
        segments, folders_only = split_pattern(pattern)
        steps = [None if segment == b"**" else name_matcher(segment) for segment in segments]
        _walk(top, b"", steps, folders_only, found)
    return found


def _walk(top, relative, steps, folders_only, found):
    try:
        entries = list(os.scandir(os.path.join(top, relative) if relative else top))
    except OSError:
        return
    for entry in entries:
        path = relative + b"/" + entry.name if relative else entry.name
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
        except OSError:
            continue
        if _ends(steps, entry.name) and (is_folder if folders_only else True) and not (steps[-1] is None and is_folder):
            try:
                found[path] = entry.stat(follow_symlinks=False)
            except OSError:
                continue
        if is_folder:
            for deeper in _deeper(steps, entry.name):
                _walk(top, path, deeper, folders_only, found)


def _ends(steps, name):
    """True if the name completes the pattern. `**` stands for no folder, too, and at the end for every file."""
    at = 0
    while at < len(steps) - 1 and steps[at] is None:
        at += 1
    if at != len(steps) - 1:
        return False
    return steps[at] is None or steps[at](name)


def _deeper(steps, name):
    """What is left of the pattern inside a folder of this name; several ways where `**` may or may not go on."""
    if not steps:
        return []
    if steps[0] is None:
        ways = [steps]
        if len(steps) > 1:
            ways += [way for way in _deeper(steps[1:], name) if way not in ways]
        return ways
    if len(steps) > 1 and steps[0](name):
        return [steps[1:]]
    return []


def files_below(top, relative=b""):
    """`(relative path, lstat)` of everything under a folder that is no folder, links as links; never through a link."""
    todo = [relative]
    while todo:
        folder = todo.pop()
        try:
            entries = list(os.scandir(os.path.join(top, folder) if folder else top))
        except OSError:
            continue
        for entry in entries:
            path = folder + b"/" + entry.name if folder else entry.name
            try:
                seen = entry.stat(follow_symlinks=False)
            except OSError:
                continue
            if stat.S_ISDIR(seen.st_mode):
                todo.append(path)
            else:
                yield path, seen


def inner_target(job_folder, path):
    """Where the link `path` leads, if that is in a `work/` or the `out/` of the same job; else None."""
    real = os.path.realpath(path)
    top = os.path.realpath(job_folder)
    if not real.startswith(top + b"/"):
        return None
    parts = real[len(top) + 1 :].split(b"/")
    ours = parts[0] == b"out" or (parts[0].isdigit() and parts[1:2] == [b"work"])
    return real if ours else None
