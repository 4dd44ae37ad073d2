"""`ls --watch`: redrawn on a terminal; elsewhere printed anew, or as a line of JSON, whenever something changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from jobrunner.cli import output
from jobrunner.cli.errors import as_text
from jobrunner.cli.output import Output
from jobrunner.cli.views import job_table

if TYPE_CHECKING:
    from jobrunner.service.results import Listing


def watch_jobs(out: Output, look: Callable[[], Listing], *, every: float, sleep: Callable[[float], None]) -> int:
    """Look again and again, `every` so many seconds, until interrupted. Never returns by itself."""
    if out.terminal and not out.json:
        return _redraw(out, look, every, sleep)
    before: object = None
    while True:
        result = look()
        state = (result.rows, result.notes, [error.message for error in result.errors])
        if state != before:
            _print_once(out, result)
            before = state
        sleep(every)


def _print_once(out: Output, result: Listing) -> None:
    if out.json:
        out.document({"jobs": [row.as_json() for row in result.rows]}, result.errors)
        return
    out.write(job_table(result.rows, output.now(), result.notes).plain() + "\n", flush=True)
    for error in result.errors:
        out.error(error)


def _redraw(out: Output, look: Callable[[], Listing], every: float, sleep: Callable[[float], None]) -> int:
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    with Live(console=out.console(), auto_refresh=False, vertical_overflow="crop") as live:
        while True:
            result = look()
            table = job_table(result.rows, output.now(), result.notes).fitted(out.console().width)
            notes = [Text(as_text(error), style="red") for error in result.errors]
            clock = Text(output.now().astimezone().strftime("%H:%M:%S  (Ctrl-C ends this)"), style="bright_black")
            with output.writing():
                live.update(Group(table, *notes, clock), refresh=True)
            sleep(every)
