"""What is measured on the host's side: processes, memory, the hand-over of a card, long queues."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.support.lab import Client, Lab
from tests.support.waiting import eventually

HERE = Path(__file__).resolve().parent


def ours(scope: str) -> dict[int, str]:
    """The agent's long-lived processes of a lab: `{pid: name}`."""
    found = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, environ = (entry / "comm").read_text().strip(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if name.startswith("jr-") and scope.encode() in environ:
            found[int(entry.name)] = name
    return found


def private_mb(pid: int) -> float:
    """Private_Dirty of a process in MB."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    return int(lines["Private_Dirty"].split()[0]) / 1024


def cpu_seconds(pid: int) -> float:
    """CPU time of a process itself, without its children, to the microsecond."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def gaps(client: Client, lab: Lab, count: int) -> tuple[list[float], list[float]]:
    """Milliseconds from one job to the next on a card, ascending: between `at` of exit.json and `began` of the next
    start.json, and from the last thing that a command does to the first thing that the next one does."""
    spec = "device: npu\ncards: [0]\ncode: null\n"
    holder = client.submit(spec + "grace: 0s\ncommand: [sleep, '300']\n", "holder")
    client.until(holder, "RUNNING")
    told = "echo $EPOCHREALTIME; sleep 0.05; echo $EPOCHREALTIME"
    paths = [client.spec(spec + f"command: [bash, -c, '{told}']\n", f"turn{number}") for number in range(count)]
    ids = [row["id"] for row in client.json("submit", *map(str, paths))["jobs"]]
    client.run("cancel", holder)
    eventually(lambda: all((lab.job_folder(id_) / "final.json").exists() for id_ in ids), 120, "the ends of the jobs")
    turns = []
    for id_ in ids:
        folder = lab.job_folder(id_) / "1"
        start, end = (json.loads((folder / name).read_bytes()) for name in ("start.json", "exit.json"))
        own = [float(word) for word in (folder / "log").read_text().split()]
        ended = datetime.fromisoformat(end["at"].replace("Z", "+00:00")).timestamp()
        turns.append((float(start["began"]), ended, own[0], own[-1]))
    turns.sort()
    records = sorted((after[0] - before[1]) * 1000 for before, after in pairwise(turns))
    return records, sorted((after[2] - before[3]) * 1000 for before, after in pairwise(turns))


def long_queue(sizes: Sequence[int]) -> dict[str, list[float]]:
    """CPU milliseconds of steps on a host, by step, with so many waiting jobs; no dispatcher runs beside.

    Each size is measured in a process of its own.
    """
    found = [_steps(size) for size in sizes]
    return {name: [steps[name] for steps in found] for name in found[0]}


def _steps(count: int) -> dict[str, float]:
    place = tempfile.mkdtemp(prefix="jobrunner-bench-queue-")
    try:
        env = {**os.environ, "JOBRUNNER_LEASE_SCOPE": f"bench-{os.getpid()}", "PYTHONPATH": str(HERE.parent)}
        argv = [sys.executable, str(HERE / "hosting.py"), place, str(count)]
        done = subprocess.run(argv, env=env, stdout=subprocess.PIPE, check=True)
        return dict(json.loads(done.stdout))
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _cpu_ms(step: Callable[[], Any], times: int = 5) -> float:
    """The least CPU milliseconds of some tries."""
    best = float("inf")
    for _ in range(times):
        began = time.process_time()
        step()
        best = min(best, time.process_time() - began)
    return best * 1000


def _child(place: str, count: int) -> None:
    """Make a host with so many waiting jobs, and time what submit, start and look do there."""
    from jobrunner.agent import dispatcher, instance, leases, look, stage

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGIO, signal.SIGCHLD})
    os.fsync = lambda _: None  # type: ignore[assignment,misc]  # CPU is measured, not the disk
    dispatcher.ensure_running = lambda _: True
    layout = instance.attach(place).layout

    def job(number: int) -> dict[str, Any]:
        run = {"command": {"argv": ["true"]}, "device": "npu", "cards": 1, "launcher": "nohup", "env": {}}
        request = {"v": 1, "id": f"ajob{number:08d}", "name": "job", "submitted_at": "", "spec": {}, "run": run}
        return {"request": request, "secrets": {}}

    for number in range(count):
        stage.commit(layout, [(job(number), None)], [])
    fresh = iter(range(count, count + 100))
    lock = leases.bind(dispatcher.lock_of(layout))
    loop = dispatcher.Dispatcher(layout, lock)
    # A reading without cards: nothing can start, so a turn is a whole decision and nothing else.
    loop.readings.begin = lambda *_: None
    loop.turn()
    print(
        json.dumps(
            [
                ("`stage` of one job", _cpu_ms(lambda: stage.commit(layout, [(job(next(fresh)), None)], []))),
                ("`look` at one job", _cpu_ms(lambda: look.look(layout, ["ajob00000001"]))),
                ("a dispatcher's turn", _cpu_ms(loop.turn)),
                ("`look` at all, for each", _cpu_ms(lambda: look.look(layout, "live"), 2) / count),
            ]
        )
    )


if __name__ == "__main__":
    _child(sys.argv[1], int(sys.argv[2]))
