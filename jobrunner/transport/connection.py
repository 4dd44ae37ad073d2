"""Fabric's Connection, with each of its defaults that would hurt overridden.

Fabric gives the connection object: its settings, its life cycle, its sessions. What it decides by default is decided
here instead: SSH configuration comes resolved (`sshconfig`), host keys are judged by `hostkeys`, keys are offered by
`auth`, the byte stream comes from `dial` or from another connection, and every wait has a limit.

Importing this module imports Fabric and paramiko: do it only where a connection is about to be made.
"""

from __future__ import annotations

import socket
import time
from typing import Any

import fabric
import paramiko
from fabric.config import Config

from jobrunner.core.errors import ConnectError, HostError
from jobrunner.transport.auth import authenticate
from jobrunner.transport.channel import ChannelRefused
from jobrunner.transport.hostkeys import HostKey, KnownHosts, accept
from jobrunner.transport.settings import HostTarget
from jobrunner.transport.wire_ssh import FAR_AWAY_S, FAR_WINDOW, LinkTransport, start_exec

# A server under load ends a connection before or with such a line.
_THROTTLE_WORDS = ("exceeded maxstartups", "not allowed at this time", "too many", "maxstartups", "try again")


class VerifyingClient(paramiko.SSHClient):  # type: ignore[misc]
    """Connects over a given byte stream: shakes hands, judges the host key, logs in. Closes all on any failure."""

    host_key: HostKey | None = None
    took: dict[str, float]

    def connect(self, hostname: str, *, carrier: Any, target: HostTarget, login: bool = True, **_: Any) -> None:
        """`hostname` is in the target already; `login` False ends after the host key is known (nothing is judged)."""
        began = time.monotonic()
        known = KnownHosts(target.config)
        transport = self._transport = LinkTransport(carrier, known.algorithms())
        try:
            _shake_hands(transport, target)
            key = transport.get_remote_server_key()
            self.host_key = HostKey(key.get_name(), bytes(key.asbytes()))
            shaken = time.monotonic()
            if login:
                accept(target.config, known.judge(self.host_key))
                authenticate(transport, target)
                transport.watch(target.settings.probe_s, target.settings.dead_after_s)
            self.took = {"connect": shaken - began, "authenticate": time.monotonic() - shaken}
        except BaseException:
            transport.settle(1.0)
            carrier.close()
            raise


def _shake_hands(transport: LinkTransport, target: HostTarget) -> None:
    """Greeting and key exchange, within the connect limit each. Raises ConnectError: silent, not_ssh, throttled, …"""
    limit = target.connect_limit
    transport.banner_timeout = limit
    transport.handshake_timeout = limit
    transport.auth_timeout = target.settings.auth_s
    transport.channel_timeout = target.settings.channel_s
    try:
        transport.start_client(timeout=2 * limit + 1)
    except (paramiko.SSHException, EOFError, OSError) as error:
        raise _handshake_error(transport, target, error) from error
    if not transport.initial_kex_done:
        raise _silent(target, f"did not finish its key exchange within {2 * limit:.0f} s")


def _silent(target: HostTarget, what: str) -> ConnectError:
    return ConnectError(
        f"{target.alias} ({target.config.hostname} port {target.config.port}) {what}",
        host=target.alias,
        code="silent",
        remedy="It may be overloaded, or something else than an SSH server listens there.",
    )


def _handshake_error(transport: LinkTransport, target: HostTarget, error: Exception) -> ConnectError:
    """Which of the failures it is that paramiko calls by one name."""
    packets = transport.packetizer
    place = f"{target.alias} ({target.config.hostname} port {target.config.port})"
    lines = [line for line in packets.greeting if line.strip()]
    greeted = any(line.startswith("SSH-") for line in lines)
    said = " / ".join(lines[:2])[:200]
    if any(word in line.lower() for line in lines for word in _THROTTLE_WORDS) and not greeted:
        return _throttled(target, said)
    if isinstance(error, paramiko.IncompatiblePeer):
        return ConnectError(
            f"{place} and jobrunner have no way of encryption in common: {error}",
            host=target.alias,
            code="not_ssh",
            remedy="The SSH server there is too old or too restricted; ask its administrator.",
        )
    if not greeted and lines:
        return ConnectError(
            f"{place} is not an SSH server: it answered {said!r}",
            host=target.alias,
            code="not_ssh",
            remedy="Check the port.",
        )
    if packets.handshake_late or isinstance(packets.greeting_fault, TimeoutError | socket.timeout):
        return _silent(target, f"accepted the connection and said nothing for {target.connect_limit:.0f} s")
    if transport.farewell:
        return ConnectError(
            f"{place} ended the connection: {transport.farewell}", host=target.alias, code="unreachable"
        )
    if isinstance(error, EOFError | OSError) or packets.greeting_fault is not None:
        return _throttled(target, "it closed the connection before saying anything")
    return ConnectError(
        f"{place} spoke SSH, but not in a way that can be followed: {error}", host=target.alias, code="not_ssh"
    )


