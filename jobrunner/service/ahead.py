"""Connecting before anything is read: while the libraries for specs and commands load, the way to the host is opened.

What the last submits found out is kept as a hint in the state folder: which host a spec file's jobs went to, and how
that host is reached according to the hosts file as it then was. A hint decides nothing. It lets a connection be begun
and an idle agent be started; the command takes them over only if it comes to the very same target by itself, and
otherwise they are closed. No job, file or secret is sent ahead.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError

if TYPE_CHECKING:
    from jobrunner.transport.link import HostLink
    from jobrunner.transport.settings import HostTarget

FORMAT = 3
KEPT = 100  # so many spec files are remembered
_LIMITS = ("connect_s", "request_s", "retry_s")


class Ahead:
    """A link that is being opened. `take` hands it to whoever needs the very same target."""

    def __init__(self, alias: str, options: Mapping[str, Any], home: Path) -> None:
        self._alias, self._options, self._home = alias, options, home
        self._link: HostLink | None = None
        self._lock = threading.Lock()
        self._known = threading.Event()
        self._over = False
        threading.Thread(target=self._open, name="ahead", daemon=True).start()

    def _open(self) -> None:
        link = None
        try:
            with contextlib.suppress(JobrunnerError, OSError, TypeError, ValueError):
                from jobrunner.transport.link import HostLink

                link = HostLink(_target(self._alias, self._options, self._home))
                link.expect()
            with self._lock:
                self._link = link = None if self._over else link
        finally:
            self._known.set()
        if link is not None:  # it may have been taken by now: its new owner waits for this
            link.prepare("stage")

    def take(self, target: HostTarget) -> HostLink | None:
        """The link, for good, if it leads to this target; None otherwise."""
        if target.alias != self._alias:
            return None
        self._known.wait(target.settings.connect_s)
        with self._lock:
            if self._over or self._link is None or not self._link.target.same_way(target):
                return None
            link, self._link, self._over = self._link, None, True
        link.adopt(target)
        return link

    def discard(self) -> None:
        """Close the link unless it was taken."""
        with self._lock:
            link, self._link, self._over = self._link, None, True
        if link is not None:
            link.close()
        spawning = sys.modules.get("jobrunner.transport.spawning")
        if spawning is not None:
            spawning.discard()


_begun: Ahead | None = None


def begun() -> Ahead | None:
    """What `begin` has begun in this process."""
    return _begun


def begin(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Begin to connect where this command line is a submit whose host is known from the last time."""
    global _begun
    submit = _as_submit(arguments)
    if submit is None:
        return
    specs, host, hosts_file, transport = submit
    from jobrunner.service.session import default_home, default_hosts_file

    home = default_home(environ)
    file = Path(hosts_file) if hosts_file else default_hosts_file(environ)
    hints = _read(home)
    where = hints.get(_key(file, environ))
    if not isinstance(where, dict) or where.get("stamp") != _stamp(file):
        return
    alias = host or where.get("specs", {}).get(os.path.abspath(specs[0]))
    options = where.get("targets", {}).get(alias)
    if isinstance(options, dict):
        options = {**options, "transport": transport or options.get("transport")}
        _begin_ssh(alias, options, home)
        _begun = Ahead(alias, options, home)


def _begin_ssh(alias: str, options: Mapping[str, Any], home: Path) -> None:
    """Where OpenSSH's client is going to connect, start it now: it needs nothing of what is yet to be loaded."""
    shared = options.get("shared")
    if options["transport"] != "openssh" or not isinstance(shared, dict):
        return
    with contextlib.suppress(JobrunnerError, OSError, KeyError, TypeError, ValueError):
        from jobrunner.transport import sockets, spawning

        place = sockets.folder(home / "ssh", make=True) if sockets.ssh_program() else None
        path = place and sockets.socket_path(place, str(shared["digest"]), 0)
        if path is None or path.exists() or shared["others"]:
            return
        strict, ciphers = str(shared["strict"]), str(shared["ciphers"])
        route = spawning.Route(alias, options["address"], options["ssh_config"], strict, ciphers)
        limit, probe_s, dead_after_s = (float(shared[name]) for name in ("limit", "probe_s", "dead_after_s"))
        words = spawning.master_argv(route, path, limit=limit, probe_s=probe_s, dead_after_s=dead_after_s)
        spawning.begin(path, words)


def _as_submit(arguments: Sequence[str]) -> tuple[list[str], str | None, str | None, str | None] | None:
    """`(specs, --host, --hosts, --transport)` of a plain submit; None for anything that is not clear at once."""
    specs: list[str] = []
    values: dict[str, str] = {}
    words = iter(arguments)
    command = ""
    for word in words:
        name, equals, value = word.partition("=")
        if name in ("--host", "--hosts", "--set", "--transport"):
            values[name] = value if equals else next(words, "")
        elif word in ("--json", "--timings", "--wait", "--follow", "--large"):
            continue
        elif word.startswith("-"):
            return None
        elif not command:
            command = word
        else:
            specs.append(word)
    if command != "submit" or not specs:
        return None
    return specs, values.get("--host"), values.get("--hosts"), values.get("--transport")


def _target(alias: str, options: Mapping[str, Any], home: Path) -> HostTarget:
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


def remember(home: Path, hosts_file: Path, environ: Mapping[str, str], sent: Iterable[tuple[Path, HostTarget]]) -> None:
    """Keep as hints which target each spec file's jobs went to. Nothing goes wrong aloud."""
    hints = _read(home)
    key, stamp = _key(hosts_file, environ), _stamp(hosts_file)
    old = hints.get(key)
    where: dict[str, Any] = old if isinstance(old, dict) and old.get("stamp") == stamp else {"stamp": stamp}
    before = json.dumps(where, sort_keys=True)
    specs, targets = where.setdefault("specs", {}), where.setdefault("targets", {})
    for path, target in sent:
        specs.pop(os.path.abspath(path), None)
        specs[os.path.abspath(path)] = target.alias
        targets[target.alias] = {
            "ssh_config": target.ssh_config,
            "address": target.address,
            "root": target.root,
            "python": target.python,
            "transport": target.transport,
            "shared": _shared(target) if target.transport == "openssh" else None,
            **{name: getattr(target.settings, name) for name in _LIMITS},
        }
    where["specs"] = dict(list(specs.items())[-KEPT:])
    if json.dumps(where, sort_keys=True) != before:
        _write(home, {**dict(list(hints.items())[-8:]), key: where, "v": FORMAT})


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


def _read(home: Path) -> dict[str, Any]:
    try:
        found = json.loads(_file(home).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) and found.get("v") == FORMAT else {}


def _write(home: Path, hints: Mapping[str, Any]) -> None:
    file = _file(home)
    aside = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    with contextlib.suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside.write_text(json.dumps(hints), encoding="utf-8")
        os.replace(aside, file)
