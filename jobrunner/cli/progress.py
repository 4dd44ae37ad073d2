"""Progress on a terminal's standard error: bars, made only when something long begins."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from jobrunner.cli.words import size, visible


class TerminalProgress:
    """`service.progress.Progress` for people. With `bars` off it only passes notes on.

    `say` writes a sentence to standard error. Calls may come from several threads.
    """

    def __init__(self, *, bars: bool, say: Callable[[str], None]) -> None:
        self._bars = bars
        self._say = say
        self._lock = threading.RLock()
        self._shown: Any = None
        self._bar_of: dict[int, Any] = {}
        self._last = 0

    def start(self, task: str, total: int | None = None, unit: str = "bytes") -> int:
        """See `Progress.start`."""
        with self._lock:
            self._last += 1
            if self._bars:
                if self._shown is None:
                    self._shown = _make_bars(unit)
                    self._shown.start()
                self._bar_of[self._last] = self._shown.add_task(visible(task), total=total)
            return self._last

    def advance(self, number: int, amount: int) -> None:
        """See `Progress.advance`."""
        with self._lock:
            if number in self._bar_of:
                self._shown.advance(self._bar_of[number], amount)

    def finish(self, number: int) -> None:
        """See `Progress.finish`. The last one takes the bars away."""
        with self._lock:
            if number in self._bar_of:
                self._shown.remove_task(self._bar_of.pop(number))
                if not self._bar_of:
                    self.close()

    def note(self, text: str) -> None:
        """See `Progress.note`."""
        with self._lock:
            if self._shown is not None:
                self._shown.console.print(visible(text), markup=False, highlight=False)
            else:
                self._say(text)

    def pause(self) -> None:
        """Take the bars away because something else is about to be written. Later steps bring them back."""
        self.close()

    def close(self) -> None:
        """Take the bars away."""
        with self._lock:
            shown, self._shown = self._shown, None
            self._bar_of.clear()
            if shown is not None:
                shown.stop()


def _make_bars(unit: str) -> Any:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        Task,
        TextColumn,
        TimeRemainingColumn,
    )
    from rich.text import Text

    class Amount(ProgressColumn):
        """Bytes in the units of all tables."""

        def render(self, task: Task) -> Text:
            return Text(f"{size(task.completed)} of {size(task.total)}", style="progress.download")

    amount = Amount() if unit == "bytes" else MofNCompleteColumn()
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        amount,
        TimeRemainingColumn(),
        console=Console(stderr=True, markup=False, highlight=False),
        transient=True,
    )
