"""Timings as ratios to what one would do by hand: on loopback, both in the same run, turn by turn.

    python benchmarks/run.py [--rounds N] [--only submit|startup|memory|handover|queue|tick]

See README.md in this folder. Cards are simulated.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

import hosting
import sharing
import sweeping
from measure import HEADER, Taken, compare, machine, tell, timed

from tests.support.lab import Client, Lab
from tests.support.waiting import eventually


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

    def __call__(self, code: Path) -> Taken:
        ssh = f"ssh -F {shlex.quote(self.config)}"
        command = f"cd {self.target} && setsid nohup bash -c true </dev/null >log 2>&1 &"
        script = f"rsync -a -e {shlex.quote(ssh)} {code}/ lab:{self.target}/ && {ssh} lab {shlex.quote(command)}"
        return timed(["bash", "-c", script], self.env, self.cwd)

    def forget(self) -> None:
        """Nothing of the folder is on the host any more."""
        shutil.rmtree(self.target, ignore_errors=True)


class BySubmit:
    """Ours: one `jobrunner submit` of the folder's spec. What the job then does on the host is waited for, untimed."""

    def __init__(self, lab: Lab, client: Client) -> None:
        self.lab, self.client = lab, client

    def __call__(self, code: Path) -> Taken:
        argv = [sys.executable, "-m", "jobrunner", "submit", str(code / "spec.yaml")]
        took = timed(argv, self.client.env, self.client.folder)
        self.rest()
        return took

    def rest(self) -> None:
        """Wait until every job is final and none of our processes is left on the host."""
        jobs = [path for path in self.lab.root.glob("hosts/*/jobs/*") if not path.name.startswith(".")]
        eventually(lambda: all((job / "final.json").exists() for job in jobs), 120, "the ends of the jobs")
        eventually(lambda: not hosting.ours(self.lab.scope), 60, "the ends of the agent's processes")

    def forget(self) -> None:
        """Nothing of any folder's contents is on the host any more."""
        for name in ("blobs", "packs"):
            shutil.rmtree(self.lab.root / name, ignore_errors=True)


def submits(lab: Lab, client: Client, rounds: int) -> None:
    """`submit` of ten files; of 2,000 files, first and unchanged."""
    hand, ours = ByHand(lab, client), BySubmit(lab, client)
    print(HEADER, flush=True)
    small = folder(client.folder / "small", 10, 2000)
    ours(small), hand(small)
    compare("submit, ten files, cold", 1.2, 2 * rounds, lambda: ours(small), lambda: hand(small))
    big = folder(client.folder / "big", 2000, 10000)
    ours(big), hand(big)

    def first_ours() -> Taken:
        ours.forget()
        os.sync()
        return ours(big)

    def first_peer() -> Taken:
        hand.forget()
        os.sync()
        return hand(big)

    compare("submit, 2,000 files of 10 kB, first", 1.1, rounds, first_ours, first_peer)
    compare("submit, 2,000 files, unchanged", 1.0, rounds, lambda: ours(big), lambda: hand(big))


def shared(lab: Lab, client: Client, rounds: int) -> None:
    """`submit` of ten files through OpenSSH's client, over a shared connection and cold."""
    small = folder(client.folder / "small", 10, 2000)
    sharing.openssh(lab, client, rounds, code=small, rest=BySubmit(lab, client).rest, cold_hand=ByHand(lab, client))


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
    for name, limit, words in (
        ("`--help`", 0.4, ["--help"]),
        ("`ls --offline`, 10,000 jobs", 0.5, ["ls", "--offline"]),
        ("`ls --offline --all`, 10,000 jobs", 1.0, ["ls", "--offline", "--all"]),
    ):
        argv = [sys.executable, "-m", "jobrunner", *words]
        taken = sorted(timed(argv, env, client.folder).wall for _ in range(rounds))
        bare = sorted(timed([sys.executable, "-c", "pass"], env, client.folder).wall for _ in range(rounds))
        value = f"{taken[rounds // 2]:.3f} s (bare Python: {bare[rounds // 2]:.3f} s)"
        tell(name, value, f"{limit} s")


