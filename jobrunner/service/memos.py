"""Small JSON files in the state folder that spare work the next time. Nothing depends on them: one that is missing,
damaged or cannot be written is as good as none.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any


def read(path: Path) -> Any:
    """What was written; None where there is nothing, or nothing that can be read."""
    try:
        return json.loads(path.read_bytes()) if path.is_file() else None  # a pipe would be waited for
    except (OSError, ValueError, RecursionError):
        return None


def write(path: Path, value: Any) -> None:
    """Replace the file, whole or not at all, for nobody else to read."""
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.unlink(missing_ok=True)
        try:
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                file.write(json.dumps(value))
            os.replace(aside, path)
        except OSError:  # a full disk; on Windows also a file that somebody reads just now
            aside.unlink()
