"""Commands that make jobs, list them, wait for them and steer them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from jobrunner.cli import output
from jobrunner.cli.command import command
from jobrunner.cli.options import HostOption, Id, Ids, TargetOption
from jobrunner.cli.output import Output
from jobrunner.cli.submitted import about_upload, print_submitted, submitted_json
from jobrunner.cli.views import job_table, one_line, plural
from jobrunner.cli.words import duration, visible
from jobrunner.core.errors import UsageError
from jobrunner.core.states import JobState

if TYPE_CHECKING:
    from jobrunner.core.errors import JobrunnerError
    from jobrunner.core.jobs import JobRow
    from jobrunner.service.results import CancelResult, Listing, SubmitResult
    from jobrunner.service.session import Session

WATCH_SECONDS = 2.0


def submit(
    out: Output,
    specs: Annotated[list[Path], typer.Argument(metavar="SPEC", help="Job specs (YAML).", show_default=False)],
    host: TargetOption = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="KEY=VALUE",
            help="Change a value of the spec, as in --set retry.max=3.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be sent where; send nothing.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Return when the job is final; exit 1 unless it completed.")
    ] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show the log until the job is final (as --wait).")] = False,
    large: Annotated[bool, typer.Option("--large", help="Send even more than 1 GB or 50,000 files.")] = False,
) -> int:
    """Send jobs to a host and queue them there.

    Returns when the host has them: from then on this machine is not needed any more.
    """
    from jobrunner.service import submit as service

    if follow and len(specs) > 1:
        raise UsageError("--follow shows one job's log, but several specs were given", remedy="use --wait instead")
    if dry_run and (follow or wait):
        raise UsageError("--dry-run sends nothing, so there is nothing to wait for", remedy="leave one of the two out")
    with out.session() as session:
        try:
            result = service.submit(session, specs, host=host, overrides=overrides or [], dry_run=dry_run, large=large)
        except KeyboardInterrupt as stop:
            raise KeyboardInterrupt("interrupted; the same submit again goes on with what was sent") from stop
        if follow and result.sweeps:
            out.say("a sweep has many logs: waiting instead of following one (`jobrunner logs` shows any of them)")
            follow, wait = False, True
        if dry_run or not (follow or wait) or not result.rows:
            return print_submitted(out, result)
        if follow:
            return _submit_and_follow(out, session, result)
        return _submit_and_wait(out, session, result)


def _submit_and_wait(out: Output, session: Session, result: SubmitResult) -> int:
    if not out.json:
        about_upload(out, result)
    for warning in result.warnings:
        out.warn(warning)
    words = [row.id for row in result.rows]

    def data(rows: list[JobRow]) -> dict[str, Any]:
        from jobrunner.service.sweeps.view import settle

        sweeps = [settle(session, sweep.id) for sweep in result.sweeps]
        return submitted_json(replace(result, rows=rows, sweeps=sweeps))

    return _wait_for(out, session, words, None, earlier=result.errors, data=data) or result.exit_code


def _submit_and_follow(out: Output, session: Session, result: SubmitResult) -> int:
    from jobrunner.cli.stream import looking_only, show_log
    from jobrunner.service import logs

    print_submitted(out, result)
    word = result.rows[0].id
    with looking_only(word):
        pieces = logs.follow(session, word, follow=True, lines=None, attempt=None, grep=None, since=None)
        row = show_log(out, pieces, follow=True)
    bring_home(out, session, [row] if row is not None else [])
    return 0 if row is not None and row.state is JobState.COMPLETED else 1


def bring_home(out: Output, session: Session, rows: Sequence[JobRow]) -> None:
    """Fetch the checkpoints that the specs of ended jobs ask for (`checkpoints.pull`), and say where they are."""
    from jobrunner.service.data import pull_as_asked

    for row in rows:
        pulled = pull_as_asked(session, row)
        if pulled is not None and pulled.files and not out.json:
            out.say(f"{row.id}: fetched {plural(len(pulled.files), 'checkpoint file')} to {pulled.to}")


def ls(
    out: Output,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Of those that ended, too, all: not the newest 100.")
    ] = False,
    states: Annotated[
        list[str] | None, typer.Option("--state", metavar="S", help="Only these states.", show_default=False)
    ] = None,
    name: Annotated[
        str | None, typer.Option("--name", metavar="GLOB", help="Only names like this.", show_default=False)
    ] = None,
    host: HostOption = None,
    offline: Annotated[bool, typer.Option("--offline", help="Ask no host; show what is remembered.")] = False,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again and again, until Ctrl-C.")] = False,
) -> int:
    """List jobs, as their hosts see them now."""
    from jobrunner.service import jobs as service

    wanted = tuple(_state(word) for word in states or [])
    with out.session() as session:

        def look() -> Listing:
            return service.list_jobs(session, all=everything, states=wanted, name=name, host=host, offline=offline)

        if not watch:
            return _print_listing(out, look(), narrowed=bool(wanted or name or host))
        from jobrunner.cli.watch import watch_jobs

        return watch_jobs(out, look, every=WATCH_SECONDS, sleep=time.sleep)


def _state(word: str) -> JobState:
    try:
        return JobState(word.upper())
    except ValueError:
        import difflib

        names = [state.value for state in JobState]
        near = difflib.get_close_matches(word.upper(), names, n=1)
        hint = f"did you mean {near[0]}?" if near else "one of " + ", ".join(names)
        raise UsageError(f"{visible(word)!r} is not a state", remedy=hint) from None


def _print_listing(out: Output, result: Listing, *, narrowed: bool = False) -> int:
    """`narrowed`: only some of the jobs were asked for."""

    def text() -> None:
        _listing_text(out, result, narrowed)

    return out.result({"jobs": [row.as_json() for row in result.rows]}, result, text)


def _listing_text(out: Output, result: Listing, narrowed: bool) -> None:
    if result.rows:
        out.table(job_table(result.rows, output.now(), result.notes))
    elif not result.errors:
        out.say(
            "no such jobs"
            if narrowed
            else "no jobs yet (jobrunner submit sends one; jobrunner adopt HOST finds old ones)"
        )


def wait(
    out: Output,
    ids: Ids,
    timeout: Annotated[
        str | None,
        typer.Option("--timeout", metavar="T", help="Give up after this long: 90s, 15m, 12h, …", show_default=False),
    ] = None,
) -> int:
    """Wait until jobs are final.

    Exit code 0 if all completed, 1 if one did not, 124 if the time limit passed.
    """
    with out.session() as session:
        return _wait_for(out, session, ids, duration(timeout) if timeout else None)


def _wait_for(
    out: Output,
    session: Session,
    words: list[str],
    timeout: float | None,
    *,
    earlier: Sequence[JobrunnerError] = (),
    data: Callable[[list[JobRow]], dict[str, Any]] | None = None,
) -> int:
    """Wait for jobs and print them, with `data` of what came before, and its errors. Returns the exit code."""
    from jobrunner.cli.stream import looking_only
    from jobrunner.service import jobs as service

    def changed(rows: list[JobRow]) -> None:
        if not out.json:
            for row in rows:
                out.say(one_line(row))

    with looking_only(words[0]):
        result = service.wait(session, words, timeout=timeout, on_change=changed)
        bring_home(out, session, result.rows)
    result = replace(result, errors=[*earlier, *result.errors])
    told = data(result.rows) if data is not None else {"jobs": [row.as_json() for row in result.rows]}

    def text() -> None:
        out.table(job_table(result.rows, output.now()))
        if result.timed_out:
            out.say("the time limit of the waiting has passed; the jobs go on")

    return out.result({**told, "timed_out": result.timed_out}, result, text)


def cancel(
    out: Output,
    ids: Ids,
    grace: Annotated[
        str | None,
        typer.Option(
            "--grace", metavar="T", help="Time between TERM and KILL; default: the spec's.", show_default=False
        ),
    ] = None,
) -> int:
    """End jobs with all their processes, verified.

    If a host does not answer, the wish is kept and applied at the next contact by any command (exit code 3).
    """
    from jobrunner.service import control

    with out.session() as session:
        result = control.cancel(session, ids, grace=duration(grace) if grace else None)
        data = {
            "jobs": [row.as_json() for row in result.rows],
            "kept": result.kept,
            "left": result.left,
            "already_final": result.already,
        }
        return out.result(data, result, lambda: _cancelled_text(out, result))


def _cancelled_text(out: Output, result: CancelResult) -> None:
    if result.rows:
        out.table(job_table(result.rows, output.now()))
    for word in result.already:
        out.say(f"{word} was final before; nothing was done")
    for word in result.kept:
        out.say(f"{word}: its host does not answer. The cancel is kept, and comes first at the next contact")
    for word, processes in result.left.items():
        for item in processes:
            out.say(f"{word}: still there: process {item.get('pid')} {item.get('command', '')}")


def retry(
    out: Output,
    word: Id,
    fresh: Annotated[bool, typer.Option("--fresh", help="Start from nothing, not from a checkpoint.")] = False,
    elsewhere: Annotated[
        bool, typer.Option("--elsewhere", help="On another host; a cancel is kept for the old job if it may live.")
    ] = False,
) -> int:
    """Run a job's spec and code again, as a new job.

    It goes on from the newest valid checkpoint unless --fresh is given.
    """
    from jobrunner.service import retrying

    with out.session() as session:
        return print_submitted(out, retrying.retry(session, word, fresh=fresh, elsewhere=elsewhere))


def hold(out: Output, ids: Ids) -> int:
    """Keep queued jobs from starting."""
    from jobrunner.service import control

    with out.session() as session:
        return _print_listing(out, control.hold(session, ids))


def release(out: Output, ids: Ids) -> int:
    """Let jobs go on that were held."""
    from jobrunner.service import control

    with out.session() as session:
        return _print_listing(out, control.release(session, ids))


def priority(
    out: Output,
    word: Id,
    number: Annotated[
        int, typer.Argument(metavar="N", help="Higher starts earlier; default is 0.", show_default=False)
    ],
) -> int:
    """Change a queued job's place among one's own."""
    from jobrunner.service import control

    with out.session() as session:
        return _print_listing(out, control.set_priority(session, word, number))


def attach(out: Output, word: Id) -> int:
    """Open a live terminal on a job of `launcher: tmux`.

    Leaving it (Ctrl-b d) leaves the job running.
    """
    from jobrunner.service import control

    if os.environ.get("TMUX"):
        out.say("you are in a tmux already: Ctrl-b Ctrl-b d leaves the job's terminal, Ctrl-b d your own")
    with out.session() as session:
        return control.attach(session, word)


def register(app: typer.Typer) -> None:
    """Register this module's commands."""
    command(app, "submit", example="jobrunner submit train.yaml --host npu-a --set env.EPOCHS=3 --follow")(submit)
    command(app, "ls", example="jobrunner ls --state RUNNING --state QUEUED --name 'resnet*'")(ls)
    command(app, "wait", example="jobrunner wait k3f9 resnet18 --timeout 12h")(wait)
    command(app, "cancel", example="jobrunner cancel k3f9 --grace 2m")(cancel)
    command(app, "retry", example="jobrunner retry k3f9 --elsewhere")(retry)
    command(app, "hold", example="jobrunner hold k3f9")(hold)
    command(app, "release", example="jobrunner release k3f9")(release)
    command(app, "priority", example="jobrunner priority k3f9 10", negative=True)(priority)
    command(app, "attach", example="jobrunner attach k3f9", json=False)(attach)
