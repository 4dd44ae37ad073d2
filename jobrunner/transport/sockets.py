"""Where the sockets of our shared connections lie: in the state folder, or in a short private one, 0700 either way."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jobrunner.core.values import dataclass
from jobrunner.transport import mux

# What a socket's address may be long (104 on macOS, 108 on Linux, with the NUL), less what ssh appends while it binds.
LONGEST = (107 if sys.platform.startswith("linux") else 103) - 18
_SOCKET = re.compile(r"[0-9a-f]{16}\.\d")
_NAME = 22  # `<16 hex digits>.<spare>`, and the `.json` or `.lock` beside it, which are no sockets


@dataclass(frozen=True)
class Shared:
    """One of our shared connections: its socket, the alias it leads to, and the master's process (None: dead)."""

    path: Path
    alias: str
    pid: int | None


def ssh_program() -> str:
    """The `ssh` to run, "" where there is none that can share connections."""
    return "" if os.name == "nt" else shutil.which("ssh") or ""


def folder(wanted: Path, *, make: bool = False) -> Path | None:
    """The folder for sockets: `wanted`, or a short private one where that is too long; None where neither is safe.

    With `make` it is there afterwards.
    """
    for place in (wanted, _short(wanted)):
        fits = len(os.fsencode(place)) + 1 + _NAME <= LONGEST and '"' not in str(place)
        if fits and ((not make and not os.path.lexists(place)) or _private(place, make)):
            return place
    return None


def _short(wanted: Path) -> Path:
    """A folder of our own with a short name, for this state folder."""
    mark = hashlib.sha256(os.fsencode(os.path.abspath(wanted))).hexdigest()[:8]
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    if runtime and os.path.isdir(runtime) and len(os.fsencode(runtime)) < 40:
        return Path(runtime) / f"jobrunner-{mark}"
    return Path("/tmp") / f"jobrunner-ssh-{os.getuid()}-{mark}"


def _private(place: Path, make: bool = False) -> bool:
    """True if the folder is ours alone, and no link to somewhere else. With `make` it is made if need be."""
    try:
        if make:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        seen = os.lstat(place)
        if not stat.S_ISDIR(seen.st_mode) or seen.st_uid != os.getuid():
            return False
        if seen.st_mode & 0o077:
            os.chmod(place, 0o700)
    except OSError:
        return False
    return True


def socket_path(place: Path, digest: str, spare: int) -> Path:
    """The socket for a host as it is configured now; `spare` counts connections that were full before."""
    return place / f"{digest}.{spare}"


def note(path: Path, alias: str, address: str) -> None:
    """Keep beside a socket which host it leads to, for people and for `hosts disconnect`."""
    with contextlib.suppress(OSError):
        aside = path.with_name(path.name + ".json")
        aside.write_text(json.dumps({"alias": alias, "address": address}), encoding="utf-8")


def existing(wanted: Path) -> Iterator[Shared]:
    """Every shared connection of ours, also such as have died and left their socket."""
    for place in (wanted, _short(wanted)):
        names = os.listdir(place) if place.is_dir() and _private(place) else []
        for name in sorted({name.removesuffix(".json") for name in names}):
            if _SOCKET.fullmatch(name):
                path = place / name
                yield Shared(path, str(_facts(path).get("alias", "")), mux.master_pid(path))


def _facts(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.with_name(path.name + ".json").read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def disconnect(shared: Shared, limit: float = 5.0) -> bool:
    """End a shared connection and remove what is left of it; True if it was alive. What runs on the host goes on."""
    alive = shared.pid is not None and mux.terminate(shared.path)
    ends = time.monotonic() + limit
    while alive and mux.master_pid(shared.path) is not None and time.monotonic() < ends:
        time.sleep(0.02)
    remove(shared.path)
    return alive


def tidy(wanted: Path) -> None:
    """Remove the folder for sockets outside the state folder, if nothing is in it."""
    with contextlib.suppress(OSError):
        _short(wanted).rmdir()


def remove(path: Path) -> None:
    """Remove a dead socket with what lies beside it."""
    for name in (path.name, path.name + ".json", path.name + ".lock"):
        with contextlib.suppress(OSError):
            path.with_name(name).unlink()


@contextlib.contextmanager
def locked(path: Path, limit: float) -> Iterator[None]:
    """One process at a time makes a host's shared connection. Whoever waits for too long goes on without the lock.

    Two that get in together do no harm: the later one finds the socket taken.
    """
    import fcntl

    lock = path.with_name(path.name + ".lock")
    try:
        handle = lock.open("w")
    except OSError:
        yield
        return
    ends = time.monotonic() + limit
    with handle:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError:
                if time.monotonic() > ends:
                    break
                time.sleep(0.02)
        try:
            yield
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()
