"""The `schedule` group: specs that are submitted again and again, at their times."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobrunner.cli import output
from jobrunner.cli.command import command
from jobrunner.cli.options import TargetOption, complete_rows
from jobrunner.cli.output import Output
from jobrunner.cli.scheduleviews import history_table, next_lines, schedule_table
from jobrunner.cli.views import job_table
from jobrunner.cli.words import visible, visible_lines
from jobrunner.core.errors import UsageError

if TYPE_CHECKING:
    from jobrunner.service.crontab import InstallResult
    from jobrunner.service.schedules import ScheduleResult


def complete_schedules(incomplete: str) -> list[str]:
    """Ids and names of schedules that begin so."""
    return complete_rows(incomplete, lambda ledger: ledger.schedules.list())


_ID_HELP = "A schedule's id, a unique beginning of it, or its spec's name (the newest of that name)."
Id = Annotated[str, typer.Argument(metavar="ID", help=_ID_HELP, show_default=False, autocompletion=complete_schedules)]
Ids = Annotated[
    list[str], typer.Argument(metavar="ID", help=_ID_HELP, show_default=False, autocompletion=complete_schedules)
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


def add(
    out: Output,
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC", help="Specs with `schedule`.", show_default=False)],
    host: TargetOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the spec.", show_default=False),
    ] = None,
    large: Annotated[bool, typer.Option("--large", help="Even if the code is more than 1 GB or 50,000 files.")] = False,
) -> int:
    """Have specs submitted at the times that their `schedule` says.

    `tick` does it: see `jobrunner schedule install`, or keep `jobrunner serve` running.
    """
    from jobrunner.service import schedules as service

    with out.session() as session:
        result = service.add(session, specs, host=host, overrides=overrides or [], large=large)
        return _print(out, result)


def ls(
    out: Output,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also those that were removed.")] = False,
) -> int:
    """List schedules."""
    from jobrunner.service import schedules as service

    with out.session() as session:
        return _print(out, service.ls(session, removed=everything))


def _print(out: Output, result: ScheduleResult) -> int:
    def text() -> None:
        if result.schedules:
            out.table(schedule_table(result.schedules, output.now()))
        else:
            out.say("no schedules yet; `jobrunner schedule add` of a spec with `schedule` makes one")

    return out.result({"schedules": result.schedules}, result, text)


def next_(
    out: Output,
    word: Id,
    count: Annotated[int, typer.Option("-n", min=1, max=1000, help="So many times.")] = 5,
) -> int:
    """Show the next times of a schedule, in its zone and in this machine's."""
    from jobrunner.service import schedules as service

    with out.session() as session:
        result = service.next_times(session, word, count)
        data = {"schedule": result.schedule, "times": result.times}

        def text() -> None:
            for line in next_lines(result.times):
                out.line(line)
            if result.schedule["state"] != "active":
                out.say(f"it is {result.schedule['state']}: nothing is submitted at these times")

        return out.result(data, result, text)


def pause(out: Output, ids: Ids) -> int:
    """Submit nothing of these schedules until they are resumed."""
    from jobrunner.service import schedules as service

    with out.session() as session:
        return _print(out, service.pause(session, ids))


def resume(out: Output, ids: Ids) -> int:
    """Let paused schedules go on. What was due meanwhile is not made up for."""
    from jobrunner.service import schedules as service

    with out.session() as session:
        return _print(out, service.resume(session, ids))


def rm(out: Output, ids: Ids) -> int:
    """Remove schedules. Their jobs, and what `history` shows, stay."""
    from jobrunner.service import schedules as service

    with out.session() as session:
        return _print(out, service.remove(session, ids))


def run(out: Output, word: Id) -> int:
    """Submit a schedule's spec now, whatever its times."""
    from jobrunner.service import schedules as service

    with out.session() as session:
        result = service.run_now(session, word)
        rows = result.rows
        data = {"schedule": result.schedule, "run": result.run, "jobs": [row.as_json() for row in rows]}

        def text() -> None:
            if rows:
                out.table(job_table(rows, output.now()))
            elif result.run["sweep"]:
                out.line(f"sweep {result.run['sweep']}")

        return out.result(data, result, text)


