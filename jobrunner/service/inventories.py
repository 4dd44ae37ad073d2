"""The hosts file, read. What was made of it is kept: commands that only look need not load what checks it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from jobrunner import __version__
from jobrunner.core.errors import UsageError
from jobrunner.core.inventory import Inventory
from jobrunner.service import memos

FORMAT = 1
"""To be raised when checks or values of the hosts file change within a version."""


def read(file: Path, home: Path) -> Inventory:
    """The hosts of a file; none where there is no file. Raises SpecError with every fault in it, UsageError.

    `home` is the state folder. What is kept there counts for a file of exactly the same text only.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return Inventory()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(
            f"the hosts file {file} cannot be read: {error}", remedy="mend it, or name another one with --hosts"
        ) from error
    kept = home / "cache" / "hosts.json"
    mark = {"format": FORMAT, "version": __version__, "text": text}
    with suppress(ValueError, TypeError, KeyError, AttributeError):
        data = memos.read(kept)
        if data["of"] == mark:
            return Inventory.from_json(data["hosts"])
    from jobrunner.core.hosts import load_hosts

    hosts = load_hosts(text, str(file))
    if os.path.isdir(home):
        memos.write(kept, {"of": mark, "hosts": hosts.as_json()})
    return hosts
