"""Processes of the demo's host: who is alive, which belong to it, and how they are ended. Linux only (`/proc`)."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

PROC = Path("/proc")


def start_ticks(pid: int) -> int | None:
    """When a live process started, in clock ticks since boot; None if there is none. Pid and ticks name it surely."""
    try:
        stat = (PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def is_alive(pid: int, ticks: int | None) -> bool:
    """True if this very process still runs (a zombie does not)."""
    return ticks is not None and start_ticks(pid) == ticks


def carrying(name: str, value: str) -> dict[int, int]:
    """Live processes of ours that have NAME=VALUE in their environment: start ticks by pid. Never ourselves."""
    mark = f"{name}={value}".encode()
    found: dict[int, int] = {}
    for entry in PROC.iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            if mark not in (entry / "environ").read_bytes().split(b"\0"):
                continue
        except OSError:  # it has gone, or it is somebody else's
            continue
        ticks = start_ticks(int(entry.name))
        if ticks is not None:
            found[int(entry.name)] = ticks
    return found


def descendants(pid: int) -> dict[int, int]:
    """Live processes that descend from a process: start ticks by pid."""
    children: dict[int, list[int]] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_bytes()
            except OSError:
                continue
            parent = int(stat[stat.rindex(b")") + 2 :].split()[1])
            children.setdefault(parent, []).append(int(entry.name))
    found: dict[int, int] = {}
    waiting = [pid]
    while waiting:
        for child in children.get(waiting.pop(), []):
            ticks = start_ticks(child)
            if ticks is not None and child not in found:
                found[child] = ticks
                waiting.append(child)
    return found


def send(processes: dict[int, int], number: signal.Signals) -> None:
    """Signal each process that is still the one meant."""
    for pid, ticks in processes.items():
        if is_alive(pid, ticks):
            try:
                os.kill(pid, number)
            except OSError:  # it has gone meanwhile
                pass


def wait_gone(processes: dict[int, int], seconds: float) -> dict[int, int]:
    """Those that still live when the time is over."""
    limit = time.monotonic() + seconds
    while True:
        left = {pid: ticks for pid, ticks in processes.items() if is_alive(pid, ticks)}
        if not left or time.monotonic() >= limit:
            return left
        time.sleep(0.02)


def end_all(processes: dict[int, int], *, grace: float = 5.0) -> dict[int, int]:
    """TERM, wait up to `grace` seconds, KILL. Returns those that live even so."""
    send(processes, signal.SIGTERM)
    left = wait_gone(processes, grace)
    send(left, signal.SIGKILL)
    return wait_gone(left, 5.0)


def end_carriers(name: str, value: str, *, grace: float = 5.0) -> dict[int, int]:
    """End every process of ours that carries NAME=VALUE, and those they start meanwhile. Returns what would not end."""
    left: dict[int, int] = {}
    for _ in range(3):
        found = carrying(name, value)
        if not found:
            return {}
        left = end_all(found, grace=grace)
    return left