def _throttled(target: HostTarget, said: str) -> ConnectError:
    return ConnectError(
        f"{target.alias} ({target.config.hostname} port {target.config.port}) turns connections away: {said}",
        host=target.alias,
        code="throttled",
        remedy="Too many connections at once, or too many failed logins from here; wait a minute and try again.",
    )


def _plain_config() -> Config:
    """Fabric's settings without reading any file: neither fabric.yaml nor an SSH configuration."""
    return Config(lazy=True, ssh_config=paramiko.SSHConfig(), overrides={"load_ssh_configs": False})


class HostConnection(fabric.Connection):  # type: ignore[misc]
    """One open SSH connection to a host.

    `round_trip` is about how long a packet takes there and back, in seconds; `behind` the connection to the last
    jump host, which is closed with this one; `took` the seconds that opening it took, by phase. It is a
    `channel.Connection`.
    """

    kind = "fabric"
    shared = False
    spare = 0
    target: HostTarget
    round_trip = 0.0
    took: dict[str, float]
    behind: HostConnection | None = None
    carrier: Any = None

    def __init__(self, target: HostTarget, carrier: Any, round_trip: float, behind: HostConnection | None) -> None:
        super().__init__(
            host=target.config.hostname,
            user=target.config.user,
            port=target.config.port,
            config=_plain_config(),
            gateway=False,
            forward_agent=False,
            inline_ssh_env=False,
        )
        self.connect_kwargs = {"carrier": carrier, "target": target}
        self.client = VerifyingClient()
        object.__setattr__(self, "target", target)
        object.__setattr__(self, "carrier", carrier)
        object.__setattr__(self, "behind", behind)
        object.__setattr__(self, "round_trip", round_trip)
        object.__setattr__(self, "took", {})

    def open(self) -> None:
        """Shake hands, check the host key, log in. After a failure everything below is closed."""
        began = time.monotonic()
        try:
            super().open()
        except BaseException:
            self.close()
            raise
        # The first socket may be that of a relay close by; a login takes about eight round trips.
        object.__setattr__(self, "round_trip", max(self.round_trip, (time.monotonic() - began) / 8))
        for name, seconds in self.client.took.items():
            self.took[name] = self.took.get(name, 0.0) + seconds

    def start_channel(self, command: str, limit: float, round_trip: float) -> Any:
        """See `channel.Connection`."""
        window = FAR_WINDOW if (round_trip or self.round_trip) > FAR_AWAY_S else None
        try:
            channel = self.transport.open_session(window_size=window, timeout=limit)
        except paramiko.ChannelException as error:
            raise ChannelRefused(str(error)) from error
        except paramiko.SSHException as error:
            if str(error) == "Unable to open channel.":  # of several refusals at once paramiko names only the first
                raise ChannelRefused(str(error)) from error
            raise
        self.transport.packetizer.prompt = False
        try:
            start_exec(channel, command)
        except BaseException:
            channel.close()
            raise
        return channel

    def run_on_terminal(self, argv: list[str]) -> int:
        """See `channel.Connection`."""
        from jobrunner.transport.terminal import run_on_terminal

        return run_on_terminal(self.transport, self.target, argv)

    def open_channel_to(self, target: HostTarget) -> Any:
        """A byte stream from this host onward to another. Raises ConnectError."""
        place = (target.config.hostname, target.config.port)
        try:
            channel = self.transport.open_channel("direct-tcpip", place, ("", 0), timeout=target.connect_limit)
        except (paramiko.SSHException, EOFError, OSError) as error:
            raise _onward_error(self.target, target, error) from error
        return channel

    @property
    def banner(self) -> str:
        """What the server says before the login, for a person to read."""
        data = self.transport.get_banner() if self.transport is not None else None
        return data.decode("utf-8", "replace") if data else ""

    def close(self) -> None:
        """End the connection and what it runs over. Never raises for what is already gone."""
        try:
            if self.transport is not None:
                self.transport.settle(1.0)
            super().close()
            if self.client is not None:
                self.client.close()
        finally:
            if self.carrier is not None:
                self.carrier.close()
            if self.behind is not None:
                self.behind.close()


def _onward_error(hop: HostTarget, target: HostTarget, error: Exception) -> HostError:
    place = f"{target.config.hostname} port {target.config.port}"
    text = str(error) or type(error).__name__
    limit = "Timeout" in text
    return ConnectError(
        f"the jump host {hop.alias} cannot reach {target.alias} ({place}): "
        + (f"no answer within {target.connect_limit:.0f} s" if limit else text),
        host=target.alias,
        code="timeout" if limit else "proxy",
        remedy=f"Check it from there: `ssh {hop.alias}`, then connect to {place}; forwarding may also be forbidden.",
    )
