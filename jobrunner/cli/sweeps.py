"""The `sweep` group: list, show, best, stop, extend, retry; plot is in sweepplots.py."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobrunner.cli import output
from jobrunner.cli.command import command
from jobrunner.cli.options import Offline, SweepId, To
from jobrunner.cli.output import Output
from jobrunner.cli.sweepplots import plot
from jobrunner.cli.sweepviews import as_csv, number, state_cell, sweep_line, sweep_table, trial_table
from jobrunner.cli.views import facts, job_table, plural
from jobrunner.cli.words import lasted
from jobrunner.core.errors import UsageError

if TYPE_CHECKING:
    from jobrunner.service.sweeps.manage import SweepChange
    from jobrunner.service.sweeps.view import SweepView, TrialView


def ls(out: Output, offline: Offline = False) -> int:
    """List sweeps and how far they are."""
    from jobrunner.service.sweeps import view as service

    with out.session() as session:
        result = service.ls(session, offline=offline)
        data = {"sweeps": [service.sweep_json(row, tally) for row, tally in result.sweeps]}

        def text() -> None:
            if result.sweeps:
                out.table(sweep_table(result.sweeps, output.now()))
            else:
                out.say("no sweeps yet; `jobrunner submit` of a spec with `sweep` makes one")

        return out.result(data, result, text)


def show(
    out: Output,
    word: SweepId,
    offline: Offline = False,
    csv: Annotated[bool, typer.Option("--csv", help="Print the trials as CSV.")] = False,
) -> int:
    """Show a sweep's trials, the best first.

    With their parameters, objective, state, host and time.
    """
    from jobrunner.service.sweeps import view as service

    if csv and out.json:
        raise UsageError("--csv and --json exclude each other", remedy="leave one of the two out")
    with out.session() as session:
        result = service.show(session, word, offline=offline)

        def text() -> None:
            if csv:
                out.write(as_csv(result))
                return
            _heading(out, result)
            if result.trials:
                out.table(trial_table(result, output.now()))

        return out.result(result.as_json(), result, text)


def _heading(out: Output, result: SweepView) -> None:
    out.line(sweep_line(result.sweep, result.tally) + (f" ({result.sweep.why})" if result.sweep.why else ""))


def best(
    out: Output,
    word: SweepId,
    pull: Annotated[
        bool, typer.Option("--pull", help="Fetch its best (else last) checkpoint, or its outputs.")
    ] = False,
    to: To = None,
) -> int:
    """Show the best trial that ran to its end, or was stopped early."""
    from jobrunner.service.sweeps import view as service

    if to is not None and not pull:
        raise UsageError("--to says where --pull puts the files, and --pull is missing", remedy="add --pull")
    with out.session() as session:
        result, found = service.best(session, word)
        data: dict[str, Any] = {**result.as_json(), "best": found.as_json()}
        del data["trials"]
        if pull:
            from jobrunner.service.sweeps.fetch import pull_best

            pulled = pull_best(session, found, to)
            data["pulled"] = {"to": str(pulled.to), "files": pulled.files}
        return out.result(data, result, lambda: _best_text(out, result, found, data.get("pulled")))


def _best_text(out: Output, result: SweepView, found: TrialView, pulled: dict[str, Any] | None) -> None:
    row, sample = found.row, found.objective
    metric = (result.sweep.objective or "objective").split()[0]
    pairs = [
        ("job", found.trial.job or ""),
        (metric, number(sample.value if sample else None)),
        ("step", number(sample.step if sample else None)),
        *found.trial.parameters.items(),
        ("state", state_cell(found).text),
        ("host", row.host or "" if row else ""),
        ("ran", lasted(row.started_at, row.ended_at, output.now()) if row else ""),
    ]
    out.line(f"trial {found.trial.number} of {result.sweep.name} ({result.sweep.id})")
    for line in facts(pairs):
        out.line(line)
    if pulled is not None:
        out.say(f"fetched {plural(len(pulled['files']), 'file')} to {pulled['to']}")


def stop(out: Output, word: SweepId) -> int:
    """End a sweep: what waits is cancelled, and what runs, too, wholly."""
    from jobrunner.service.sweeps import manage as service

    with out.session() as session:
        return _changed(out, service.stop(session, word), "ended")


def extend(
    out: Output,
    word: SweepId,
    spec: Annotated[
        Path, typer.Argument(metavar="SPEC", help="The spec with more values or trials.", show_default=False)
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a value of the spec.", show_default=False),
    ] = None,
) -> int:
    """Add the points of a spec that the sweep does not have yet, and run only those.

    Code and command stay those of the sweep.
    """
    from jobrunner.service.sweeps import manage as service

    with out.session() as session:
        return _changed(out, service.extend(session, word, spec, overrides or []), "sent")


def retry(
    out: Output,
    word: SweepId,
    failed: Annotated[
        bool, typer.Option("--failed", help="Those that failed, ran out of time or were lost: the default.")
    ] = False,
    reason: Annotated[
        str | None,
        typer.Option(
            "--reason", metavar="R", help="Only those that ended so: oom, host_reboot, TIMEOUT, …", show_default=False
        ),
    ] = None,
) -> int:
    """Run trials again that did not complete, as new jobs with the same parameters."""
    from jobrunner.service.sweeps import manage as service

    if failed and reason:
        raise UsageError("--failed means every reason, and --reason one of them", remedy="leave one of the two out")
    with out.session() as session:
        return _changed(out, service.retry(session, word, reason=reason), "sent")


def _changed(out: Output, result: SweepChange, what: str) -> int:
    from jobrunner.service.sweeps.view import sweep_json

    data = {
        "sweep": sweep_json(result.sweep, result.tally),
        "jobs": [row.as_json() for row in result.rows],
        "added": result.added,
    }

    def text() -> None:
        out.line(sweep_line(result.sweep, result.tally))
        if result.rows:
            out.table(job_table(result.rows, output.now()))
        out.say(f"{plural(len(result.rows), 'trial')} {what}")

    return out.result(data, result, text)


def register(app: typer.Typer) -> None:
    """Register this module's commands."""
    group = typer.Typer(
        no_args_is_help=True,
        rich_markup_mode=None,
        help="Sweeps: many trials of one spec.\n\n\b\nExample:\n  jobrunner sweep show digits-sweep",
    )
    command(group, "ls", group="sweep", example="jobrunner sweep ls")(ls)
    command(group, "show", group="sweep", example="jobrunner sweep show digits-sweep --csv")(show)
    command(group, "best", group="sweep", example="jobrunner sweep best digits-sweep --pull --to best")(best)
    command(group, "plot", group="sweep", example="jobrunner sweep plot digits-sweep --html")(plot)
    command(group, "stop", group="sweep", example="jobrunner sweep stop digits-sweep")(stop)
    command(group, "extend", group="sweep", example="jobrunner sweep extend digits-sweep digits_sweep.yaml")(extend)
    command(group, "retry", group="sweep", example="jobrunner sweep retry digits-sweep --reason host_reboot")(retry)
    app.add_typer(group, name="sweep")
