"""Connecting before anything is read: while the libraries for specs and commands load, the way to the host is opened.

Where a command is likely to go shows in `hints` and in the ledger. That decides nothing: it lets a connection be begun
and an idle agent be started; the command takes them over only if it comes to the very same target by itself, and
otherwise they are closed. No job, file or secret is sent ahead.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError
from jobrunner.service import hints

if TYPE_CHECKING:
    from jobrunner.transport.link import HostLink
    from jobrunner.transport.settings import HostTarget

MOST = 16  # hosts that are connected to ahead
# Commands that ask hosts about jobs which are not over, and about jobs that they name, over or not; each with what is
# asked first.
_LIVE = dict.fromkeys(("ls", "show", "wait", "cancel", "hold", "release", "priority", "attach"), "look")
_NAMED = {"logs": "tail", "pull": "collect", "checkpoints": "look", "why": "why"}
_VALUES = ("--host", "--hosts", "--set", "--transport")
_FLAGS = ("--json", "--timings", "--wait", "--follow", "--large")


class Ahead:
    """A link that is being opened. `take` hands it to whoever needs the very same target."""

    def __init__(self, link: HostLink, op: str) -> None:
        self._link: HostLink | None = link
        self._lock = threading.Lock()
        link.expect()
        threading.Thread(target=link.prepare, args=(op,), name="ahead", daemon=True).start()

    def take(self, target: HostTarget) -> HostLink | None:
        """The link, for good, if it leads to this target; None otherwise."""
        with self._lock:
            link = self._link
            if link is None or target.alias != link.alias or not link.target.same_way(target):
                return None
            self._link = None
        link.adopt(target)
        return link

    def discard(self) -> None:
        """Close the link unless it was taken."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            link.close()


class Begun:
    """All that was begun ahead in this process."""

    def __init__(self, ways: Sequence[Ahead]) -> None:
        self._ways = ways

    def take(self, target: HostTarget) -> HostLink | None:
        """The link to this target, for good; None if there is none."""
        return next((link for way in self._ways if (link := way.take(target)) is not None), None)

    def discard(self) -> None:
        """Close what was not taken."""
        for way in self._ways:
            way.discard()
        spawning = sys.modules.get("jobrunner.transport.spawning")
        if spawning is not None:
            spawning.discard()


_begun: Begun | None = None


def begun() -> Begun | None:
    """What `begin` has begun in this process."""
    return _begun


def begin(arguments: Sequence[str], environ: Mapping[str, str]) -> None:
    """Begin to connect where it shows from the command line which hosts are going to be asked.

    Nothing goes wrong aloud: whatever it is, the command meets it too, and says it.
    """
    global _begun
    asked = _asked(arguments)
    if asked is None:
        return
    found: list[Ahead] = []
    with contextlib.suppress(Exception):
        _begin(asked, environ, found)
    _begun = Begun(found) if found else None


def _begin(asked: _Asked, environ: Mapping[str, str], found: list[Ahead]) -> None:
    from jobrunner.service.session import default_home, default_hosts_file

    home = default_home(environ)
    file = Path(asked.hosts_file) if asked.hosts_file else default_hosts_file(environ)
    ways = hints.ways(home, file, environ)
    targets = ways.get("targets", {})
    for alias in _aliases(asked, ways, home)[:MOST] if targets else ():
        options = targets.get(alias)
        if isinstance(options, dict):
            options = {**options, "transport": asked.transport or options.get("transport")}
            _begin_ssh(alias, options, home)
            with contextlib.suppress(JobrunnerError, OSError, TypeError, ValueError, KeyError):
                link = _loaded(hints.target(alias, options, home), asked.bulk)
                found.append(Ahead(link, asked.op))


def _loaded(target: HostTarget, bulk: bool) -> HostLink:
    """A link whose libraries are loaded. In this thread: beside other imports it would come later, not earlier."""
    from jobrunner.transport.link import HostLink

    link = HostLink(target, bulk=bulk)
    link.load()
    return link


@dataclass
class _Asked:
    """A command line: its command, what is asked of hosts first, its words, and values of options."""

    command: str
    op: str
    words: list[str] = field(default_factory=list)
    host: str | None = None
    hosts_file: str | None = None
    transport: str | None = None
    bulk: bool = False  # files are going to come, and perhaps a big one


def _aliases(asked: _Asked, ways: Mapping[str, Any], home: Path) -> list[str]:
    if asked.command == "submit":
        known = asked.host or ways.get("specs", {}).get(os.path.abspath(asked.words[0]))
        aliases = known if isinstance(known, list) else [known]
        return [alias for alias in aliases if isinstance(alias, str)]
    from jobrunner.ledger import whereabouts

    named = asked.words if asked.words or asked.command != "ls" else None
    ledger = home / "ledger.db"
    if asked.bulk:
        from jobrunner.service.lanes import BIG

        asked.bulk = whereabouts.has_checkpoint(ledger, asked.words, BIG)
    return whereabouts.hosts(ledger, named, live=asked.command in _LIVE)


def _asked(arguments: Sequence[str]) -> _Asked | None:
    """What a command line asks of hosts; None for anything that is not clear at once, or asks nothing of them."""
    asked = _Asked("", "")
    words = iter(arguments)
    values: dict[str, str] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if name in _VALUES:
            values[name] = value if equals else next(words, "")
        elif word in _FLAGS:
            continue
        elif word.startswith("-"):
            if asked.command in ("", "submit", "ls") or name in ("--help", "-h", "--offline"):
                return None
            asked.bulk = asked.bulk or name == "--pull"
        elif not asked.command:
            op = "stage" if word == "submit" else _LIVE.get(word) or _NAMED.get(word)
            if op is None:
                return None
            asked.command, asked.op, asked.bulk = word, op, word == "pull"
        else:
            asked.words.append(word)
    if not asked.command or not (asked.words or asked.command == "ls"):
        return None
    asked.host, asked.hosts_file, asked.transport = (values.get(name) for name in ("--host", "--hosts", "--transport"))
    return asked


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
