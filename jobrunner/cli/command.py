"""How a function becomes a command: the options that all share, and one place that turns errors into exit codes."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from jobrunner.cli.errors import ClickException, OutputClosed, unexpected
from jobrunner.cli.interrupt import was_interrupted
from jobrunner.cli.output import Output, hush, write_text, writing
from jobrunner.core.errors import JobrunnerError
from jobrunner.core.values import dataclass

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")]
Hosts = Annotated[Path | None, typer.Option("--hosts", metavar="FILE", help="The hosts file.", show_default=False)]
Timings = Annotated[bool, typer.Option("--timings", help="Say on standard error where the time went.")]
Transport = Annotated[
    Literal["fabric", "openssh", "auto"] | None,
    typer.Option(
        "--transport", metavar="WAY", help="fabric, openssh or auto, over the hosts file's.", show_default=False
    ),
]

_CONTEXT = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
_JSON = inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Json)
_SHARED = [
    inspect.Parameter("hosts_file", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Hosts),
    inspect.Parameter("timings", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Timings),
    inspect.Parameter("transport", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Transport),
]


@dataclass(frozen=True)
class Globals:
    """The shared options as given before the command's name."""

    json: bool = False
    hosts_file: Path | None = None
    timings: bool = False
    transport: str | None = None


Function = Callable[..., int | None]
_wanted: str | None = None


@contextmanager
def only(name: str | None) -> Iterator[None]:
    """Within the block just this command (or group of commands) is registered; None: every one."""
    global _wanted
    before, _wanted = _wanted, name
    try:
        yield
    finally:
        _wanted = before


def command(
    app: typer.Typer, name: str, *, example: str, json: bool = True, group: str = "", negative: bool = False
) -> Callable[[Function], Function]:
    """Register `function(out, …its own options)` as the command `name`. It returns an exit code, or None for 0.

    `example` closes its help. `json=False` for the one command that has no JSON. `group` is the outer command's name.
    `negative`: an argument may be a negative number, so what looks like an unknown option is taken for one.
    """
    full_name = f"{group} {name}".strip()

    def register(function: Function) -> Function:
        if _wanted not in (None, group or name):
            return function

        def run(**given: Any) -> None:
            globals_: Globals = given.pop("context").find_object(Globals) or Globals()
            out = Output(
                full_name,
                json=json and (given.pop("as_json", False) or globals_.json),
                hosts_file=given.pop("hosts_file") or globals_.hosts_file,
                timings=given.pop("timings") or globals_.timings,
                transport=given.pop("transport") or globals_.transport,
            )
            code = guarded(out, lambda: function(out, **given))
            out.say_timings()
            raise typer.Exit(code)

        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]
        parameters = [
            _CONTEXT,
            *(item.replace(kind=inspect.Parameter.KEYWORD_ONLY) for item in own),
            *([_JSON] if json else []),
            *_SHARED,
        ]
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {item.name: item.annotation for item in parameters}
        run.__name__ = function.__name__
        text = f"{inspect.getdoc(function)}\n\n\b\nExample:\n  {example}"
        settings = {"ignore_unknown_options": True} if negative else None
        app.command(name, help=text, short_help=text.partition("\n")[0], context_settings=settings)(run)
        return function

    return register


def guarded(out: Output, work: Callable[[], int | None]) -> int:
    """Do a command's work; every way that it can end becomes an exit code and words for a person or a program."""
    try:
        code = work() or 0
        with writing():
            write_text(sys.stdout, "", flush=True)
        return code
    except (typer.Exit, ClickException):
        raise
    except typer.Abort:  # Ctrl-C or the end of input at a question
        return _interrupted(out, "interrupted")
    except (OutputClosed, BrokenPipeError):
        hush(sys.stdout)
        return 0
    except KeyboardInterrupt as stop:
        return _interrupted(out, str(stop) or "interrupted")
    except JobrunnerError as error:
        return _failed(out, error)
    except Exception as error:
        if was_interrupted(error):
            return _interrupted(out, "interrupted")
        if os.environ.get("JOBRUNNER_DEBUG") == "1":
            raise
        return _failed(out, unexpected(error))


def _failed(out: Output, error: JobrunnerError) -> int:
    try:
        if out.json:
            out.document({}, [error])
        else:
            out.error(error)
    except OutputClosed:
        hush(sys.stdout)
    except JobrunnerError:  # nor does standard output take this: a person is told at least
        hush(sys.stdout)
        out.error(error)
    return error.exit_code


def _interrupted(out: Output, text: str) -> int:
    if out.json:
        return _failed(out, _Interruption(text, code="interrupted"))
    out.say(f"\n{text}" if sys.stderr and sys.stderr.isatty() else text)
    return 130


class _Interruption(JobrunnerError):
    exit_code = 130