def history(
    out: Output,
    word: Id,
    count: Annotated[int | None, typer.Option("-n", min=1, help="Only the newest so many.", show_default=False)] = None,
) -> int:
    """Show each due time: what came of it and why, its job, whether its model was promoted."""
    from jobrunner.service import schedules as service

    with out.session() as session:
        result = service.history(session, word, count)

        def text() -> None:
            if result.runs:
                out.table(history_table(result.runs))
            else:
                out.say("nothing was due so far")

        return out.result({"schedule": result.schedule, "runs": result.runs}, result, text)


def install(
    out: Output,
    yes: Yes = False,
    crontab: Annotated[bool, typer.Option("--crontab", help="A line of the crontab.")] = False,
    systemd: Annotated[bool, typer.Option("--systemd", help="A timer of systemd for this user.")] = False,
) -> int:
    """Have `tick` run every minute, by cron or systemd. Shows what it writes, and asks."""
    from jobrunner.service import crontab as service

    if crontab and systemd:
        raise UsageError("--crontab and --systemd exclude each other", remedy="leave one of the two out")
    with out.session() as session:
        planned = service.plan(session, "crontab" if crontab else "systemd" if systemd else None)
        if not out.json:
            _show(out, planned, "will be")
        _ask(yes, "Write this?", "install")
        result = service.install(session, planned)
        words = "installed: what is due is done every minute" if result.changed else "it was installed already"
        return _print_installed(out, result, words)


def uninstall(out: Output, yes: Yes = False) -> int:
    """Remove exactly what `install` wrote."""
    from jobrunner.service import crontab as service

    with out.session() as session:
        _ask(yes, "Remove what `jobrunner schedule install` wrote?", "uninstall")
        result = service.uninstall(session)
        words = "removed" if result.changed else "nothing was installed for this state folder"
        return _print_installed(out, result, words)


def _show(out: Output, planned: InstallResult, verb: str) -> None:
    """What is written where, on standard error: it is for whoever is asked."""
    if planned.line is not None:
        out.say(f"this line {verb} in your crontab:\n  {visible(planned.line)}")
    for path, content in planned.files.items():
        out.say(f"{visible(path)} {verb}:")
        out.say("".join(f"  {line}\n" for line in visible_lines(content).splitlines()).rstrip("\n"))


def _ask(yes: bool, question: str, verb: str) -> None:
    """Ask where a person can see the question; else `--yes` has to be there."""
    if yes:
        return
    if not all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr)):
        raise UsageError("nobody can be asked here", code="not_confirmed", remedy=f"schedule {verb} --yes does it")
    if not typer.confirm(question, default=False, err=True):
        raise typer.Abort


def _print_installed(out: Output, result: InstallResult, words: str) -> int:
    data: dict[str, Any] = {
        "kind": result.kind, "line": result.line, "files": result.files, "changed": result.changed
    }  # fmt: skip
    return out.result(data, result, lambda: out.say(words))


def register(app: typer.Typer) -> None:
    """Register this module's commands."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Schedules: specs that are submitted again and again.\n\n\b\n"
        "Example:\n  jobrunner schedule add retrain.yaml && jobrunner schedule install",
    )
    commands: list[tuple[str, Callable[..., int | None], str]] = [
        ("add", add, "jobrunner schedule add retrain.yaml"),
        ("ls", ls, "jobrunner schedule ls"),
        ("next", next_, "jobrunner schedule next retrain -n 10"),
        ("pause", pause, "jobrunner schedule pause retrain"),
        ("resume", resume, "jobrunner schedule resume retrain"),
        ("rm", rm, "jobrunner schedule rm retrain"),
        ("run", run, "jobrunner schedule run retrain"),
        ("history", history, "jobrunner schedule history retrain"),
        ("install", install, "jobrunner schedule install"),
        ("uninstall", uninstall, "jobrunner schedule uninstall"),
    ]
    for name, function, example in commands:
        command(group, name, group="schedule", example=example)(function)
    app.add_typer(group, name="schedule")
