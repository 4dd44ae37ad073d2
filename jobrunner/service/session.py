"""What every command works with: the state folder, the hosts file, the ledger and the links to the hosts.

Nothing is opened before it is used, because start-up is part of every command's time.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jobrunner.core.errors import JobrunnerError, NotFoundError
from jobrunner.service.progress import NoProgress, Progress
from jobrunner.service.timings import Timings

if TYPE_CHECKING:
    from types import TracebackType

    from jobrunner.core.inventory import Inventory
    from jobrunner.ledger import Ledger
    from jobrunner.service.ahead import Begun
    from jobrunner.transport.link import HostLink
    from jobrunner.transport.pool import LinkPool


def default_home(environ: Mapping[str, str]) -> Path:
    """The state folder: `$JOBRUNNER_HOME`, else the platform's user data folder."""
    chosen = environ.get("JOBRUNNER_HOME")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_data_dir("jobrunner", appauthor=False))


def default_hosts_file(environ: Mapping[str, str]) -> Path:
    """The hosts file: `$JOBRUNNER_HOSTS`, else `hosts.yaml` in the platform's user config folder."""
    chosen = environ.get("JOBRUNNER_HOSTS")
    if chosen:
        return Path(chosen).expanduser()
    import platformdirs

    return Path(platformdirs.user_config_dir("jobrunner", appauthor=False)) / "hosts.yaml"


