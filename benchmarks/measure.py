"""Timing of whole processes, and of several ways turn by turn."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

LIMIT_S = 300.0
"""No command of a benchmark takes longer: one that does is ended, and its row says so."""

OURS = [sys.executable, "-m", "jobrunner"]
"""What `jobrunner` is here: the interpreter that runs the benchmarks, and the code beside them."""


class TooSlow(Exception):
    """A command did not end in time."""


class Failed(Exception):
    """A command exited with another code than 0."""


@dataclass(frozen=True)
class Taken:
    """What one run took: seconds on the clock, and CPU seconds of the process with its children (not of servers)."""

    wall: float
    cpu: float


Way = Callable[[], Taken]


def timed(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: Path,
    *,
    out: IO[bytes] | int | None = None,
    limit: float = LIMIT_S,
) -> Taken:
    """Run a command to its end; it must succeed. Its standard output is read, or goes to `out`."""
    began = time.perf_counter()
    process = subprocess.Popen(
        list(argv),
        env=dict(env),
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if out is None else out,
        stderr=subprocess.STDOUT if out is None else subprocess.PIPE,
        start_new_session=True,
    )
    stream = process.stdout if out is None else process.stderr
    assert stream is not None
    late = threading.Event()
    timer = threading.Timer(limit, _end, (process.pid, late))
    timer.start()
    try:
        with stream:
            said = stream.read()
        _, status, spent = os.wait4(process.pid, 0)
    except BaseException:
        _end(process.pid, late)
        process.wait()
        raise
    finally:
        timer.cancel()
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    told = " ".join(argv)[:300]
    if late.is_set():
        raise TooSlow(f"{told} took more than {limit:g} s")
    if process.returncode:
        raise Failed(f"{told} exited {process.returncode}: {said[-1500:].decode('utf-8', 'replace').strip()}")
    return Taken(took, spent.ru_utime + spent.ru_stime)


def _end(pid: int, late: threading.Event) -> None:
    """End a command with its children: it has a session of its own, which we made."""
    late.set()
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def alternate(rounds: int, *ways: Way) -> list[tuple[Taken, ...]]:
    """Each way once a turn, in an order that moves on by one from turn to turn; results in the order of the ways."""
    turns = []
    for number in range(rounds):
        taken: dict[int, Taken] = {}
        for place in range(len(ways)):
            which = (place + number) % len(ways)
            taken[which] = ways[which]()
        turns.append(tuple(taken[which] for which in range(len(ways))))
    return turns


def walls(turns: Sequence[tuple[Taken, ...]], which: int) -> list[float]:
    """Seconds on the clock of one of the ways, turn by turn."""
    return [turn[which].wall for turn in turns]
