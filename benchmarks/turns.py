"""The time between one job's end and the next one's start on one card: ours, task-spooler's, Slurm's."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from itertools import pairwise
from pathlib import Path

import hosting
import slurm
from places import Bench
from report import Aim

from tests.support.waiting import eventually

JOBS, SLURM_JOBS = 50, 6
COMMAND = "echo $EPOCHREALTIME; sleep 0.05; echo $EPOCHREALTIME"
WHAT = f"from a command's last step to the next one's first, {JOBS} jobs on one card"


def _gaps(logs: list[Path]) -> list[float]:
    """Milliseconds between the last thing that one command tells and the first that the next one does."""
    told = sorted(tuple(float(word) for word in log.read_text().split()) for log in logs)
    return [(after[0] - before[-1]) * 1000 for before, after in pairwise(told)]


def spooled(folder: Path) -> list[float]:
    """The same jobs in task-spooler's queue, behind one that runs until all are there."""
    folder.mkdir()
    env = {**os.environ, "TS_SOCKET": str(folder / "socket"), "TMPDIR": str(folder)}

    def tsp(*words: str) -> str:
        done = subprocess.run(
            ["tsp", *words], env=env, cwd=folder, capture_output=True, text=True, timeout=60, check=True
        )
        return done.stdout.strip()

    try:
        first = tsp("sleep", "900")
        logs = [folder / f"log{number}" for number in range(JOBS)]
        for log in logs:
            tsp(
                "-n", "bash", "-c", f"({COMMAND}) >{log}"
            )  # without -n it would keep a log in a file, and tell its number
        os.kill(int(tsp("-p", first)), 15)
        tsp("-w", str(int(first) + JOBS))
        return _gaps(logs)
    finally:
        subprocess.run(["tsp", "-K"], env=env, cwd=folder, capture_output=True, timeout=60, check=False)
        shutil.rmtree(folder, ignore_errors=True)


def slurmed(bench: Bench) -> list[float]:
    """A few of them in Slurm's queue, whose scheduler by default looks every other second."""
    with slurm.cluster(bench.place()) as cluster:
        holder = cluster.hold()
        logs = [cluster.folder / f"log{number}" for number in range(SLURM_JOBS)]
        last = [cluster.batch(f"bash -c '{COMMAND}'", log) for log in logs][-1]
        cluster.call("scancel", holder)

        def over() -> bool:
            time.sleep(0.2)
            return cluster.state(last) == "COMPLETED"

        eventually(over, 30 + 10 * SLURM_JOBS, "the end of Slurm's jobs")
        return _gaps(logs)


def handover(bench: Bench) -> None:
    """50 jobs on one card, no client, turn by turn with task-spooler; a few with Slurm."""
    records, ours, theirs = list[float](), list[float](), list[float]()
    spooler = shutil.which("tsp") is not None
    for number in range(bench.few(3)):
        if spooler and number % 2:
            theirs.append(statistics.median(spooled(bench.place() / "tsp")))
        with bench.labs() as [lab], bench.client([lab]) as (client, _):
            between, commands = hosting.gaps(client, lab, JOBS)
        records += between
        ours.append(statistics.median(commands))
        if spooler and not number % 2:
            theirs.append(statistics.median(spooled(bench.place() / "tsp")))
    bench.report.value(
        f"from `at` of exit.json to `began` of the next start.json, {JOBS} jobs on one card",
        records,
        Aim(10, "ms"),
        unit="ms",
    )
    if spooler:
        bench.report.ratio(WHAT, ours, "task-spooler (no journal)", theirs, Aim(5), unit="ms")
    else:
        bench.report.missing(WHAT, "task-spooler")
    if slurm.available():
        gap = statistics.median(slurmed(bench))
        bench.report.ratio(WHAT, ours, f"Slurm ({SLURM_JOBS} jobs)", [gap] * len(ours), Aim(1), unit="ms")
    else:
        bench.report.missing(WHAT, "Slurm")
