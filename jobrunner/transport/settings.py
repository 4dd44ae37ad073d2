"""Limits and choices of the transport, and what is needed to reach one host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from pathlib import Path

from jobrunner.core.values import dataclass
from jobrunner.transport.sshconfig import HostConfig, resolve

DEFAULT_ROOT = "~/.jobrunner"
DEFAULT_PYTHON = "python3"

# Given the path of an encrypted key, its passphrase; None where nobody can be asked.
PassphraseSource = Callable[[str], "str | None"]


@dataclass(frozen=True)
class TransportSettings:
    """Limits in seconds. `retry_s` is for throttled connects only; `dead_after_s` without a sign of life ends a link.

    `sessions` is how many channels one connection may have at once. `cache` is a folder for what is dear to build
    (None: nothing is kept), `sockets` one for shared connections (None: there are none). `attended`: a person at the
    terminal can be asked. `passphrase` is asked for encrypted keys that no agent holds.
    """

    connect_s: float = 10.0
    request_s: float = 20.0
    auth_s: float = 20.0
    channel_s: float = 20.0
    retry_s: float = 90.0
    probe_s: float = 5.0
    dead_after_s: float = 12.0
    sessions: int = 4
    cache: Path | None = None
    sockets: Path | None = None
    attended: bool = False
    passphrase: PassphraseSource | None = None


@dataclass(frozen=True)
class HostTarget:
    """One host: its SSH configuration, and where the agent lives on it (`root`, run by `python`).

    `transport` is what carries the connection: `fabric`, `openssh`, or `auto` (see `choice`).
    """

    alias: str
    config: HostConfig
    root: str = DEFAULT_ROOT
    python: str = DEFAULT_PYTHON
    ssh_config: str | None = None
    settings: TransportSettings = field(default_factory=TransportSettings)
    address: str | None = None
    transport: str = "fabric"

    @classmethod
    def of(
        cls,
        alias: str,
        *,
        ssh_config: str | Path | None = None,
        address: str | None = None,
        root: str = DEFAULT_ROOT,
        python: str = DEFAULT_PYTHON,
        settings: TransportSettings | None = None,
        transport: str = "fabric",
    ) -> HostTarget:
        """The target of an alias or address, with its configuration resolved (see `sshconfig.resolve`)."""
        config = resolve(alias, ssh_config=ssh_config, address=address)
        file = str(ssh_config) if ssh_config else None
        return cls(alias, config, root, python, file, settings or TransportSettings(), address, transport)

    def same_way(self, other: HostTarget) -> bool:
        """True if both lead to the same agent by the same way and have the same patience with it; for how long a busy
        server is tried again may differ."""
        mine, others = (
            (t.alias, t.config, t.config.digest, t.root, t.python, t.ssh_config, t.transport) for t in (self, other)
        )
        limits = self.settings.connect_s, self.settings.request_s
        return mine == others and limits == (other.settings.connect_s, other.settings.request_s)

    @property
    def connect_limit(self) -> float:
        """Seconds for one connect: ours, or the shorter ConnectTimeout of the SSH configuration."""
        own = self.config.connect_timeout
        return min(own, self.settings.connect_s) if own else self.settings.connect_s
