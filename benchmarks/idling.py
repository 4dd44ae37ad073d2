"""What costs something while nothing happens, and what a long queue costs: processes on a host, ticks."""

from __future__ import annotations

import subprocess
import sys
import time

import hosting
from measure import OURS, timed
from places import Bench
from report import Aim

from tests.support.waiting import eventually

SETTLE_S, WATCH_S = 8.0, 10.0
SIZES = (100, 1_000, 10_000)
GROWTH = 1.3
"""A cost that "does not grow": at most so many times that with a hundred jobs; a CPU's caches are no part of it."""


def memory(bench: Bench) -> None:
    """Private memory and CPU of an idle dispatcher and supervisor, a bare `python3 -I -S` beside."""
    with bench.labs() as [lab], bench.client([lab]) as (client, _):
        holder = client.submit("device: npu\ncards: 4\ngrace: 1s\ncommand: [sleep, '600']\n", "holder")
        client.until(holder, "RUNNING")
        client.submit("device: npu\ncards: 4\ncommand: 'true'\n", "waits")
        eventually(lambda: {"jr-dispatch", "jr-supervise"} <= set(hosting.ours(lab.scope).values()), 30, "both")
        time.sleep(SETTLE_S)  # until what is freed after the start has been given back
        argv = [sys.executable, "-I", "-S", "-c", "print(flush=True); input()"]
        bare = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert bare.stdout is not None
        bare.stdout.readline()
        peer = f"bare `python3 -I -S`: {hosting.private_mb(bare.pid):.1f} MB"
        found = {pid: name for pid, name in hosting.ours(lab.scope).items() if name in ("jr-dispatch", "jr-supervise")}
        before = {pid: hosting.cpu_seconds(pid) for pid in found}
        began = time.monotonic()
        time.sleep(WATCH_S)
        for pid, name in sorted(found.items(), key=lambda item: item[1]):
            percent = (hosting.cpu_seconds(pid) - before[pid]) / (time.monotonic() - began) * 100
            bench.report.value(
                f"`{name}`, Private_Dirty", [hosting.private_mb(pid)], Aim(8, "MB"), unit="MB", peer=peer
            )
            bench.report.value(f"`{name}`, CPU when idle", [percent], Aim(0.1, "%"), unit="%")
        bare.communicate(b"\n")
    _ahead(bench)


def _ahead(bench: Bench) -> None:
    """Private memory of what waits, forked ahead, to become the next job's supervisor and its command."""
    spec, names = "device: npu\ncards: 4\ngrace: 1s\ncommand: [sleep, '600']\n", {"jr-spare", "jr-setup"}
    with bench.labs() as [lab], bench.client([lab]) as (client, _):
        client.run("submit", *(str(client.spec(spec, name)) for name in ("holder", "waits")))
        eventually(lambda: names <= set(hosting.ours(lab.scope).values()), 30, "both")
        time.sleep(SETTLE_S)
        found = {name: pid for pid, name in hosting.ours(lab.scope).items()}
        for name in sorted(names):
            what = f"`{name}`, forked ahead, Private_Dirty"
            bench.report.value(what, [hosting.private_mb(found[name])], Aim(8, "MB"), unit="MB")


def queue(bench: Bench) -> None:
    """What a long queue costs: CPU of single steps on the host with 100, 1,000 and 10,000 waiting jobs."""
    for name, taken in hosting.long_queue(SIZES).items():
        what = f"{name}: {SIZES[-1]:,} waiting jobs ({SIZES[1]:,}: {taken[1]:.2f} ms of CPU)"
        bench.report.ratio(what, [taken[-1]], f"with {SIZES[0]}", [taken[0]], Aim(GROWTH), unit="ms of CPU")


def ticks(bench: Bench) -> None:
    """A tick with nothing to do: 100 schedules in all kinds of zones, of which none is due; as a fresh process."""
    zones = ("Asia/Shanghai", "Europe/Berlin", "America/New_York", "UTC", "Australia/Lord_Howe")
    with bench.labs() as [lab], bench.client([lab]) as (own, _):
        specs = []
        for number in range(100):
            cron = f"{number % 60} {3 + number % 20} 1 1 *"  # on New Year's Day
            schedule = f"schedule: {{cron: '{cron}', timezone: {zones[number % 5]}}}\n"
            specs.append(str(own.spec(f"device: cpu\ncode: null\ncommand: 'true'\n{schedule}", f"s{number}")))
        own.run("schedule", "add", *specs)
        taken = [timed([*OURS, "tick"], own.env, own.folder) for _ in range(bench.rounds + 1)][1:]
        cpu = min(item.cpu for item in taken)
        what = f"`tick`, 100 schedules, nothing due (least CPU {cpu:.2f} s)"
        bench.report.value(what, [item.wall for item in taken], Aim(0.5, "s"), unit="s")
