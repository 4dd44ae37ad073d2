"""A client whose commands run inside the test's own process: the same program without its start-up."""

from __future__ import annotations

import contextlib
import io
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from jobrunner.cli.app import run

from .lab import Client


def run_within(words: tuple[str, ...], env: Mapping[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in this process, as if it had been started in a folder with an environment."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", write_through=True) for _ in range(2))
    with _place(env, folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run(list(words))
    shown, said = (stream.buffer.getvalue().decode("utf-8", "surrogateescape") for stream in (out, err))
    return subprocess.CompletedProcess(["jobrunner", *words], status, shown, said)


@contextlib.contextmanager
def _place(env: Mapping[str, str], folder: Path) -> Iterator[None]:
    """An environment and folder, for as long as a command runs; there is nobody at its input."""
    environ, before, stdin = dict(os.environ), os.getcwd(), sys.stdin
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    try:
        with open(os.devnull) as sys.stdin:
            yield
    finally:
        sys.stdin = stdin
        os.chdir(before)
        os.environ.clear()
        os.environ.update(environ)


class QuickClient(Client):
    """As `Client`, several times as fast; for tests of what commands answer, not of how they are killed."""

    def run(self, *words: str, code: int | None = 0, limit: float = 60.0) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `code` is what it has to exit with (None: anything)."""
        done = run_within(words, self.env, self.folder)
        if code is not None:
            assert done.returncode == code, f"{words} exited {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done
