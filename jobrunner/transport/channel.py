"""What the two transports have in common: a connection that gives channels with a command of the host at their end."""

from __future__ import annotations

from typing import Any, Protocol


class ChannelRefused(Exception):
    """The host gives no further channel on this connection; the text is its reason."""


class Connection(Protocol):
    """One open, logged-in connection. `kind` is `fabric` or `openssh`.

    `spare` is how many connections to the same host were full before this one; `shared` says that other commands
    use it too, so that closing it here ends only what was opened here. `took`: seconds that opening it took, by phase.
    """

    kind: str
    shared: bool
    spare: int
    took: dict[str, float]

    @property
    def round_trip(self) -> float:
        """About how long a packet takes there and back, in seconds; 0 if it is not known."""

    @property
    def banner(self) -> str:
        """What the server says before a login."""

    @property
    def is_connected(self) -> bool:
        """False once it is known to be dead."""

    @property
    def transport(self) -> Any:
        """What ended it, where it has ended: `farewell`, `fell_silent`, `is_active()`."""

    def start_channel(self, command: str, limit: float, round_trip: float) -> Any:
        """A channel (in the shape of paramiko's) on which a command has been started; its answer is not waited for.

        Raises ChannelRefused where the host gives none, TimeoutError after `limit` seconds.
        """

    def run_on_terminal(self, argv: list[str]) -> int:
        """Run a program of the host on this terminal until it ends; its exit code."""

    def close(self) -> None:
        """End it, as far as it is ours."""
