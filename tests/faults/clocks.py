"""A host whose clock can be set at any moment, its steady clock untouched: a Python whose `time.time` a file tells."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Run when the interpreter starts, whatever its options: `encodings` is the first module that is read from the disk.
_HOOK = """
import time as _time
def _told(_real=_time.time, _path={path!r}):
    import posix
    handle = posix.open(_path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        return _real() + float(posix.read(handle, 32))
    finally:
        posix.close(handle)
_time.time = _told
"""


class SettableClock:
    """What a host's processes take for the time of day: `python` is the interpreter that lives by it.

    Times of files stay those of the file system, and nothing but Python is deceived.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "wrong_by"
        self.set(0)
        self.python = self._interpreter(folder)

    def set(self, seconds: float) -> None:
        """The host's clock is wrong by so many seconds from now on. (Replaced: nobody reads half a number.)"""
        aside = self._file.with_name("aside")
        aside.write_text(f"{seconds}\n")
        aside.replace(self._file)

    def _interpreter(self, folder: Path) -> Path:
        """This Python over again, with a library that is this one's but for the hook."""
        library = Path(os.__file__).parent
        own = folder / "home" / "lib" / library.name
        _linked(library, own, but="encodings")
        _linked(library / "encodings", own / "encodings", but="__init__.py")
        text = (library / "encodings" / "__init__.py").read_text("utf-8")
        (own / "encodings" / "__init__.py").write_text(text + _HOOK.format(path=str(self._file)), "utf-8")
        for place in (folder / "bin", folder / "home" / "bin"):
            place.mkdir()
            (place / "python3").symlink_to(os.path.realpath(sys.executable))
        (folder / "pyvenv.cfg").write_text(f"home = {folder / 'home' / 'bin'}\n")
        return folder / "bin" / "python3"


def _linked(source: Path, target: Path, *, but: str) -> None:
    target.mkdir(parents=True)
    for entry in source.iterdir():
        if entry.name not in (but, "__pycache__"):
            (target / entry.name).symlink_to(entry)