def memory(lab: Lab, client: Client, rounds: int) -> None:
    """Private memory of an idle dispatcher and supervisor, beside a bare `python3 -I -S`."""
    id_ = client.submit("device: npu\ncards: 4\ngrace: 1s\ncommand: [sleep, '300']\n", "holder")
    client.until(id_, "RUNNING")
    waiting = client.submit("device: npu\ncards: 4\ncommand: 'true'\n", "waits")
    eventually(lambda: {"jr-dispatch", "jr-supervise"} <= set(hosting.ours(lab.scope).values()), 20, "both")
    time.sleep(8)  # until what is freed after the start has been given back
    bare = subprocess.Popen([sys.executable, "-I", "-S", "-c", "print(flush=True); input()"], stdin=-1, stdout=-1)
    assert bare.stdout is not None and bare.stdin is not None
    bare.stdout.readline()
    tell("bare `python3 -I -S`", f"{hosting.private_mb(bare.pid):.1f} MB Private_Dirty", "")
    for pid, name in hosting.ours(lab.scope).items():
        before = hosting.cpu_seconds(pid)
        time.sleep(5)
        used = hosting.cpu_seconds(pid) - before
        tell(f"`{name}`, idle", f"{hosting.private_mb(pid):.1f} MB Private_Dirty, {used:.2f} s of CPU in 5 s", "8 MB")
    bare.communicate(b"\n")
    client.run("cancel", waiting, id_)


def handover(lab: Lab, client: Client, rounds: int) -> None:
    """Fifty jobs on one card, no client: from the end that a record tells to the start that the next one tells."""
    records, commands = hosting.gaps(client, lab, 50)
    for what, found, limit in (
        ("from a job's end to the next one's start on its card (50 jobs)", records, "10 ms"),
        ("from a command's last step to the next one's first (the same jobs)", commands, ""),
    ):
        value = f"median {found[len(found) // 2]:.1f} ms, least {found[0]:.1f} ms, most {found[-1]:.1f} ms"
        tell(what, value, limit)


def queue(lab: Lab, client: Client, rounds: int) -> None:
    """What a long queue costs: CPU of single steps on the host with 10 and with 10,000 waiting jobs."""
    for name, few, many in hosting.long_queue(10_000):
        tell(f"{name}: 10 / 10,000 waiting jobs", f"{few:.2f} ms / {many:.2f} ms of CPU", "")


def ticks(lab: Lab, client: Client, rounds: int) -> None:
    """A tick with nothing to do: 100 schedules in all kinds of zones, of which none is due; as a fresh process."""
    own = Client(client.folder / "ticks", lab)
    own.env.pop("PYTHONDONTWRITEBYTECODE", None)
    zones = ("Asia/Shanghai", "Europe/Berlin", "America/New_York", "UTC", "Australia/Lord_Howe")
    specs = []
    for number in range(100):
        cron = f"{number % 60} {3 + number % 20} 1 1 *"  # on New Year's Day
        schedule = f"schedule: {{cron: '{cron}', timezone: {zones[number % 5]}}}\n"
        specs.append(str(own.spec(f"device: cpu\ncode: null\ncommand: 'true'\n{schedule}", f"s{number}")))
    own.run("schedule", "add", *specs)
    argv = [sys.executable, "-m", "jobrunner", "tick"]
    taken = [timed(argv, own.env, own.folder) for _ in range(rounds + 1)][1:]
    wall, cpu = sorted(item.wall for item in taken), min(item.cpu for item in taken)
    value = f"{wall[rounds // 2]:.3f} s (least {wall[0]:.3f} s, least CPU {cpu:.3f} s)"
    tell("`tick`, 100 schedules, nothing due", value, "0.5 s")


def main() -> None:
    parts = {
        "submit": submits,
        "shared": shared,
        "startup": startup,
        "memory": memory,
        "handover": handover,
        "queue": queue,
        "tick": ticks,
        "grid": sweeping.grid,
        "trials": sweeping.short_trials,
    }
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--only", choices=sorted(parts))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="jobrunner-bench-") as place, Lab(Path(place) / "lab") as lab:
        client = Client(Path(place) / "client", lab)
        client.env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its modules compiled
        print(f"Python {platform.python_version()}; {machine()}; simulated cards\n", flush=True)
        for name, part in parts.items():
            if options.only in (None, name):
                part(lab, client, options.rounds)
                print(f"\n(load {os.getloadavg()[0]:.1f} after `{name}`)\n", flush=True)


if __name__ == "__main__":
    main()
