"""Errors as the command line shows them: `error: …`, `→ what to do now`, and entries of `errors[]`."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import typer

from jobrunner.cli.words import visible, visible_lines, with_local_times
from jobrunner.core.errors import JobrunnerError, SpecError

# Typer carries Click's exceptions along, from one package or another; this is the base of all of them.
ClickException: type[Exception] = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")


class OutputClosed(Exception):
    """Whoever read our output has gone away (`jobrunner logs ID | head`)."""


def as_json(error: JobrunnerError) -> list[dict[str, str]]:
    """The entries of `errors[]` for one error: one per problem of a refused file."""
    if isinstance(error, SpecError) and error.problems:
        return [{"code": item.code, "message": str(item), "remedy": error.remedy} for item in error.problems]
    return [error.as_json()]


def as_text(error: JobrunnerError) -> str:
    """An error as lines for standard error."""
    messages = [str(item) for item in error.problems] if isinstance(error, SpecError) else [error.message]
    lines = [f"error: {visible_lines(with_local_times(message))}" for message in messages or [error.message]]
    if error.remedy:
        lines.append(f"→ {visible_lines(error.remedy)}")
    return "\n".join(lines)


def from_click(error: Any, program: str, called: Callable[[], str]) -> tuple[JobrunnerError, str]:
    """A parser's complaint as one of our errors, and the command (without the program's name) that it is about.

    `called` tells the program and command where the parser does not: of an option without its value, for one.
    """
    from jobrunner.core.errors import UsageError

    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else called()
    if type(error).__name__ == "NoArgsIsHelpError":
        message = f"{path}: a command is missing"
    else:
        message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")
    return UsageError(message, remedy=f"see `{path} --help`"), path.removeprefix(program).strip()


def unexpected(error: BaseException) -> JobrunnerError:
    """A fault of our own (or of the machine below), whose traceback goes to a file instead of the screen.

    Or else a word of the command line that is no text, where only text can be: names of hosts, jobs, sweeps.
    """
    if isinstance(error, UnicodeEncodeError) and (word := _undecodable_word(error)) is not None:
        from jobrunner.core.errors import UsageError

        return UsageError(
            f"the word {visible(ascii(word))} holds bytes that are no UTF-8 text", remedy="write it in UTF-8"
        )
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    path = _write_trace(error)
    return JobrunnerError(
        f"something unforeseen happened: {visible(what)}",
        code="internal",
        remedy=f"the traceback is in {path}; please report it" if path else "run it again with JOBRUNNER_DEBUG=1 set",
    )


def _undecodable_word(error: UnicodeEncodeError) -> str | None:
    """The word of the command line whose undecodable bytes could not be encoded; None for an error of another kind."""
    wrong = error.object[error.start : error.end]
    given = any("\udc80" <= char <= "\udcff" for char in wrong)
    return next((word for word in sys.argv[1:] if wrong in word), None) if given else None


def _write_trace(error: BaseException) -> Path | None:
    """Write the traceback to the state folder, or else the temporary folder; None if neither takes it."""
    from jobrunner.service.session import default_home

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    name = f"crash-{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}.txt"
    for folder in (default_home(os.environ) / "logs", Path(tempfile.gettempdir())):
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError:
            continue
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write(f"python {sys.version}\n{text}")
        return folder / name
    return None
