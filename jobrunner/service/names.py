"""Whether a name that a host gave may become a file here."""

from __future__ import annotations

import os
import re

_RESERVED = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|com[0-9¹²³]|lpt[0-9¹²³])(?:$|\.)", re.IGNORECASE)
_NOT_ON_WINDOWS = re.compile(r'[<>:"|?*\\\x00-\x1f]')
_DRIVE = re.compile(r"[A-Za-z]:[\\/]|[A-Za-z]:\Z|\\\\")


def name_fault(path: object, windows: bool = os.name == "nt") -> str:
    """Why a relative path (`/` between parts) is refused; empty if it may be used. It never climbs out of a folder."""
    if not isinstance(path, str) or not path:
        return "it has no name"
    if "\0" in path:
        return "its name has a NUL in it"
    if path.startswith("/") or _DRIVE.match(path):
        return "its name is an absolute path"
    try:
        parts = [part.encode("utf-8", "surrogateescape") for part in path.split("/")]
    except UnicodeEncodeError:
        return "its name is no text"
    if any(part in (b"", b".", b"..") for part in parts):
        return "its name climbs out of the folder, or is none"
    if any(len(part) > 255 for part in parts):
        return "its name is longer than a file's can be"
    return next(filter(None, map(_windows_fault, path.split("/"))), "") if windows else ""


def _windows_fault(part: str) -> str:
    if _RESERVED.match(part) or part.endswith((" ", ".")) or _NOT_ON_WINDOWS.search(part):
        return f"Windows cannot have a file called {shown(part)}"
    return "" if part.isascii() or not any("\ud800" <= char <= "\udfff" for char in part) else "its name is no text"


def shown(name: str) -> str:
    """A name for a message: what is no printable text in it is escaped."""
    return name if name.isprintable() else ascii(name)[1:-1]
