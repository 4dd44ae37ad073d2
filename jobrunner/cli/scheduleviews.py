"""How schedules, ticks and promoted models look as text. Values from values; nothing here writes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

from jobrunner.cli.tables import Cell, Column, Table
from jobrunner.cli.words import ago, local, or_dash, span, visible, with_local_times
from jobrunner.core.duetimes import LATE_S

if TYPE_CHECKING:
    from jobrunner.service.tick import TickResult

Json = Mapping[str, Any]
_STATES = {"active": "green", "paused": "yellow", "removed": "bright_black"}
_OUTCOMES = {
    "fired": "green",
    "waiting": "cyan",
    "firing": "cyan",
    "skipped": "bright_black",
    "failed": "bold red",
    "promoted": "green",
    "kept": "bright_black",
    "rolled_back": "yellow",
}


def schedule_table(schedules: Iterable[Json], now: datetime) -> Table:
    """Schedules as `schedule ls` shows them."""
    table = Table(
        [
            Column("ID"),
            Column("NAME", shrinks=True),
            Column("STATE"),
            Column("CRON", shrinks=True),
            Column("TIME ZONE", leaves=2),
            Column("NEXT"),
            Column("LAST", leaves=1),
            Column("LAST JOB", leaves=3),
        ]
    )
    for item in schedules:
        state = f"{item['state']}, {item['waiting']} waiting" if item["waiting"] else str(item["state"])
        table.add(
            item["id"],
            item["name"],
            Cell(state, _STATES.get(str(item["state"]), "")),
            item["cron"],
            item["timezone"],
            ago(item["next"], now),
            ago(item["last"], now),
            or_dash(item["last_job"]),
        )
    return table


def next_lines(times: Iterable[Json]) -> list[str]:
    """Times to come, one a line: in the schedule's zone and in this machine's."""
    lines = []
    for item in times:
        line = f"{item['local']}   here {local(item['due'])}"
        if item["starts"] != item["due"]:
            line += f", starts {local(item['starts'])[-8:]}"
        lines.append(line)
    return lines


def history_table(runs: Iterable[Json]) -> Table:
    """Due times as `schedule history` shows them."""
    table = Table(
        [
            Column("DUE"),
            Column("OUTCOME"),
            Column("JOB"),
            Column("STATE", leaves=2),
            Column("PROMOTED", leaves=1),
            Column("WHY", shrinks=True),
        ]
    )
    for run in runs:
        outcome = str(run["outcome"])
        notes = [text for text in (run["why"], run["promotion"]) if text]
        if (run["late_s"] or 0) > LATE_S:
            notes.insert(0, f"{span(run['late_s'])} late")
        promoted = {True: "yes", False: "no", None: "-"}[run["promoted"]]
        table.add(
            local(run["due"]) + (" (by hand)" if run["manual"] else ""),
            Cell(outcome, _OUTCOMES.get(outcome, "")),
            run["job"] or (f"sweep {run['sweep']}" if run["sweep"] else "-"),
            or_dash(run["state"]),
            promoted,
            with_local_times("; ".join(notes)),
        )
    return table


def promotion_table(promotions: Iterable[Json], now: datetime) -> Table:
    """Decisions about models as `promote ls` shows them."""
    table = Table(
        [
            Column(" "),
            Column("TARGET", shrinks=True),
            Column("DECISION"),
            Column("METRIC"),
            Column("JOB"),
            Column("HOST", leaves=2),
            Column("WHEN", leaves=1),
            Column("VERSION", leaves=3),
            Column("WHY", shrinks=True),
        ]
    )
    for item in promotions:
        value = "-" if item["value"] is None else f"{item['value']:.6g}"
        decision = str(item["decision"])
        table.add(
            "*" if item["current"] else " ",
            item["target"],
            Cell(decision.replace("_", " "), _OUTCOMES.get(decision, "bold red")),
            f"{item['metric']} {value}",
            or_dash(item["job"]),
            or_dash(item["host"]),
            ago(item["at"], now),
            or_dash(item["version"]),
            item["why"] or "",
        )
    return table


def tick_lines(result: TickResult) -> list[str]:
    """What a tick did, a line for each thing; none if it did nothing."""
    lines = []
    for kind, verb in (("fired", "fired"), ("skipped", "skipped"), ("failed", "could not be fired")):
        for run in result.runs.get(kind, ()):
            what = f"job {run['job']}" if run["job"] else f"sweep {run['sweep']}" if run["sweep"] else ""
            told = ", ".join(part for part in (what, run["why"] or "") if part)
            lines.append(f"{run['name']}, due {run['due']}: {verb}" + (f" ({told})" if told else ""))
    lines += [f"{row.name} ({row.id}) is {row.state.value}" for row in result.ended]
    lines += result.sweeps
    lines += [f"{item['job']} moved from {item['from']} to {item['to']}" for item in result.moved]
    lines += [f"{item['job']}: checkpoints fetched to {item['to']}" for item in result.pulled]
    for item in result.promotions:
        verb = "promoted to" if item["decision"] == "promoted" else "not promoted to"
        lines.append(f"{item['job']} {verb} {item['target']}: {item['why']}")
    return [visible(with_local_times(line)) for line in lines]
