"""How sweeps look as text, and as CSV. Each function makes values from values; nothing here writes."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jobrunner.cli.tables import Cell, Column, Table
from jobrunner.cli.views import STATE_STYLES, how, row_note
from jobrunner.cli.words import ago, lasted, or_dash
from jobrunner.core.amounts import counted

if TYPE_CHECKING:
    from jobrunner.ledger.sweeps import SweepRow, Tally
    from jobrunner.service.sweeps.view import SweepView, TrialView

SHOWN = 20
"""So many points, or trials that were sent, are shown one by one; JSON has them all."""

_ORDER = ("COMPLETED", "RUNNING", "QUEUED", "STAGING", "UNSENT", "FAILED", "TIMEOUT", "LOST", "CANCELLED")
_STYLES = {state.value: style for state, style in STATE_STYLES.items()}
_SWEEP_STYLES = {"running": "bold blue", "done": "green", "stopped": "bright_black", "staging": "cyan"}


def number(value: float | None) -> str:
    """A value of a metric: `0.0431`, `nan`, `1.2e-05`; `-` for none."""
    if value is None:
        return "-"
    return f"{value:.6g}" if math.isfinite(value) else str(value)


def progress(tally: Tally, planned: int | None) -> str:
    """How far a sweep is: `12 of 40 completed, 3 running, 1 failed`."""
    total = max(planned or 0, tally.made)
    parts = [f"{tally.completed} of {total} completed"]
    for state in _ORDER[1:]:
        count = tally.states.get(state, 0)
        if state == "CANCELLED":
            count -= min(count, tally.stopped + tally.paused)
        if count:
            parts.append(f"{count} {'not sent' if state == 'UNSENT' else state.lower()}")
    if tally.stopped:
        parts.append(f"{tally.stopped} of them stopped early")
    if tally.paused:
        parts.append(f"{tally.paused} paused")
    return ", ".join(parts)


def sweep_line(sweep: SweepRow, tally: Tally) -> str:
    """A sweep in one line."""
    return f"sweep {sweep.id} ({sweep.name}, {sweep.method}) {sweep.state}: {progress(tally, sweep.planned)}"


def sweep_table(sweeps: Sequence[tuple[SweepRow, Tally]], now: datetime) -> Table:
    """Sweeps as `sweep ls` shows them."""
    table = Table(
        [
            Column("ID"),
            Column("NAME", shrinks=True),
            Column("METHOD", leaves=3),
            Column("STATE"),
            Column("TRIALS", shrinks=True),
            Column("OBJECTIVE", leaves=2),
            Column("SUBMITTED", leaves=1),
            Column("NOTE", shrinks=True),
        ]
    )
    for row, tally in sweeps:
        table.add(
            row.id,
            row.name,
            row.method,
            Cell(row.state, _SWEEP_STYLES.get(row.state, "")),
            progress(tally, row.planned),
            or_dash(row.objective),
            ago(row.created_at, now),
            row.why or "",
        )
    return table


def trial_table(view: SweepView, now: datetime, limit: int | None = None) -> Table:
    """A sweep's trials by rank, with their parameters."""
    names = parameter_names(view)
    metric = view.sweep.objective.split()[0] if view.sweep.objective else ""
    notes = [row_note(item.row, "", now) if item.row else "" for item in view.trials[:limit]]
    table = Table(
        [
            *([Column("RANK", right=True)] if metric else []),
            Column("TRIAL", right=True),
            *(Column(name, shrinks=True) for name in names),
            *([Column(metric.upper(), right=True), Column("STEP", right=True, leaves=4)] if metric else []),
            Column("STATE"),
            Column("HOST", leaves=3),
            Column("RAN", leaves=2),
            Column("JOB", leaves=1),
            *([Column("NOTE", shrinks=True)] if any(notes) else []),
        ]
    )
    for item, note in zip(view.trials[:limit], notes, strict=True):
        row, found = item.row, item.objective
        table.add(
            *([or_dash(item.rank)] if metric else []),
            str(item.trial.number),
            *(item.trial.parameters.get(name, "-") for name in names),
            *([number(found.value if found else None), number(found.step if found else None)] if metric else []),
            state_cell(item),
            or_dash(row.host if row else None),
            lasted(row.started_at, row.ended_at, now) if row else "-",
            or_dash(item.trial.job),
            *([note] if any(notes) else []),
        )
    return table


def state_cell(item: TrialView) -> Cell:
    """A trial's state, with why it failed or that early stopping ended it."""
    if item.state == "UNSENT":
        return Cell("not sent", "cyan")
    if item.trial.status in ("stopped", "paused") and item.state == "CANCELLED":
        return Cell(f"{item.trial.status} early" if item.trial.status == "stopped" else "paused", "yellow")
    more = f" {how(item.row)}" if item.row and item.state in ("FAILED", "LOST") and how(item.row) else ""
    return Cell(item.state + more, _STYLES.get(item.state, ""))


def parameter_names(view: SweepView) -> list[str]:
    """The parameters of a sweep's trials, in the order of the spec."""
    return list(dict.fromkeys(name for item in view.trials for name in item.trial.parameters))


def as_csv(view: SweepView) -> str:
    """A sweep's trials as CSV: one line each, parameters as `param.NAME`."""
    names = parameter_names(view)
    keys = [
        "rank", "number", "point", "objective", "step", "state", "status", "reason", "host", "job",
        "started_at", "ended_at",
    ]  # fmt: skip
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, *(f"param.{name}" for name in names)])
    for item in view.trials:
        plain: dict[str, Any] = item.as_json()
        values = ["" if plain[key] is None else plain[key] for key in keys]
        writer.writerow([*values, *(item.trial.parameters.get(name, "") for name in names)])
    return text.getvalue()


def plan_lines(plan: dict[str, Any]) -> list[str]:
    """What a dry run says of a sweep's points."""
    hosts = ", ".join(f"{name} {count}" for name, count in plan["hosts"].items())
    lines = [f"{plan['method']}: {counted(plan['trials'] or 0, 'trial')} ({hosts})"]
    if not plan["points"]:
        return [*lines, "each point follows from the results before it"]
    lines += ["  ".join(f"{name}={text}" for name, text in point.items()) for point in plan["points"][:SHOWN]]
    left = len(plan["points"]) - SHOWN
    return [*lines, f"… and {left} more (--json has them all)"] if left > 0 else lines
