"""The hosts, as commands use them: plain values, made from a checked hosts file or from what was kept of one.

The file itself, its checks and its schema are in `core.hosts`; nothing of what that needs is loaded here.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from jobrunner.core.durations import Duration
from jobrunner.core.errors import UsageError
from jobrunner.core.patterns import ADDRESS_PATTERN, ALIAS_FAULT, ALIAS_PATTERN
from jobrunner.core.values import dataclass


@dataclass(frozen=True)
class Address:
    """Where a host is reached; what is None is left to the SSH configuration."""

    host: str
    user: str | None = None
    port: int | None = None

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host and self.port else self.host
        return (f"{self.user}@" if self.user else "") + host + (f":{self.port}" if self.port else "")


def parse_address(text: str) -> Address:
    """`[user@]host[:port]`, `[v6]:port` or a bare IPv6 address; ValueError (a sentence) for anything else."""
    if not re.search(ADDRESS_PATTERN, text):
        raise ValueError("is no address; write [user@]host[:port], and an IPv6 address with a port as [::1]:22")
    user, at, rest = text.rpartition("@")
    port: int | None = None
    if rest.startswith("["):
        host, _, tail = rest[1:].partition("]")
        port = int(tail[1:]) if tail else None
    elif rest.count(":") == 1:
        host, _, digits = rest.partition(":")
        port = int(digits)
    else:
        host = rest
    if port is not None and not 1 <= port <= 65535:
        raise ValueError("has a port outside 1 to 65535")
    return Address(host, user if at else None, port)


@dataclass(frozen=True)
class Host:
    """One host. The meaning of each value stands in the hosts file's model; what is None is found out by looking."""

    name: str
    address: str | None = None
    transport: Literal["fabric", "openssh", "auto"] = "auto"
    device: str | None = None
    cards: int | None = None
    only_cards: tuple[int, ...] | None = None
    max_cards: int | None = None
    cpu_jobs: int | None = None
    tags: tuple[str, ...] = ()
    root: str = "~/.jobrunner"
    python: str = "python3"
    setup: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    launcher: str = "nohup"
    on_reboot: Literal["none", "crontab"] = "none"

    @property
    def where(self) -> Address:
        """The address, or else the alias, which the SSH configuration is asked about."""
        return parse_address(self.address) if self.address else Address(self.name)

    def limits(self) -> dict[str, Any]:
        """What a request tells the host about the use of its cards."""
        return {
            "only_cards": None if self.only_cards is None else sorted(self.only_cards),
            "max_cards": self.max_cards,
            "cpu_jobs": self.cpu_jobs,
            "cards": self.cards,
            "on_reboot": self.on_reboot,
        }


@dataclass(frozen=True)
class Waits:
    """How long to wait for hosts: for a connection, for an answer, and for one that refuses for load."""

    connect_timeout: Duration = Duration("10s")
    request_timeout: Duration = Duration("20s")
    retry_for: Duration = Duration("90s")


@dataclass(frozen=True)
class Inventory:
    """All hosts of a hosts file; others are taken from the SSH configuration as they are."""

    hosts: Mapping[str, Host] = field(default_factory=dict)
    ssh_config: str | None = None
    settings: Waits = field(default_factory=Waits)

    def get(self, alias: str) -> Host:
        """The host of that name, with defaults for one that only the SSH configuration knows.

        Raises UsageError for a word that no host can be called by.
        """
        if alias in self.hosts:
            return self.hosts[alias]
        if not re.search(ALIAS_PATTERN, alias):
            raise UsageError(
                ALIAS_FAULT.format(alias), code="host_name", remedy="`jobrunner hosts ls` lists the known ones"
            )
        return Host(alias)

    def with_address(self, alias: str, address: str) -> Inventory:
        """The same hosts, with one of them reached at `address`. Raises UsageError for what is no address."""
        try:
            parse_address(address)
        except ValueError as error:
            raise UsageError(f"{address!r} {error}", code="address") from None
        host = dataclasses.replace(self.get(alias), address=address)
        return dataclasses.replace(self, hosts={**self.hosts, alias: host})

    def as_json(self) -> dict[str, Any]:
        """All of it, as `from_json` takes it."""
        return {
            "hosts": {alias: vars(host) for alias, host in self.hosts.items()},
            "ssh_config": self.ssh_config,
            "settings": vars(self.settings),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Inventory:
        """What `as_json` gave, read back. Raises TypeError, ValueError, KeyError, AttributeError for anything else."""
        return cls(
            hosts={str(alias): Host(**_with_tuples(entry)) for alias, entry in data["hosts"].items()},
            ssh_config=data["ssh_config"],
            settings=Waits(**{name: Duration(value) for name, value in data["settings"].items()}),
        )


def _with_tuples(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {name: tuple(value) if isinstance(value, list) else value for name, value in entry.items()}
