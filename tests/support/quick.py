"""A client whose commands run inside the test's own process: the same program without its start-up."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator

from jobrunner.cli.app import run

from .lab import Client


class QuickClient(Client):
    """As `Client`, several times as fast; for tests of what commands answer, not of how they are killed."""

    def run(self, *words: str, code: int | None = 0, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `code` is what it has to exit with (None: anything)."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
        with self._place(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = run(list(words))
        shown, said = (stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in (out, err))
        if code is not None:
            assert status == code, f"{words} exited {status}\n{shown}\n{said}"
        return subprocess.CompletedProcess(["jobrunner", *words], status, shown, said)

    @contextlib.contextmanager
    def _place(self) -> Iterator[None]:
        """The client's environment and folder, for as long as a command runs; there is nobody at its input."""
        environ, folder, stdin = dict(os.environ), os.getcwd(), sys.stdin
        os.environ.clear()
        os.environ.update(self.env)
        os.chdir(self.folder)
        try:
            with open(os.devnull) as sys.stdin:
                yield
        finally:
            sys.stdin = stdin
            os.chdir(folder)
            os.environ.clear()
            os.environ.update(environ)
