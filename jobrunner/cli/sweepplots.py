"""`sweep plot`: a sweep's report, drawn in the terminal, as one HTML file, or as data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from jobrunner.cli import output
from jobrunner.cli.options import Offline, SweepId
from jobrunner.cli.output import Output
from jobrunner.cli.plots import look_of, write_rows
from jobrunner.cli.sweepviews import number, sweep_line
from jobrunner.cli.words import shorten, size, visible
from jobrunner.core.errors import UsageError

if TYPE_CHECKING:
    from jobrunner.cli.chart import Look, Row
    from jobrunner.service.sweeps.report import Parameter, SweepReport
    from jobrunner.service.sweeps.view import TrialView

MOST_CHARTS = 12
"""So many parameters are drawn in the terminal; the HTML page has them all."""
WIDE = 30.0
"""Values that spread over more than this factor are drawn by their logarithms."""


def plot(
    out: Output,
    word: SweepId,
    offline: Offline = False,
    html: Annotated[bool, typer.Option("--html", help="Write one HTML file, to be opened in a browser.")] = False,
    to: Annotated[
        Path | None,
        typer.Option(
            "--to", metavar="FILE", help="What --html writes. Default: NAME-ID.html here.", show_default=False
        ),
    ] = None,
    height: Annotated[int, typer.Option("--height", metavar="N", min=3, max=200, help="Rows of a chart.")] = 8,
) -> int:
    """Draw how a sweep went: the best so far, and the objective over each parameter.

    --html writes a page with learning curves, parallel coordinates and the
    importance of parameters as well. --json gives the data of all of it.
    """
    from jobrunner.service.sweeps import report as service

    if to is not None and not html:
        raise UsageError("--to says where --html writes, and --html is missing", remedy="add --html")
    with out.session() as session:
        result = service.report(session, word, offline=offline, whole=html or out.json)
        data = result.as_json() if out.json else {}
        if html:
            from jobrunner.service.sweeps.html import write

            file = (to if to is not None else Path(file_name(result))).absolute()
            written = write(result, file, output.now())
            data["html"] = str(file)
            out.say(f"the report ({size(written)}) is in {file}")
        return out.result(data, result, lambda: None if html else _draw(out, result, height))


def file_name(result: SweepReport) -> str:
    """What the page is called by default: of the sweep's name what every file system takes."""
    name = re.sub(r"[^\w.-]+", "_", result.view.sweep.name, flags=re.ASCII).strip("._-")[:80] or "sweep"
    return f"{name}-{result.view.sweep.id}.html"


def _draw(out: Output, result: SweepReport, height: int) -> None:
    view = result.view
    out.line(visible(sweep_line(view.sweep, view.tally)))
    if result.metric is None:
        out.say("the sweep has no objective, so there is nothing to draw; `jobrunner sweep show` lists its trials")
        return
    look = look_of(out, height)
    if not result.history:
        out.say(f"no trial that ran to its end has told {visible(result.metric)} yet")
        return
    out.line()
    write_rows(out, history_rows(result, look))
    for parameter in result.parameters[:MOST_CHARTS]:
        out.line()
        write_rows(out, slice_rows(result, parameter, look))
    left = len(result.parameters) - MOST_CHARTS
    if left > 0:
        out.say(f"{left} more parameters are not drawn here; --html draws all")


def history_rows(result: SweepReport, look: Look) -> list[Row]:
    """The best so far as a line of blocks, and where it began and ended. Pure."""
    from jobrunner.cli.chart import Piece, sparkline

    steps = result.history
    bests = [math.nan if step.best is None else step.best for step in steps]
    finite = [best for best in bests if math.isfinite(best)]
    log = bool(finite) and min(finite) > 0 and max(finite) / min(finite) > WIDE
    drawn = [math.log10(best) if log and math.isfinite(best) and best > 0 else best for best in bests]
    known = [best for best in bests if not math.isnan(best)]
    title = f"{visible(result.metric)}: best so far, over {len(steps)} trials" + (" (logarithm)" if log else "")
    rows: list[Row] = [[Piece(shorten(title, look.columns), "bold")]]
    if not known:
        return [*rows, [Piece("  every one told nan")]]
    line = sparkline(drawn, look.columns - 2, ascii_only=not look.braille)
    at = next(step.number for step in steps if step.best == known[-1])
    arrow = "→" if look.braille else "->"
    ends = f"  {number(known[0])} {arrow} {number(known[-1])} (trial {at})"
    return [*rows, [Piece("  "), Piece(line, "cyan" if look.color else "")], [Piece(ends)]]


def slice_rows(result: SweepReport, parameter: Parameter, look: Look) -> list[Row]:
    """The objective over one parameter: a dot for each trial, the best one marked. Pure."""
    from jobrunner.cli.chart import Axis, scatter

    able = [item for item in result.view.trials if item.rank is not None and item.objective]
    values = [item.objective.value for item in able if item.objective and math.isfinite(item.objective.value)]
    log = bool(values) and min(values) > 0 and max(values) / min(values) > WIDE
    points = [(x, item.objective.value) for item in able if item.objective for x in _places(parameter, item)]
    words = [visible(text) for text in parameter.values] if parameter.kind == "category" else []
    name = visible(parameter.name)
    across = Axis(log=parameter.scale == "log", words=tuple(words))
    title = f"{visible(result.metric)} over {name}"
    spread = [text for text, yes in ((name, across.log), (visible(result.metric), log)) if yes]
    title += f" (logarithms of {' and '.join(spread)})" if spread else ""
    return scatter(title, points, look, across=across, log=log)


def _places(parameter: Parameter, item: TrialView) -> Iterator[float]:
    """Where a trial lies on a parameter's axis; nothing if it has no value there."""
    text = str(item.trial.parameters.get(parameter.name))
    if parameter.kind == "number":
        try:
            yield float(text)
        except ValueError:
            return
    elif text in parameter.values:
        yield float(parameter.values.index(text))
