"""Timings as ratios to what one would do by hand, on loopback, both in the same run, turn by turn.

    python benchmarks/run.py [--rounds N] [--only NAME]

The peer of `submit` is `rsync -a` of the folder, then `ssh … 'setsid nohup … &'`, both cold. Cards are simulated.
"""

from __future__ import annotations

import argparse
import os
import random
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.support.lab import Client, Lab

Measure = Callable[[], float]


def timed(argv: list[str], env: dict[str, str], cwd: Path) -> float:
    """Seconds that a command takes; it must succeed."""
    began = time.perf_counter()
    done = subprocess.run(argv, env=env, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True)
    took = time.perf_counter() - began
    assert done.returncode == 0, f"{argv}: {done.stdout!r} {done.stderr!r}"
    return took


def folder(path: Path, files: int, size: int) -> Path:
    """A code folder of `files` Python-like files of `size` bytes."""
    shutil.rmtree(path, ignore_errors=True)
    path.mkdir(parents=True)
    words = random.Random(1)
    for number in range(files):
        file = path / f"pkg{number % 20}" / f"mod{number}.py"
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"x{words.randrange(10**9)} = {words.random()}\n" for _ in range(size // 32)))
    (path / "spec.yaml").write_text("name: bench\ndevice: cpu\ncommand: 'true'\n")
    return path


class ByHand:
    """The peer: rsync, then ssh with nohup, on connections of their own."""

    def __init__(self, lab: Lab, client: Client) -> None:
        self.config, self.env, self.target = str(lab.sshd.ssh_config), client.env, str(lab.folder / "by-hand")
        self.cwd = client.folder

    def __call__(self, code: Path) -> float:
        ssh = f"ssh -F {shlex.quote(self.config)}"
        command = f"cd {self.target} && setsid nohup bash -c true </dev/null >log 2>&1 &"
        script = f"rsync -a -e {shlex.quote(ssh)} {code}/ lab:{self.target}/ && {ssh} lab {shlex.quote(command)}"
        return timed(["bash", "-c", script], self.env, self.cwd)

    def forget(self) -> None:
        """Nothing of the folder is on the host any more."""
        shutil.rmtree(self.target, ignore_errors=True)


def compare(name: str, limit: float, rounds: int, ours: Measure, peer: Measure) -> None:
    """Alternate the two, and print the ratio of the medians with the extremes."""
    pairs = [(ours(), peer()) for _ in range(rounds)]
    mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    ratios = sorted(a / b for a, b in pairs)
    print(
        f"{name:<34} {mine:6.3f} s  peer {theirs:6.3f} s  ratio {mine / theirs:5.2f} "
        f"({ratios[0]:.2f} to {ratios[-1]:.2f}, {rounds} rounds; to reach: {limit})",
        flush=True,
    )


def submits(lab: Lab, client: Client, rounds: int) -> None:
    """`submit` of ten files; of 2,000 files, first and unchanged."""
    hand = ByHand(lab, client)

    def ours(code: Path) -> float:
        return timed([sys.executable, "-m", "jobrunner", "submit", str(code / "spec.yaml")], client.env, client.folder)

    small = folder(client.folder / "small", 10, 2000)
    ours(small), hand(small)
    compare("submit, ten files, cold", 1.2, rounds, lambda: ours(small), lambda: hand(small))
    big = folder(client.folder / "big", 2000, 10000)

    def first_ours() -> float:
        shutil.rmtree(lab.root / "blobs", ignore_errors=True)
        return ours(big)

    def first_peer() -> float:
        hand.forget()
        return hand(big)

    compare("submit, 2,000 files, first", 1.1, max(3, rounds // 2), first_ours, first_peer)
    compare("submit, 2,000 files, unchanged", 1.0, max(3, rounds // 2), lambda: ours(big), lambda: hand(big))


def startup(lab: Lab, client: Client, rounds: int) -> None:
    """`--help` and `ls --offline` with 10,000 jobs, beside a bare interpreter."""
    from jobrunner.core.jobs import JobRow
    from jobrunner.core.states import JobState
    from jobrunner.ledger import Ledger

    with Ledger(client.folder / "many" / "ledger.db") as ledger:
        for number in range(10_000):
            at = f"2026-01-01T00:00:{number % 60:02d}.{number:06d}Z"
            row = JobRow(f"a{number:09d}", f"job{number}", JobState.STAGING, host="lab", submitted_at=at)
            ledger.insert_staging(row, {}, "", None, {})
            view = {"id": row.id, "name": row.name, "state": "COMPLETED", "attempt": 1, "submitted_at": at}
            ledger.apply_view("lab", "i", view, at)
    env = {**client.env, "JOBRUNNER_HOME": str(client.folder / "many")}
    bare = [sys.executable, "-c", "pass"]
    for name, limit, words in (
        ("--help", 0.4, ["--help"]),
        ("ls --offline, 10,000 jobs", 0.5, ["ls", "--offline"]),
        ("ls --offline --all, 10,000 jobs", 1.0, ["ls", "--offline", "--all"]),
    ):
        argv = [sys.executable, "-m", "jobrunner", *words]
        pairs = [(timed(argv, env, client.folder), timed(bare, env, client.folder)) for _ in range(rounds)]
        mine, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
        print(f"{name:<34} {mine:6.3f} s  beside `python -c pass` {theirs:.3f} s (to reach: {limit} s)", flush=True)


def memory(lab: Lab, client: Client, rounds: int) -> None:
    """Private memory of an idle dispatcher and supervisor, beside a bare `python3 -I -S`."""
    id_ = client.submit("device: npu\ncards: 4\ngrace: 1s\ncommand: [sleep, '300']\n", "holder")
    client.until(id_, "RUNNING")
    waiting = client.submit("device: npu\ncards: 4\ncommand: 'true'\n", "waits")
    time.sleep(8)
    bare = subprocess.Popen([sys.executable, "-I", "-S", "-c", "input()"], stdin=subprocess.PIPE)
    time.sleep(0.3)
    _tell("bare python3 -I -S", bare.pid)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            name, environ = (entry / "comm").read_text().strip(), (entry / "environ").read_bytes()
        except OSError:
            continue
        if name.startswith("jr-") and lab.scope.encode() in environ:
            before = _cpu(entry)
            time.sleep(5)
            _tell(name, int(entry.name), _cpu(entry) - before)
    bare.kill()
    bare.wait()
    client.run("cancel", waiting, id_)


def _cpu(entry: Path) -> float:
    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _tell(name: str, pid: int, cpu: float | None = None) -> None:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
    dirty, rss = (int(lines[key].split()[0]) / 1024 for key in ("Private_Dirty", "Rss"))
    idle = "" if cpu is None else f", {cpu:.2f} s of CPU in 5 s"
    print(f"{name:<34} {dirty:5.1f} MB Private_Dirty, {rss:5.1f} MB resident{idle}", flush=True)


def main() -> None:
    parts = {"submit": submits, "startup": startup, "memory": memory}
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", choices=sorted(parts))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jobrunner-bench-") as place, Lab(Path(place) / "lab") as lab:
        client = Client(Path(place) / "client", lab)
        print(f"Python {sys.version.split()[0]}, {os.cpu_count()} cores; simulated cards", flush=True)
        for name, part in parts.items():
            if options.only in (None, name):
                part(lab, client, options.rounds)


if __name__ == "__main__":
    main()
