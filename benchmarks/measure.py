"""Timing of whole processes, of two ways turn by turn, and how it is told."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Taken:
    """What one run took: seconds on the clock, and CPU seconds of the process with its children (not of servers)."""

    wall: float
    cpu: float


Measure = Callable[[], Taken]


def timed(argv: list[str], env: dict[str, str], cwd: Path) -> Taken:
    """Run a command to its end; it must succeed."""
    began = time.perf_counter()
    process = subprocess.Popen(
        argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    with process.stdout as stream:
        said = stream.read()
    _, status, spent = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    took = time.perf_counter() - began
    assert process.returncode == 0, f"{argv}: {said!r}"
    return Taken(took, spent.ru_utime + spent.ru_stime)


def compare(name: str, limit: float, rounds: int, ours: Measure, peer: Measure) -> None:
    """Alternate the two (each goes first every other time) and print a line of the table in RESULTS.md."""
    pairs: list[tuple[Taken, Taken]] = []
    for number in range(rounds):
        if number % 2:
            theirs = peer()
            pairs.append((ours(), theirs))
        else:
            pairs.append((ours(), peer()))
    ratios = sorted(mine.wall / theirs.wall for mine, theirs in pairs)
    wall = [[side.wall for side in column] for column in zip(*pairs, strict=True)]
    cpu = [min(side.cpu for side in column) for column in zip(*pairs, strict=True)]
    spread = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
    print(
        f"| {name} | {statistics.median(wall[0]):.3f} | {statistics.median(wall[1]):.3f} "
        f"| **{statistics.median(ratios):.2f}** | {min(wall[0]) / min(wall[1]):.2f} | {spread} "
        f"| {cpu[0]:.3f} / {cpu[1]:.3f} | {rounds} | {limit} |",
        flush=True,
    )


HEADER = (
    "| what | median, s | peer, s | median ratio | of minima | spread of ratios | least CPU, s | rounds | to reach |\n"
    "|---|---|---|---|---|---|---|---|---|"
)


def tell(name: str, value: str, limit: str) -> None:
    """A line of the second table."""
    print(f"| {name} | {value} | {limit} |", flush=True)


def machine() -> str:
    """A line about this machine and what else it does."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "?",
    )
    return (
        f"{os.cpu_count()} cores ({model}), load {' '.join(f'{value:.1f}' for value in os.getloadavg())} at the start"
    )
