"""`tick`, `serve`, and the `promote` group: what goes on without anybody, and the models that come of it."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobrunner.cli import output
from jobrunner.cli.command import command
from jobrunner.cli.output import Output
from jobrunner.cli.scheduleviews import promotion_table, tick_lines
from jobrunner.cli.words import duration, local
from jobrunner.core.errors import UsageError

if TYPE_CHECKING:
    from types import FrameType

    from jobrunner.service.tick import TickResult


def tick(out: Output) -> int:
    """Do everything that is due, once.

    Schedules, sweeps that ask for further trials, trials that can move to idle hosts, checkpoints to fetch, models to
    promote. Safe to be run every minute, and twice at once.
    """
    from jobrunner.service import tick as service

    with out.session() as session:
        result = service.tick(session)
        return out.result(_data(result), result, lambda: _text(out, result))


def _data(result: TickResult) -> dict[str, Any]:
    plain = {key: value for key, value in asdict(result).items() if key not in _NOT_SHOWN}
    return {**plain, "ended": [row.as_json() for row in result.ended]}


_NOT_SHOWN = ("errors", "warnings", "hosts_asked", "hosts_answered", "ended")


def _text(out: Output, result: TickResult) -> None:
    if result.busy and out.terminal:
        out.say("another tick is at work; nothing was done by this one")
    for line in tick_lines(result):
        out.line(line)


def serve(
    out: Output,
    every: Annotated[
        str | None,
        typer.Option("--every", metavar="T", help="At most this long between two looks.", show_default=False),
    ] = None,
) -> int:
    """Do what is due whenever something is, until Ctrl-C or TERM.

    It wakes at the next due time; while jobs live it looks at them every 15 seconds. Several at once are safe.
    """
    from jobrunner.service import serve as service

    longest = duration(every) if every is not None else None
    if longest is not None and longest < 1:
        raise UsageError(f"--every {every}: that would be without a pause", remedy="write 1s or more")
    with _ended_by_term():
        try:
            for result in service.serve(out.session, every=longest, sleep=time.sleep):
                _told(out, result)
        except _Term:
            return 0
    return 0


def _told(out: Output, result: TickResult) -> None:
    """One tick's doings with the time before them, or one line of JSON; nothing if it did nothing."""
    if not result.did_something:
        return
    if out.json:
        out.document(_data(result), result.errors)
        return
    for line in tick_lines(result):
        out.write(f"{local(result.at)}  {line}\n", flush=True)
    for error in result.errors:
        out.error(error)


class _Term(BaseException):
    """TERM has come: the way to end a service."""


@contextmanager
def _ended_by_term() -> Iterator[None]:
    """TERM inside leaves the block at once, as Ctrl-C does; what is being sent stops and can be gone on with."""

    def leave(number: int, frame: FrameType | None) -> None:
        raise _Term

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


Target = Annotated[
    str,
    typer.Argument(metavar="TARGET", help="A `promote.to`, or a schedule's or job's name.", show_default=False),
]


def promotions(
    out: Output,
    target: Annotated[
        str | None,
        typer.Argument(
            metavar="TARGET", help="Only of this `promote.to`, schedule or job; default: all.", show_default=False
        ),
    ] = None,
) -> int:
    """List decisions about models, the newest first. A star marks the one that is kept now."""
    from jobrunner.service import promote as service

    with out.session() as session:
        result = service.ls(session, target)

        def text() -> None:
            if result.promotions:
                out.table(promotion_table(result.promotions, output.now()))
            else:
                out.say("no model was promoted so far; a spec with `promote` asks for it")

        return out.result({"promotions": result.promotions}, result, text)


def rollback(
    out: Output,
    target: Target,
    version: Annotated[
        str | None,
        typer.Option("--to", metavar="VERSION|JOB", help="To this one; default: the one before.", show_default=False),
    ] = None,
) -> int:
    """Make the model current again that was kept before."""
    from jobrunner.service import promote as service

    with out.session() as session:
        result = service.rollback(session, target, version)

        def text() -> None:
            out.table(promotion_table(result.promotions, output.now()))

        return out.result({"promotions": result.promotions}, result, text)


def register(app: typer.Typer) -> None:
    """Register this module's commands."""
    command(app, "tick", example="jobrunner tick")(tick)
    command(app, "serve", example="jobrunner serve --every 1m")(serve)
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Models that were kept because they were better.\n\n\b\nExample:\n  jobrunner promote ls",
    )
    command(group, "ls", group="promote", example="jobrunner promote ls models/digits")(promotions)
    command(group, "rollback", group="promote", example="jobrunner promote rollback models/digits")(rollback)
    app.add_typer(group, name="promote")
