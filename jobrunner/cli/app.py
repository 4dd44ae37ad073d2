"""The `jobrunner` program: its commands, the options before a command's name, and the way in."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

import typer

from jobrunner.cli import command
from jobrunner.cli.command import Globals, Hosts, Json, Timings, Transport, guarded
from jobrunner.cli.errors import ClickException, OutputClosed, from_click
from jobrunner.cli.output import Output, tell, writing
from jobrunner.cli.quick import quicken
from jobrunner.core.errors import JobrunnerError

PROGRAM = "jobrunner"

# The modules of this package that hold commands, in the order of the help, and the commands of each.
COMMANDS = {
    "jobs": ("submit", "ls", "wait", "cancel", "retry", "hold", "release", "priority", "attach"),
    "look": ("show", "logs", "why", "explain"),
    "plots": ("plot",),
    "sweeps": ("sweep",),
    "schedules": ("schedule",),
    "ticks": ("tick", "serve", "promote"),
    "data": ("checkpoints", "pull", "init", "schema", "demo"),
    "hosts": ("hosts", "cards", "doctor", "adopt", "gc"),
}


def _show_version(wanted: bool) -> None:
    if wanted:
        from jobrunner import __version__

        typer.echo(f"{PROGRAM} {__version__}")
        raise typer.Exit


def _before_all(
    context: typer.Context,
    as_json: Json = False,
    hosts_file: Hosts = None,
    timings: Timings = False,
    transport: Transport = None,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version.")
    ] = False,
) -> None:
    """Batch jobs on shared accelerator servers that are reached over SSH only.

    \b
    Example:
      jobrunner init && jobrunner submit job.yaml --follow
    """
    context.obj = Globals(json=as_json, hosts_file=hosts_file, timings=timings, transport=transport)


@cache
def _app(only: str | None = None) -> typer.Typer:
    """The program: whole, or with the one command that is going to run (to build the others takes 40 ms)."""
    # Plain help: it needs no rich, so it comes at once, and looks the same in a terminal, a pipe and a C locale.
    program = typer.Typer(
        name=PROGRAM,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )
    program.callback()(_before_all)
    for module, names in COMMANDS.items():
        if only is None or only in names:
            with command.only(only):
                importlib.import_module(f"jobrunner.cli.{module}").register(program)
    return program


def __getattr__(name: str) -> typer.Typer:
    """`app`: the whole program."""
    if name == "app":
        return _app()
    raise AttributeError(name)


def _command_in(arguments: Sequence[str]) -> str | None:
    """The command that these arguments call, if that shows at once; None where the whole program has to look."""
    words = iter(arguments)
    for word in words:
        if word in ("--json", "--timings") or word.startswith(("--hosts=", "--transport=")):
            continue
        if word in ("--hosts", "--transport"):
            next(words, None)
            continue
        known = any(word in names for names in COMMANDS.values())
        return word if known and f"_{PROGRAM.upper()}_COMPLETE" not in os.environ else None
    return None


def run(arguments: Sequence[str]) -> int:
    """Run the program with these arguments (without its name); returns the exit code."""
    out = Output("", json="--json" in _options(arguments))
    try:
        program: Any = typer.main.get_command(_app(_command_in(arguments)))
        quicken(program)
        with writing():
            code = program.main(args=list(arguments), prog_name=PROGRAM, standalone_mode=False)
    except typer.Exit as leave:
        code = leave.exit_code
    except (KeyboardInterrupt, typer.Abort):
        out.say("interrupted")
        code = 130
    except ClickException as error:
        return _refuse(out, error, arguments)
    except (JobrunnerError, OutputClosed) as error:  # `jobrunner --help > /dev/full`, `jobrunner --help | head -1`
        return _give_up(out, error)
    return code if isinstance(code, int) else 0


def _options(arguments: Sequence[str]) -> Sequence[str]:
    """The arguments before `--`, after which nothing is an option."""
    return arguments[: list(arguments).index("--")] if "--" in arguments else arguments


def _called(arguments: Sequence[str]) -> str:
    """The program and the command that these arguments name, with its group."""
    command: Any = typer.main.get_command(_app())
    names = [PROGRAM]
    for word in arguments:
        inner = getattr(command, "commands", {}).get(word)
        if inner is not None:
            command = inner
            names.append(word)
    return " ".join(names)


def _refuse(out: Output, error: Any, arguments: Sequence[str]) -> int:
    """Say what is wrong with the command line. Alone, `jobrunner` and `jobrunner hosts` just show their help."""
    problem, out.command = from_click(error, PROGRAM, lambda: _called(arguments))
    if type(error).__name__ == "NoArgsIsHelpError" and not out.json:
        tell(error.format_message() + "\n")
        return 2

    return _give_up(out, _as_exit(problem, getattr(error, "exit_code", 2)))


def _give_up(out: Output, error: Exception) -> int:
    def complain() -> int:
        raise error

    return guarded(out, complain)


def _as_exit(problem: JobrunnerError, code: int) -> JobrunnerError:
    problem.exit_code = code
    return problem
