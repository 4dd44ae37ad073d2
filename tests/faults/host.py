"""A host that can be broken: its own process ids, name and boot id; a small disk; every process of it can be killed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from jobrunner.lab.processes import carrying, descendants, end_carriers
from jobrunner.lab.sshd import LoopbackHost
from tests.faults.clocks import SettableClock
from tests.support.lab import SCOPE, Lab
from tests.support.waiting import eventually

NAMESPACES = os.getuid() == 0
_INIT = """\
# What becomes process 1 of a host: it keeps an SSH server running, unless `down` is there.
boot=$1 name=$2 folder=$3; shift 3
mount --make-rprivate / || exit 1
mount --bind "$boot" /proc/sys/kernel/random/boot_id || exit 1
mount --bind "$folder/vartmp" /var/tmp || exit 1
hostname "$name" || exit 1
while :; do
  while [ -e "$folder/down" ]; do sleep 0.05; done
  "$@" & wait $!
done
"""
DISK, INODES = 24 * 1024 * 1024, 3000


class NamespacedSshd(LoopbackHost):
    """A loopback host whose process 1 can be killed with everything that runs on it."""

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


class BreakableHost(Lab):
    """A lab with ways to break it. Without root its processes share the machine's ids, and it has no small disk."""

    def __init__(
        self, folder: Path, *, name: str = "lab", small_disk: bool = False, own_clock: bool = False,
        agents: Path | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.inner = folder / "inner"
        (self.inner / "vartmp").mkdir(parents=True)
        super().__init__(folder, alias=name, **options)
        self.clock = SettableClock(self.inner / "clock") if own_clock else None
        if self.clock is not None:
            (folder / "bin" / "python3").write_text(f'#!/bin/sh\nexec "{self.clock.python}" "$@"\n')
        self.strangers: list[subprocess.Popen[bytes]] = []
        self.boot = self.inner / "boot_id"
        self._new_boot()
        if NAMESPACES:
            (self.inner / "init.sh").write_text(_INIT)
            old = self.sshd
            words = ["unshare", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc", "sh"]
            words += [str(self.inner / "init.sh"), str(self.boot), name, str(self.inner)]
            self.sshd = NamespacedSshd(
                old.folder, alias=old.alias, env=old.env, max_sessions=old.max_sessions,
                max_startups=old.max_startups, lines=old.lines, wrapper=words,
            )  # fmt: skip
        self.marks = folder / "marks"
        self.marks.mkdir()
        self.small_disk = small_disk and NAMESPACES
        self.root.mkdir(mode=0o700)
        if self.small_disk:
            _sh("mount", "-t", "tmpfs", "-o", f"size={DISK},nr_inodes={INODES},mode=700", "faults", str(self.root))
        if agents is not None and agents.is_dir():
            shutil.copytree(agents, self.root / "agent", symlinks=True)

    def _new_boot(self) -> None:
        # Written in place: the file is bound over the kernel's.
        self.boot.write_text(f"{uuid.uuid4()}\n")

    def __enter__(self) -> BreakableHost:
        _running.add(self)
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        _running.discard(self)
        try:
            self.part_from_strangers()
            self.sshd.stop()
            eventually(lambda: not end_carriers(SCOPE, self.scope, grace=0), 10, "the end of the host's processes")
        finally:
            shutil.rmtree(f"/tmp/.jobrunner-1-{os.getuid()}-{self.scope}", ignore_errors=True)
            if self.small_disk:
                _sh("umount", "-l", str(self.root))

    # who is there

    def processes(self, *names: str) -> list[int]:
        """Live processes of sessions and jobs; with names, those that `ps -o comm` shows under one of them."""
        return [pid for pid in carrying(SCOPE, self.scope) if not names or _comm(pid) in names]

    def users(self, id_: str) -> list[int]:
        """Live processes of a job."""
        return [pid for pid in self.carriers(id_) if _comm(pid) != "jr-setup" and _state(pid) != "Z"]

    def held(self) -> list[str]:
        """Abstract names that somebody holds: locks of jobs and dispatcher, leases of cards and ports."""
        lines = Path("/proc/net/unix").read_text().splitlines()
        return sorted({line.split()[-1] for line in lines if line.endswith("@" + self.scope)})

    # breaking it

    def kill(self, *names: str) -> int:
        """kill -9 of our own processes of these names; how many there were."""
        return _kill(self.processes(*names))

    def kill_job(self, id_: str) -> int:
        """kill -9 of everything that carries a job's id."""
        return _kill(self.users(id_))

    def kill_tmux(self) -> int:
        """kill -9 of the tmux server of our jobs."""
        return _kill([pid for pid in self.processes() if _comm(pid).startswith("tmux")])

    def kill_everything(self) -> int:
        """kill -9 of all jobs and helpers at once, sessions included; sshd and the boot stay."""
        return _kill(self.processes()) + _kill(self.processes())

    def sshd_down(self) -> None:
        """The SSH server is killed with all its sessions' processes, and stays away."""
        if not NAMESPACES:
            self.sshd.stop()
            return
        (self.inner / "down").touch()
        assert self.sshd.process
        _kill([pid for pid in descendants(self.sshd.process.pid) if _comm(pid).startswith("sshd")])

    def sshd_up(self) -> None:
        """The SSH server is there again, on the same port."""
        if not NAMESPACES:
            self.sshd.start()
            return
        (self.inner / "down").unlink(missing_ok=True)
        eventually(self.sshd._answers, 10, "sshd is back")

    def reboot(self) -> None:
        """Everything dies at once; the same machine comes up with another boot id. Needs namespaces."""
        assert NAMESPACES and self.sshd.process
        mine = descendants(self.sshd.process.pid)  # whoever lost its parent became a child of process 1 there
        self.part_from_strangers()
        self.sshd.stop()
        eventually(lambda: not any(_state(pid) for pid in mine), 10, "the machine is down")
        self._new_boot()
        self.sshd.start()

    def reuse_pids(self) -> list[int]:
        """The pids that start records of unfinished jobs name are given to strangers, those that are free. Which.

        Needs namespaces. The strangers are the same user's, and nothing of ours.
        """
        assert NAMESPACES and self.sshd.process
        named: set[int] = set()
        for path in self.root.glob("hosts/*/jobs/*/*/start.json"):
            if not (path.parents[1] / "final.json").exists():
                start = json.loads(path.read_text())
                named |= {int((start.get(who) or {}).get("pid") or 0) for who in ("supervisor", "command")}
        if not named - {0}:
            return []
        [init] = [pid for pid in descendants(self.sshd.process.pid) if _parent(pid) == self.sshd.process.pid]
        words = ["nsenter", "--target", str(init), "--pid", "--mount", sys.executable, "-ISE"]
        words += [str(Path(__file__).with_name("strangers.py")), *map(str, sorted(named - {0}))]
        self.strangers.append(subprocess.Popen(words, stdout=subprocess.PIPE))
        out = self.strangers[-1].stdout
        assert out
        got: list[int] = json.loads(out.readline() or b"[]")
        self.expected += 1 + 2 * len(got)  # who started them, and each with its child
        eventually(lambda: self.living_strangers() == self.expected, 10, "the strangers are up")
        return got

    expected = 0

    def living_strangers(self) -> int:
        """How many processes of strangers there are."""
        return sum(_state(pid) not in ("Z", "") for each in self.strangers for pid in descendants(each.pid))

    def part_from_strangers(self) -> None:
        """End them all; nobody expects them any more."""
        for each in self.strangers:
            _kill(list(descendants(each.pid)))
            each.kill()
            each.communicate()
        self.strangers.clear()
        self.expected = 0

    def fill(self, leave: int = 0) -> None:
        """No room is left on the disk of the root folder, but for `leave` bytes."""
        with open(self.root / ".ballast", "wb", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(b"\0" * 65536):
                pass
        if leave:
            os.truncate(self.root / ".ballast", max(0, (self.root / ".ballast").stat().st_size - leave))

    def crowd(self) -> None:
        """No further file can be made on the disk of the root folder."""
        (self.root / ".crowd").mkdir(mode=0o700)
        with contextlib.suppress(OSError):
            for number in range(INODES):
                (self.root / ".crowd" / str(number)).touch(0o600)

    def free(self) -> None:
        """There is room again."""
        (self.root / ".ballast").unlink(missing_ok=True)
        shutil.rmtree(self.root / ".crowd", ignore_errors=True)

    def read_only(self, on: bool) -> bool:
        """Make the disk of the root folder read-only; False if somebody is writing to it, which forbids that."""
        done = subprocess.run(["mount", "-o", f"remount,{'ro' if on else 'rw'}", str(self.root)], capture_output=True)
        return done.returncode == 0

    # the truth

    def truth(self, id_: str) -> list[list[str]]:
        """What the job itself wrote down outside of our folders: words of each line."""
        path = self.marks / id_
        return [line.split(" ") for line in path.read_text().splitlines()] if path.exists() else []

    def log_of(self, id_: str, attempt: int) -> bytes:
        """The file of an attempt's log; empty if there is none."""
        try:
            return (self.job_folder(id_) / str(attempt) / "log").read_bytes()
        except (FileNotFoundError, ValueError):
            return b""


_running: set[BreakableHost] = set()


def end_all_hosts() -> None:
    """End every host that runs, whoever uses it: for a run that is broken off."""
    for host in list(_running):
        with contextlib.suppress(AssertionError, OSError):
            host.__exit__()


def _kill(pids: list[int]) -> int:
    count = 0
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            count += 1
    ends = time.monotonic() + 2
    while any(_state(pid) not in ("Z", "") for pid in pids) and time.monotonic() < ends:
        time.sleep(0.002)
    return count


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _state(pid: int) -> str:
    return (_fields(pid) or [""])[0]


def _parent(pid: int) -> int:
    return int((_fields(pid) or ["", "0"])[1])


def _fields(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def _sh(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}: {done.stderr}"
