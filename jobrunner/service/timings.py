"""Where the time of a command goes: named phases, printed by `--timings`."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class Timings:
    """Sums the seconds spent in named phases. Phases of several threads may overlap."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._lock = threading.Lock()

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the time of the block under `name`."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.add(name, time.perf_counter() - start)

    def add(self, name: str, seconds: float) -> None:
        """Add seconds to a phase."""
        with self._lock:
            self._seconds[name] = self._seconds.get(name, 0.0) + seconds

    def as_dict(self) -> dict[str, float]:
        """Seconds by phase, in the order in which the phases first ended."""
        with self._lock:
            return dict(self._seconds)
