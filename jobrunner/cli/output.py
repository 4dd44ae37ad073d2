"""Where a command's output goes: results to standard output (text or one JSON document), the rest to stderr."""

from __future__ import annotations

import codecs
import errno
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import field
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from jobrunner.cli import started
from jobrunner.cli.errors import OutputClosed, as_json, as_text
from jobrunner.cli.words import visible, visible_lines
from jobrunner.core.errors import JobrunnerError
from jobrunner.core.values import dataclass

if TYPE_CHECKING:
    from rich.console import Console

    from jobrunner.cli.progress import TerminalProgress
    from jobrunner.cli.tables import Table
    from jobrunner.service.results import Result
    from jobrunner.service.session import Session

PHASES = ("import", "spec", "code", "connect", "authenticate", "request", "transfer", "host work", "ledger")
_PLAIN = {"→": "->", "…": "...", "·": "-", "✓": "ok", "✗": "x", "—": "-", "°": ""}


def now() -> datetime:
    """The time against which `5 min ago` is counted."""
    return datetime.now(timezone.utc)


def _replace_unencodable(error: UnicodeError) -> tuple[str | bytes, int]:
    """Codec handler: what a terminal's encoding lacks becomes an ASCII likeness or an escape, never an exception."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    piece = error.object[error.start : error.end]
    text = "".join(
        _PLAIN[char] if char in _PLAIN else char.encode("ascii", "backslashreplace").decode("ascii") for char in piece
    )
    return text, error.end


codecs.register_error("jobrunner", _replace_unencodable)


@dataclass
class Output:
    """One command's way to speak. `command` is its name in JSON; `streaming` makes JSON Lines of documents."""

    command: str
    json: bool = False
    hosts_file: Path | None = None
    timings: bool = False
    transport: str | None = None
    warned: list[str] = field(default_factory=list)
    _progress: TerminalProgress | None = None
    _console: Console | None = None
    _session: Session | None = None
    _ready: float = field(default_factory=time.perf_counter)

    # -- standard output ------------------------------------------------------------------------------------------

    @property
    def terminal(self) -> bool:
        """True if standard output is a terminal."""
        return is_terminal(sys.stdout)

    def write(self, text: str, *, flush: bool = False) -> None:
        """Write text to standard output as it stands. Raises OutputClosed if nobody reads it any more."""
        with writing():
            write_text(sys.stdout, text, flush=flush)

    def write_bytes(self, data: bytes) -> None:
        """Write bytes to standard output exactly. Raises OutputClosed."""
        if sys.stdout is None:
            return
        with writing():
            sys.stdout.flush()
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()

    def line(self, text: str = "") -> None:
        """Write a line to standard output."""
        self.write(text + "\n")

    def document(self, data: dict[str, Any], errors: list[JobrunnerError] | None = None, *, name: str = "") -> None:
        """Write one JSON document in one line. ASCII, so that no encoding can spoil it."""
        entries = [entry for error in errors or [] for entry in as_json(error)]
        value = {"v": 1, "command": name or self.command, "data": data, "errors": entries}
        if self.timings:
            value["timings"] = {phase: round(seconds, 6) for phase, seconds in self._spent().items()}
        self.write(dump_json(value) + "\n", flush=True)

    def table(self, table: Table) -> None:
        """Write a table: with colours and fitted to the width on a terminal, plain and whole otherwise."""
        if self.terminal:
            with writing():
                self.console().print(table.fitted(self.console().width), soft_wrap=True)
        else:
            self.write(table.plain())

    def styled(self, text: str, style: str) -> None:
        """Write a line to standard output, in a colour on a terminal."""
        if self.terminal and style:
            from rich.text import Text

            with writing():
                self.console().print(Text(text, style=style), soft_wrap=True)
        else:
            self.line(text)

    def console(self) -> Console:
        """Rich's console on standard output, made on first use."""
        if self._console is None:
            from rich.console import Console

            self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=False)
        return self._console

    # -- standard error -------------------------------------------------------------------------------------------

    def say(self, text: str) -> None:
        """A sentence to standard error."""
        if self._progress is not None:
            self._progress.pause()
        tell(visible_lines(text) + "\n")

    def warn(self, text: str) -> None:
        """A warning to standard error, each only once."""
        if text not in self.warned:
            self.warned.append(text)
            self.say(f"warning: {text}")

    def error(self, error: JobrunnerError) -> None:
        """An error to standard error, with what to do now."""
        if self._progress is not None:
            self._progress.pause()
        tell(as_text(error) + "\n")

    # -- a command's run ------------------------------------------------------------------------------------------

    @contextmanager
    def session(self) -> Iterator[Session]:
        """Open the session that the service works with; its warnings and timings are shown when it closes."""
        from jobrunner.cli.progress import TerminalProgress
        from jobrunner.service.session import open_session

        progress = self._progress = TerminalProgress(bars=is_terminal(sys.stderr), say=self.say)
        session = None
        try:
            with open_session(hosts_file=self.hosts_file, progress=progress, transport=self.transport) as session:
                self._session, self._ready = session, time.perf_counter()
                yield session
        finally:
            progress.close()
            if session is not None:
                self._closing_words(session)

    def _closing_words(self, session: Session) -> None:
        for text in session.warnings:
            self.warn(text)

    def _spent(self) -> dict[str, float]:
        """Seconds by phase until now, from the first line of ours that ran, and the `total`. Phases may overlap."""
        spent = self._session.spent() if self._session is not None else {}
        spent["import"] = spent.get("import", 0.0) + max(0.0, self._ready - started.AT)
        order = [name for name in PHASES if name in spent] + [name for name in spent if name not in PHASES]
        return {**{name: spent[name] for name in order}, "total": time.perf_counter() - started.AT}

    def say_timings(self) -> None:
        """With --timings, say on standard error where the time went."""
        if self.timings:
            for name, seconds in self._spent().items():
                self.say(f"timing: {visible(name):<12} {seconds:9.3f} s")

    def result(self, data: dict[str, Any], result: Result, text: Callable[[], None]) -> int:
        """Print `data` as the document, or what `text` writes, then warnings and errors. Returns the exit code."""
        if self._progress is not None:
            self._progress.pause()
        for warning in result.warnings:
            self.warn(warning)
        if self.json:
            self.document(data, result.errors)
        else:
            text()
            for error in result.errors:
                self.error(error)
        return result.exit_code


