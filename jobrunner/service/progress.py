"""Progress of long steps (uploads, pulls): a protocol, and the implementation that shows nothing.

The service reports; whoever calls it decides what is shown. An implementation must be safe to call from several
threads at once, because hosts are worked on in parallel.
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Where a service function tells how far it is."""

    def start(self, task: str, total: int | None = None, unit: str = "bytes") -> int:
        """A step begins: `task` in a few words, `total` in `unit` if known. Returns a number for the other calls."""

    def advance(self, number: int, amount: int) -> None:
        """`amount` more units are done."""

    def finish(self, number: int) -> None:
        """The step ended, well or not."""

    def note(self, text: str) -> None:
        """A sentence that a waiting person wants to see now (a retry, a slow host)."""


class NoProgress:
    """Shows nothing."""

    def start(self, task: str, total: int | None = None, unit: str = "bytes") -> int:
        """See `Progress.start`."""
        return 0

    def advance(self, number: int, amount: int) -> None:
        """See `Progress.advance`."""

    def finish(self, number: int) -> None:
        """See `Progress.finish`."""

    def note(self, text: str) -> None:
        """See `Progress.note`."""
