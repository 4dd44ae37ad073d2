"""What is remembered of the ways to hosts, for commands that begin to connect before they have read anything.

Kept in the state folder: how each host is reached according to the hosts file as it then was, and which host a spec
file's jobs went to. A hint decides nothing (see `ahead`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.service import memos

if TYPE_CHECKING:
    from jobrunner.transport.settings import HostTarget

FORMAT = 3
KEPT = 100  # so many spec files are remembered
_LIMITS = ("connect_s", "request_s", "retry_s")


def ways(home: Path, hosts_file: Path, environ: Mapping[str, str]) -> dict[str, Any]:
    """What is remembered under this hosts file: `{"specs": {path: alias, or aliases}, "targets": {alias: options}}`; {}
    if nothing is, or if the file has changed since."""
    return _still_so(_read(home).get(_key(hosts_file, environ)), _stamp(hosts_file))


def target(alias: str, options: Mapping[str, Any], home: Path) -> HostTarget:
    """The target that was remembered. Raises JobrunnerError, KeyError, TypeError or ValueError where it is nonsense."""
    from jobrunner.service.session import attended
    from jobrunner.transport.settings import HostTarget, TransportSettings

    limits: dict[str, Any] = {name: float(options[name]) for name in _LIMITS}
    return HostTarget.of(
        alias,
        ssh_config=options["ssh_config"],
        address=options["address"],
        root=options["root"],
        python=options["python"],
        settings=TransportSettings(cache=home / "cache", sockets=home / "ssh", attended=attended(), **limits),
        transport=str(options["transport"]),
    )


def remember(
    home: Path, hosts_file: Path, environ: Mapping[str, str], used: Iterable[tuple[Path | None, HostTarget]]
) -> None:
    """Keep as hints which targets were used, and for which spec file's jobs. Nothing goes wrong aloud."""
    hints = _read(home)
    key, stamp = _key(hosts_file, environ), _stamp(hosts_file)
    where = _still_so(hints.get(key), stamp) or {"stamp": stamp}
    before = json.dumps(where, sort_keys=True)
    specs, targets = where.setdefault("specs", {}), where.setdefault("targets", {})
    went: dict[str, list[str]] = {}
    for path, target in used:
        if path is not None:
            went.setdefault(os.path.abspath(path), []).append(target.alias)
        targets[target.alias] = {
            "ssh_config": target.ssh_config,
            "address": target.address,
            "root": target.root,
            "python": target.python,
            "transport": target.transport,
            "shared": _shared(target) if target.transport == "openssh" else None,
            **{name: getattr(target.settings, name) for name in _LIMITS},
        }
    for spec, aliases in went.items():
        specs.pop(spec, None)
        specs[spec] = aliases[0] if len(set(aliases)) == 1 else list(dict.fromkeys(aliases))
    where["specs"] = dict(list(specs.items())[-KEPT:])
    if json.dumps(where, sort_keys=True) != before:
        memos.write(_file(home), {**dict(list(hints.items())[-8:]), key: where, "v": FORMAT})


def _shared(target: HostTarget) -> dict[str, Any]:
    """What the command line of a shared connection is made from, beside the above."""
    config, settings = target.config, target.settings
    return {
        "digest": config.digest,
        "strict": config.strict,
        "ciphers": config.ciphers,
        "others": bool(config.control_path),  # the user's own may be up: that is to be looked at first
        "limit": target.connect_limit,
        "probe_s": settings.probe_s,
        "dead_after_s": settings.dead_after_s,
    }


def _file(home: Path) -> Path:
    return home / "cache" / "ahead.json"


def _key(hosts_file: Path, environ: Mapping[str, str]) -> str:
    return f"{os.path.abspath(hosts_file)}|{environ.get('JOBRUNNER_SSH_CONFIG', '')}"


def _stamp(hosts_file: Path) -> list[int] | None:
    try:
        seen = os.stat(hosts_file)
    except OSError:
        return None
    return [seen.st_mtime_ns, seen.st_size, seen.st_ino]


def _still_so(where: object, stamp: list[int] | None) -> dict[str, Any]:
    """What is remembered under a hosts file that has this stamp now; {} if it is of another, or nonsense."""
    if not isinstance(where, dict) or where.get("stamp") != stamp:
        return {}
    return where if all(isinstance(where.get(name, {}), dict) for name in ("specs", "targets")) else {}


def _read(home: Path) -> dict[str, Any]:
    found = memos.read(_file(home))
    return found if isinstance(found, dict) and found.get("v") == FORMAT else {}
