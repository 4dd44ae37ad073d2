"""The agent as a first contact leaves it on a host, made once so that not every scenario begins with that."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.faults.commands import Laptop
from tests.faults.host import BreakableHost


def prepare(target: Path) -> Path:
    """Fill `target` with a host's `agent` folder, and return it."""
    place = target.with_name("first-contact")
    with BreakableHost(place / "host") as host:
        Laptop(place / "laptop", host).run("hosts", "check")
        shutil.copytree(host.root / "agent", target, symlinks=True)
    shutil.rmtree(place)
    return target
