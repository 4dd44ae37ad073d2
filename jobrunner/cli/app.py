"""The `jobrunner` program: its commands, the options before a command's name, and the way in."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from jobrunner.cli import data, hosts, jobs, look
from jobrunner.cli.command import Globals, Hosts, Json, Timings, guarded
from jobrunner.cli.errors import ClickException, from_click
from jobrunner.cli.output import Output, hush, write_text
from jobrunner.cli.quick import quicken
from jobrunner.core.errors import JobrunnerError

PROGRAM = "jobrunner"

# Plain help: it needs no rich, so it comes at once, and looks the same in a terminal, a pipe and a C locale.
app = typer.Typer(
    name=PROGRAM,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from jobrunner import __version__

        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


@app.callback()
def _before_all(
    context: typer.Context,
    as_json: Json = False,
    hosts_file: Hosts = None,
    timings: Timings = False,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    """Batch jobs on shared accelerator servers that are reached over SSH only.

    \b
    Example:
      jobrunner init && jobrunner submit job.yaml --follow
    """
    context.obj = Globals(json=as_json, hosts_file=hosts_file, timings=timings)


jobs.register(app)
look.register(app)
data.register(app)
hosts.register(app)


def run(arguments: Sequence[str]) -> int:
    """Run the program with these arguments (without its name); returns the exit code."""
    out = Output("", json="--json" in _options(arguments))
    try:
        program: Any = typer.main.get_command(app)
        quicken(program)
        code = program.main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except typer.Exit as leave:
        code = leave.exit_code
    except (KeyboardInterrupt, typer.Abort):
        out.say("interrupted")
        code = 130
    except ClickException as error:
        return _refuse(out, error)
    except BrokenPipeError:  # `jobrunner --help | head -1`
        hush(sys.stdout)
        return 0
    return code if isinstance(code, int) else 0


def _options(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments before `--`, after which nothing is an option."""
    return arguments[: list(arguments).index("--")] if "--" in arguments else arguments


def _refuse(out: Output, error: Any) -> int:
    """Say what is wrong with the command line. Alone, `jobrunner` and `jobrunner hosts` just show their help."""
    problem, out.command = from_click(error, PROGRAM)
    if type(error).__name__ == "NoArgsIsHelpError" and not out.json:
        write_text(sys.stderr, error.format_message() + "\n", flush=True)
        return 2

    def complain() -> int:
        raise _as_exit(problem, getattr(error, "exit_code", 2))

    return guarded(out, complain)


def _as_exit(problem: JobrunnerError, code: int) -> JobrunnerError:
    problem.exit_code = code
    return problem
