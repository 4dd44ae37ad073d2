"""Commands that move files, and those that need no host: checkpoints, pull, init, schema, demo."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from jobrunner.cli import output
from jobrunner.cli.command import command
from jobrunner.cli.options import Id, To
from jobrunner.cli.output import Output
from jobrunner.cli.views import checkpoint_table, file_table, plural
from jobrunner.cli.words import size, visible
from jobrunner.core.errors import UsageError
from jobrunner.service.results import CheckpointList, PullResult

MOST_SHOWN = 60
"""Of more files than these a terminal is shown the first half of so many."""


def checkpoints(
    out: Output,
    word: Id,
    which: Annotated[
        str | None,
        typer.Option("--pull", metavar="last|best|all|NAME", help="Fetch these, verified.", show_default=False),
    ] = None,
    to: To = None,
) -> int:
    """List a job's checkpoints, or fetch them.

    A fetch that was cut goes on where it stopped; every file is verified by its hash.
    """
    from jobrunner.service import data as service

    if to is not None and which is None:
        raise UsageError("--to names a folder, but nothing is fetched without --pull", remedy="add --pull last")
    with out.session() as session:
        if which is None:
            result: CheckpointList | PullResult = service.checkpoints(session, word)
        else:
            result = service.pull_checkpoints(session, word, which, to)
        data: dict[str, Any] = {"job": result.row.as_json(), "checkpoints": result.checkpoints}
        if isinstance(result, PullResult):
            data |= {"to": result.to, "files": result.files}
        return out.result(data, result, lambda: _checkpoints_text(out, result))


def _checkpoints_text(out: Output, result: CheckpointList | PullResult) -> None:
    if isinstance(result, PullResult):
        _pulled_text(out, result)
    elif result.checkpoints:
        out.table(checkpoint_table(result.checkpoints, output.now()))
    else:
        out.say(f"{result.row.id} has no checkpoints")


def pull(
    out: Output,
    word: Id,
    paths: Annotated[
        list[str] | None,
        typer.Argument(metavar="PATH", help="Files or folders; default: the spec's outputs.", show_default=False),
    ] = None,
    to: To = None,
) -> int:
    """Fetch a job's files, verified by their hashes."""
    from jobrunner.service import data as service

    with out.session() as session:
        result = service.pull(session, word, paths or [], to)
        data = {"job": result.row.as_json(), "to": result.to, "files": result.files}
        return out.result(data, result, lambda: _pulled_text(out, result))


def _pulled_text(out: Output, result: PullResult) -> None:
    if result.files:
        many = out.terminal and len(result.files) > MOST_SHOWN
        shown = result.files[: MOST_SHOWN // 2] if many else result.files
        out.table(file_table(shown))
        if len(shown) < len(result.files):
            out.line(f"… and {len(result.files) - len(shown):,} more (--json lists them all)")
        total = sum(item.get("size") or 0 for item in result.files)
        out.say(f"{plural(len(result.files), 'file')} ({size(total)}) in {result.to}")
    elif not result.errors:
        out.say(f"{result.row.id} has nothing to fetch so far: no outputs of its spec, nothing in JOBRUNNER_OUTPUT_DIR")


def init(
    out: Output,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where; default: here.", show_default=False)] = Path(
        "."
    ),
) -> int:
    """Write a starter spec and hosts file."""
    from jobrunner.service import init as service

    written = [str(path) for path in service.init(folder)]
    if out.json:
        out.document({"files": written})
    else:
        for path in written:
            out.line(f"wrote {visible(path)}")
        spec = shlex.quote(str(folder / "job.yaml"))
        out.say(f"now: jobrunner submit {spec} --host ALIAS --follow (ALIAS: a host of your SSH configuration)")
    return 0


def schema(
    out: Output,
    kind: Annotated[
        str, typer.Argument(metavar="spec|hosts", help="Of what; default: spec.", show_default=False)
    ] = "spec",
) -> int:
    """Print the JSON Schema of specs or hosts files, for editors."""
    from jobrunner.core import schema as core

    if kind not in ("spec", "hosts"):
        raise UsageError(f"there is no schema {visible(kind)!r}", remedy="use spec or hosts")
    found = core.json_schema("hosts" if kind == "hosts" else "spec")
    if out.json:
        out.document({"schema": found})
    else:
        out.line(json.dumps(found, indent=2))
    return 0


def demo(
    out: Output,
    keep: Annotated[bool, typer.Option("--keep", help="Leave the demo's host running, to play with.")] = False,
    stop: Annotated[bool, typer.Option("--stop", help="Stop a demo host that was kept.")] = False,
    sweep: Annotated[bool, typer.Option("--sweep", help="Show a sweep in place of a single job.")] = False,
    schedule: Annotated[bool, typer.Option("--schedule", help="Show nightly retraining.")] = False,
) -> int:
    """Try it all on this machine alone, with simulated cards."""
    from jobrunner.service import demo as service

    if stop + sweep + schedule > 1:
        raise UsageError("--stop, --sweep and --schedule exclude each other", remedy="leave all but one out")
    subject: Literal["job", "sweep", "schedule"] = "sweep" if sweep else "schedule" if schedule else "job"
    if not out.json:
        return service.demo(keep, stop, subject)
    with _story_on_stderr():
        code = service.demo(keep, stop, subject)
    out.document({"exit_code": code})
    return code


@contextlib.contextmanager
def _story_on_stderr() -> Iterator[None]:
    """Send what is told meanwhile, by this process and by its children, to standard error."""
    if sys.stdout is not None:
        sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def register(app: typer.Typer) -> None:
    """Register this module's commands."""
    command(app, "checkpoints", example="jobrunner checkpoints k3f9 --pull best --to ./best")(checkpoints)
    command(app, "pull", example="jobrunner pull k3f9 metrics.json plots/ --to ./results")(pull)
    command(app, "init", example="jobrunner init my-project")(init)
    command(app, "schema", example="jobrunner schema spec > spec.schema.json")(schema)
    command(app, "demo", example="jobrunner demo")(demo)
