"""What a submit did, or would do, as text and JSON."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from jobrunner.cli import output
from jobrunner.cli.output import Output
from jobrunner.cli.views import job_table, plural, upload_words, yaml_lines
from jobrunner.cli.words import numbers, or_dash, size, visible

if TYPE_CHECKING:
    from jobrunner.ledger.sweeps import SweepRow
    from jobrunner.service.results import SubmitResult


def print_submitted(out: Output, result: SubmitResult) -> int:
    """What a submit (or a retry) did. Returns the exit code."""
    return out.result(submitted_json(result), result, lambda: _submitted_text(out, result))


def submitted_json(result: SubmitResult) -> dict[str, Any]:
    """The `data` of a submit (or a retry)."""
    data: dict[str, Any] = {"jobs": [row.as_json() for row in result.rows]}
    if result.plans:
        data["plans"] = result.plans
    if result.report:
        data["upload"] = result.report
    if result.resumed:
        data["resumed"] = result.resumed
    if result.resume_from:
        data["resume_from"] = result.resume_from
    if result.sweeps:
        data["sweep"], *more = [_sweep_json(row, result) for row in result.sweeps]
        data.update({"sweeps": [data["sweep"], *more]} if more else {})
    return data


def _submitted_text(out: Output, result: SubmitResult) -> None:
    for plan in result.plans:
        _plan_text(out, plan)
    about_upload(out, result)
    rows = result.rows
    if result.sweeps:
        from jobrunner.cli.sweepviews import SHOWN

        for sweep in result.sweeps:
            trials = [row for row in rows if row.sweep == sweep.id]
            where = ", ".join(f"{host} {count}" for host, count in Counter(row.host for row in trials).items())
            out.line(
                f"sweep {sweep.id} ({sweep.name}): {plural(len(trials), 'trial')} of {sweep.planned} sent ({where})"
            )
            if len(trials) > SHOWN:
                rows = [row for row in rows if row.sweep != sweep.id]
                out.say(f"`jobrunner sweep show {sweep.id}` shows them all")
    if rows:
        out.table(job_table(rows, output.now(), result.notes))


def _sweep_json(sweep: SweepRow, result: SubmitResult) -> dict[str, Any]:
    """`data.sweep` of a submit."""
    from jobrunner.ledger.sweeps import Tally
    from jobrunner.service.sweeps.view import sweep_json

    return sweep_json(sweep, Tally(Counter(row.state.value for row in result.rows if row.sweep == sweep.id)))


def about_upload(out: Output, result: SubmitResult) -> None:
    """What the sending did, to standard error."""
    if upload_words(result.report):
        out.say(upload_words(result.report))
    for word in result.resumed:
        out.say(f"{word}: went on with an earlier submit whose answer never came")
    if result.resume_from:
        out.say(f"goes on from checkpoint {result.resume_from}")


def _plan_text(out: Output, plan: dict[str, Any]) -> None:
    """One job of a dry run."""
    cards = plan.get("cards")
    cards_words = numbers(cards) if isinstance(cards, list) else or_dash(cards)
    out.line(f"{visible(plan.get('name', '?'))}: would go to {or_dash(plan.get('host'))}")
    pairs = [
        ("spec", or_dash(plan.get("file"))),
        ("device", or_dash(plan.get("device"))),
        ("cards", cards_words),
        ("command", or_dash(plan.get("command"))),
        (
            "code",
            f"{plural(plan['files'], 'file')}, {size(plan.get('bytes'))}" if plan.get("files") is not None else "-",
        ),
        ("why", or_dash(plan.get("why"))),
    ]
    for name, value in pairs:
        if value != "-":
            out.line(f"  {name:<8} {value}")
    if plan.get("sweep"):
        from jobrunner.cli.sweepviews import plan_lines

        for line in plan_lines(plan["sweep"]):
            out.line(f"  {visible(line)}")
    if plan.get("spec"):
        out.line("  as resolved:")
        for line in yaml_lines(plan["spec"], "    "):
            out.line(visible(line))