def dump_json(value: Any) -> str:
    """A value as JSON in ASCII. A number that JSON does not have (NaN, infinity) becomes null."""
    try:
        return json.dumps(value, default=str, allow_nan=False)
    except ValueError:
        return json.dumps(_finite(value), default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def is_terminal(stream: TextIO | None) -> bool:
    """True if a person looks at this stream."""
    try:
        return stream is not None and stream.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False


def write_text(stream: TextIO | None, text: str, *, flush: bool = False) -> None:
    """Write text in the stream's encoding; what that lacks is spelled out in ASCII."""
    if stream is None:
        return
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, "jobrunner").decode(encoding, "replace"))
    if flush:
        stream.flush()


def tell(text: str) -> None:
    """Write text to standard error. Where nobody can be told (its disk is full, its reader gone), the work goes on."""
    with suppress(OSError):
        write_text(sys.stderr, text, flush=True)


@contextmanager
def writing() -> Iterator[None]:
    """Turn "the reader of our output has gone" into OutputClosed, and any other failure into an error with words."""
    try:
        yield
    except BrokenPipeError as error:
        raise OutputClosed from error
    except OSError as error:
        if os.name == "nt" and error.errno == errno.EINVAL:  # Windows' word for a closed pipe
            raise OutputClosed from error
        raise JobrunnerError(
            f"writing to standard output: {error.strerror or error}",
            code="output",
            remedy="what was asked for has been done; only showing it failed",
        ) from error


def hush(stream: TextIO | None) -> None:
    """Point a stream whose reader has gone at nothing, so that closing it at exit raises no further error."""
    if stream is None:
        return
    try:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
    except (OSError, ValueError):
        pass


def understands_escapes() -> bool:
    """True if the terminal on standard output takes escape sequences. Windows' console has to be told to first."""
    if sys.platform == "win32":
        import ctypes

        handle = ctypes.windll.kernel32.GetStdHandle(-11)  # STD_OUTPUT_HANDLE
        mode = ctypes.c_ulong()
        if not ctypes.windll.kernel32.GetConsoleMode(handle, ctypes.byref(mode)):
            return False
        virtual_terminal = 0x0004
        return bool(ctypes.windll.kernel32.SetConsoleMode(handle, mode.value | virtual_terminal))
    return True