class Session:
    """One command's view of the world. Use it as a context manager: leaving it closes links and ledger."""

    def __init__(
        self,
        *,
        home: Path,
        hosts_file: Path,
        environ: Mapping[str, str],
        progress: Progress,
        transport: str | None = None,
    ) -> None:
        self.home = home
        self.hosts_file = hosts_file
        self.environ = environ
        self.progress = progress
        self.transport = transport
        self.timings = Timings()
        self.warnings: list[str] = []
        self.patient = False
        self._begun: Begun | None = None

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def be_patient(self) -> None:
        """A host that turns connections away for load is tried again for as long as the settings say.

        Commands that only look wait no longer for it than for a silent one. To be called before a link is used.
        """
        self.patient = True

    def close(self) -> None:
        """Close what was opened: every link, then the ledger."""
        if self._begun is not None:
            self._begun.discard()
        if "links" in self.__dict__:
            self._remember_ways()
            self.links.close()
        if "ledger" in self.__dict__:
            self.ledger.close()

    def _remember_ways(self) -> None:
        """Commands to come may begin to connect to the same hosts before they have read anything."""
        from jobrunner.service import hints

        used = [(None, target) for target in self.links.reached]
        if used and not self.transport:
            hints.remember(self.home, self.hosts_file, self.environ, used)

    def warn(self, text: str) -> None:
        """Keep a sentence for standard error; the same one is kept once."""
        if text not in self.warnings:
            self.warnings.append(text)

    @cached_property
    def ledger(self) -> Ledger:
        """The ledger in the state folder, created on first use."""
        from jobrunner.ledger import Ledger

        with self.timings.phase("ledger"):
            ledger = Ledger(self.home / "ledger.db")
        for text in ledger.warnings:
            self.warn(text)
        return ledger

    @cached_property
    def hosts(self) -> Inventory:
        """The hosts of the hosts file; none where there is no file. Raises SpecError with every fault in it."""
        from jobrunner.service import inventories

        with self.timings.phase("import"):
            return inventories.read(self.hosts_file, self.home)

    @cached_property
    def written_hosts(self) -> frozenset[str]:
        """The aliases that stand in the hosts file."""
        return frozenset(self.hosts.hosts)

    def add_host(self, alias: str, address: str) -> None:
        """For this command, reach `alias` at an address. Raises UsageError for one that cannot be."""
        names = self.written_hosts
        self.__dict__["hosts"] = self.hosts.with_address(alias, address)
        self.__dict__["written_hosts"] = names

    @property
    def secrets_file(self) -> Path:
        """`secrets.env` beside the hosts file."""
        return self.hosts_file.parent / "secrets.env"

    @cached_property
    def links(self) -> LinkPool:
        """One connection per host, opened at first use and shared by everything in this command."""
        from jobrunner.service import ahead
        from jobrunner.transport.pool import open_pool

        settings, self._begun = self.hosts.settings, ahead.begun()
        return open_pool(
            self.hosts,
            environ=self.environ,
            state_folder=self.home,
            retry_s=settings.retry_for.seconds if self.patient else settings.connect_timeout.seconds,
            passphrase=_ask_passphrase,
            transport=self.transport,
            attended=attended(),
            begun=self._begun.take if self._begun is not None else None,
            greeting=self._kept_cancels,
        )

    def spent(self) -> dict[str, float]:
        """Where the time went so far, for `--timings`: seconds by phase; phases may overlap."""
        total = self.timings.as_dict()
        for name, seconds in (self.links.spent if "links" in self.__dict__ else {}).items():
            total[name] = total.get(name, 0.0) + seconds
        return total

    def _kept_cancels(self, alias: str) -> dict[str, Any]:
        """Cancels that a host has not been told yet: they go with the first request of any command."""
        wishes = self.ledger.pending_wishes(alias)
        return {"cancel": [{"id": wish.job, "grace_s": wish.grace_s, "at": wish.at} for wish in wishes]}

    def link(self, alias: str, *, bulk: bool = False) -> HostLink:
        """The open link to a host; one for big transfers if it is wanted for such first. Raises HostError."""
        return self.links.link(alias, bulk=bulk)

    @cached_property
    def agent_hash(self) -> str:
        """The hash that names this version's agent on every host."""
        from jobrunner.transport.bootstrap import agent_image

        return agent_image(self.home / "cache").hash

    def connect_ahead(self, aliases: list[str]) -> None:
        """Begin to connect to hosts beside other work. What goes wrong is told when the link is used."""
        for alias in aliases:
            threading.Thread(target=self._connect_quietly, args=(alias,), daemon=True).start()

    def _connect_quietly(self, alias: str) -> None:
        with contextlib.suppress(JobrunnerError):
            self.links.link(alias)

    def known_aliases(self) -> list[str]:
        """Hosts of the hosts file, then those that the ledger has met, in that order.

        A name that never answered (a typing mistake, perhaps) has not been met.
        """
        names = list(self.hosts.hosts)
        names += [host.alias for host in self.ledger.hosts() if host.instance and host.alias not in names]
        return names

    def named(self, alias: str, error: JobrunnerError) -> JobrunnerError:
        """A host's error, or NotFoundError if nothing knows a host of that name: no file, no resolver, no past."""
        if error.code != "dns" or alias in self.written_hosts:
            return error
        known = self.ledger.host(alias)
        if (known is not None and known.instance) or self.links.target(alias).config.hostname != alias:
            return error
        from jobrunner.core.words import nearest

        near = nearest(alias, self.known_aliases())
        return NotFoundError(
            f"no host is called {alias!r}: it is not in {self.hosts_file}, not in the SSH configuration, and the name "
            "cannot be resolved",
            code="no_such_host",
            remedy=f"did you mean {near}?" if near else "`jobrunner hosts ls` lists the known ones",
        )

    def choose_hosts(self, wanted: list[str] | None) -> list[str]:
        """The aliases asked for, or every known one. Raises NotFoundError if there is none at all."""
        aliases = list(dict.fromkeys(wanted or self.known_aliases()))
        if not aliases:
            raise NotFoundError(
                "no hosts are known",
                code="no_hosts",
                remedy=f"name one (an alias of your SSH configuration), or list them in {self.hosts_file}",
            )
        return aliases


def open_session(
    *,
    home: Path | None = None,
    hosts_file: Path | None = None,
    progress: Progress | None = None,
    environ: Mapping[str, str] | None = None,
    transport: str | None = None,
    **_: Any,
) -> Session:
    """A session for the given folders, or for those that the environment names.

    `transport` (fabric, openssh, auto) goes over what the hosts file says of each host.
    """
    environ = dict(os.environ) if environ is None else environ
    return Session(
        home=home or default_home(environ),
        hosts_file=hosts_file or default_hosts_file(environ),
        environ=environ,
        progress=progress or NoProgress(),
        transport=transport,
    )


def client_identity() -> dict[str, str]:
    """Who submits, for people reading the host's files: host name, user, program."""
    import getpass
    import socket

    try:
        user = getpass.getuser()
    except (KeyError, OSError, ImportError):
        user = "?"
    return {"host": socket.gethostname(), "user": user, "python": sys.version.split()[0]}


def attended() -> bool:
    """True if a person would see a question: standard input and error are a terminal."""
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


_ASKING = threading.Lock()


def _ask_passphrase(path: str) -> str | None:
    """Ask the person at the terminal for a key's passphrase; None where nobody would see the question."""
    if not attended():
        return None
    import getpass

    with _ASKING:
        return getpass.getpass(f"Passphrase of {path}: ", stream=sys.stderr)
