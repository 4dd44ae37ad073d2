"""The command plot: what jobs told in numbers, drawn in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from jobrunner.cli.command import command
from jobrunner.cli.options import complete_jobs
from jobrunner.cli.output import Output
from jobrunner.cli.words import visible

if TYPE_CHECKING:
    from jobrunner.cli.chart import Line, Look, Row
    from jobrunner.service.metrics import Curve


def plot(
    out: Output,
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="ID:METRIC",
            help="A job and one of its metrics; without a metric all that it told. Several are drawn together.",
            show_default=False,
            autocompletion=complete_jobs,
        ),
    ],
    log: Annotated[bool, typer.Option("--log", help="Values by their logarithms.")] = False,
    height: Annotated[int, typer.Option("--height", metavar="N", min=3, max=200, help="Rows of a chart.")] = 15,
) -> int:
    """Draw what jobs told in numbers, over their steps.

    Curves of the same metric share a chart. --json gives the values.
    """
    from jobrunner.service import metrics as service

    with out.session() as session:
        result = service.curves(session, words)
        data = {"curves": [curve.as_json() for curve in result.curves]}
        return out.result(data, result, lambda: _draw(out, result.curves, log, height))


def _draw(out: Output, curves: Sequence[Curve], log: bool, height: int) -> None:
    from jobrunner.cli.chart import chart

    look = look_of(out, height)
    names = list(dict.fromkeys(curve.metric for curve in curves))
    for place, name in enumerate(names):
        if place:
            out.line()
        lines = [_line(curve) for curve in curves if curve.metric == name]
        write_rows(out, chart(f"{visible(name)} over steps", lines, look, log=log))


def _line(curve: Curve) -> Line:
    from jobrunner.cli.chart import Line

    points = [
        (float(place) if sample.step is None else sample.step, sample.value)
        for place, sample in enumerate(curve.points, 1)
    ]
    return Line(f"{visible(curve.row.name)} {curve.row.id}", points)


def look_of(out: Output, height: int) -> Look:
    """What standard output can show, with charts of so many rows."""
    from jobrunner.cli.chart import Look

    encoding = (getattr(sys.stdout, "encoding", None) or "ascii").lower().replace("-", "")
    color = out.terminal and out.console().color_system is not None
    columns = out.console().width if out.terminal else 80
    return Look(columns=columns, rows=height, color=color, braille=encoding.startswith("utf"))


def write_rows(out: Output, rows: Sequence[Row]) -> None:
    """Write the rows of a chart, coloured on a terminal."""
    from jobrunner.cli.chart import plain

    if not out.terminal:
        for line in plain(rows):
            out.line(line)
        return
    from rich.text import Text

    for row in rows:
        text = Text(no_wrap=True)
        for piece in row:
            text.append(piece.text, piece.style)
        out.console().print(text, soft_wrap=True)


def register(app: typer.Typer) -> None:
    """Register this module's commands."""
    command(app, "plot", example="jobrunner plot k3f9:val_loss p7q2:val_loss")(plot)
