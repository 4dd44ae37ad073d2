"""Commands that look into one job: show, logs, why, explain."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

from jobrunner.cli import output
from jobrunner.cli.command import command
from jobrunner.cli.jobs import bring_home
from jobrunner.cli.language import locale_language
from jobrunner.cli.options import Id
from jobrunner.cli.output import Output
from jobrunner.cli.views import (
    attempts_table,
    checkpoint_table,
    facts,
    findings_lines,
    metrics_table,
    one_line,
    row_note,
    state_cell,
    timeline,
    yaml_lines,
)
from jobrunner.cli.words import ago, lasted, local, moment, numbers, or_dash, visible, visible_lines, with_local_times
from jobrunner.core.errors import UsageError

if TYPE_CHECKING:
    from jobrunner.cli.tables import Table
    from jobrunner.core.jobs import JobRow
    from jobrunner.service.results import Findings, JobDetails


def show(out: Output, word: Id) -> int:
    """Tell everything about one job.

    Its spec, attempts, timeline, cards and checkpoints, and the evidence for its state.
    """
    from jobrunner.service import jobs as service

    with out.session() as session:
        result = service.show(session, word)
        job = {
            **result.row.as_json(),
            "spec": result.spec,
            "events": result.events,
            "attempts": result.attempts,
            "checkpoints": result.checkpoints,
            "metrics": result.metrics,
            "evidence": result.evidence,
        }
        return out.result({"job": job}, result, lambda: _details_text(out, result))


def _details_text(out: Output, result: JobDetails) -> None:
    row = result.row
    cell = state_cell(row)
    out.styled(f"{visible(row.name)}  {row.id}  {cell.text}", cell.style)
    for line in facts(_row_facts(row, result.evidence)):
        out.line(line)
    _section(out, "attempts", attempts_table(result.attempts, output.now()) if result.attempts else None)
    _lines(out, "timeline", timeline(result.events))
    _section(out, "metrics", metrics_table(result.metrics) if result.metrics else None)
    _section(out, "checkpoints", checkpoint_table(result.checkpoints, output.now()) if result.checkpoints else None)
    _lines(out, "spec", [visible(line) for line in yaml_lines(result.spec, "  ")])


def _row_facts(row: JobRow, evidence: str) -> list[tuple[str, str]]:
    now = output.now()

    def when(text: str | None) -> str:
        return f"{local(text)} ({ago(text, now)})" if text else "-"

    cards = f" card{'s' * (len(row.cards) > 1)} {numbers(row.cards)}" if row.cards else ""
    where = f"{row.host} ({row.device or '?'}{cards})" if row.host else ""
    return [
        ("host", where),
        ("submitted", when(row.submitted_at)),
        ("started", when(row.started_at)),
        ("ended", when(row.ended_at)),
        ("ran", lasted(row.started_at, row.ended_at, now)),
        ("last seen", when(row.last_seen)),
        ("note", row_note(row, "", now)),
        ("retry of", or_dash(row.retry_of)),
        ("sweep", or_dash(row.sweep)),
        ("schedule", or_dash(row.schedule)),
        ("evidence", with_local_times(" / ".join(evidence.split("\n"))) if evidence else ""),
    ]


def _section(out: Output, title: str, table: Table | None) -> None:
    if table is not None:
        out.line()
        out.styled(title, "bold")
        out.table(table)


def _lines(out: Output, title: str, lines: list[str]) -> None:
    if lines:
        out.line()
        out.styled(title, "bold")
        for line in lines:
            out.line(line)


def logs(
    out: Output,
    word: Id,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job is final.")] = False,
    lines: Annotated[
        int | None, typer.Option("-n", "--lines", metavar="N", min=0, help="Only the last N lines.", show_default=False)
    ] = None,
    attempt: Annotated[
        int | None,
        typer.Option("--attempt", metavar="K", min=1, help="That attempt's; default: the latest.", show_default=False),
    ] = None,
    raw: Annotated[bool, typer.Option("--raw", help="The file's exact bytes.")] = False,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="RE", help="Only lines in which this is found.", show_default=False),
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            "--since",
            metavar="T",
            help="Only from then on, by the times that its lines say: 10m, 2h, or 2026-12-01T09:30:00Z.",
            show_default=False,
        ),
    ] = None,
) -> int:
    """Show a job's output: that of its latest attempt.

    Following goes through retries and cut connections. Ctrl-C ends only the looking.
    """
    from jobrunner.cli.stream import collect_log, looking_only, show_log
    from jobrunner.service import logs as service

    _check_pattern(grep)
    begin = moment(since) if since is not None else None
    with out.session() as session, looking_only(word):
        pieces = service.follow(session, word, follow=follow, lines=lines, attempt=attempt, grep=grep, since=begin)
        if out.json and not follow:
            out.document(collect_log(pieces, raw=raw))
        else:
            row = show_log(out, pieces, raw=raw, follow=follow)
            if follow and row is not None:
                bring_home(out, session, [row])
    return 0


def _check_pattern(grep: str | None) -> None:
    try:
        re.compile(grep or "")
    except re.error as error:
        raise UsageError(
            f"--grep {visible(grep)!r} is not a regular expression: {error}",
            remedy="put a backslash before characters that shall stand for themselves",
        ) from error


def why(out: Output, word: Id) -> int:
    """Say why a job waits, and what would make it start."""
    from jobrunner.service import explain as service

    with out.session() as session:
        return _print_findings(out, service.why(session, word))


def explain(
    out: Output,
    word: Id,
    lang: Annotated[
        str | None, typer.Option("--lang", metavar="en|zh", help="Language; default: the locale's.", show_default=False)
    ] = None,
) -> int:
    """Say why a job failed, and what to do about it."""
    from jobrunner.service import explain as service

    if lang not in (None, "en", "zh"):
        raise UsageError(f"--lang {visible(lang)!r} is not known", remedy="use en or zh")
    with out.session() as session:
        return _print_findings(out, service.explain(session, word, lang or locale_language()))


def _print_findings(out: Output, result: Findings) -> int:
    def text() -> None:
        out.styled(one_line(result.row), state_cell(result.row).style)
        for line in findings_lines(result.findings) or ["nothing to tell"]:
            out.line(visible_lines(line))

    return out.result({"job": result.row.as_json(), "findings": result.findings}, result, text)


def register(app: typer.Typer) -> None:
    """Register this module's commands."""
    command(app, "show", example="jobrunner show k3f9")(show)
    command(app, "logs", example="jobrunner logs -f -n 50 resnet18")(logs)
    command(app, "why", example="jobrunner why k3f9")(why)
    command(app, "explain", example="jobrunner explain k3f9")(explain)
