"""Hosts for a measure, clients that reach them over ways of some length, and the same by hand."""

from __future__ import annotations

import random
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import hosting
from measure import OURS, Taken, timed
from proxy import Proxy, proxied
from report import Report

from tests.support.lab import Client, Lab
from tests.support.waiting import eventually

SERVER = ["Subsystem sftp internal-sftp"]
"""scp wants it."""


@dataclass
class Bench:
    """A run: where it lies, how often, over which ways."""

    folder: Path
    report: Report
    rounds: int = 7
    trips: tuple[float, ...] = (0.0, 50.0)  # round trips in ms
    rate: float = 0.0  # MB a second that the longer ways carry; 0: no limit
    mb: int = 1000  # of a big file
    _count: int = field(default=0, repr=False)

    def place(self) -> Path:
        """A fresh folder."""
        self._count += 1
        path = self.folder / str(self._count)
        path.mkdir()
        return path

    def few(self, most: int) -> int:
        """So many turns for what takes long, but no more than were asked for."""
        return max(1, min(self.rounds, most))

    @contextmanager
    def labs(self, count: int = 1, *, cards: int = 4) -> Iterator[list[Lab]]:
        """Hosts `h0`, `h1`, … with simulated cards; they and what runs there are gone afterwards."""
        place = self.place()
        try:
            with ExitStack() as stack:
                names = [f"h{number}" for number in range(count)]
                labs = [stack.enter_context(Lab(place / name, alias=name, cards=cards, lines=SERVER)) for name in names]
                stack.callback(_start_nothing_more, labs)
                yield labs
        finally:
            shutil.rmtree(place, ignore_errors=True)

    @contextmanager
    def client(
        self, labs: list[Lab], trip: float = 0.0, *, counted: bool = False
    ) -> Iterator[tuple[Client, Proxy | None]]:
        """A client whose way to the hosts takes so long. With nothing to add it goes straight, unless `counted`."""
        client = Client(self.place(), *labs)
        client.env.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed program has its modules compiled
        try:
            if not trip and not counted:
                yield client, None
                return
            with proxied([lab.sshd.port for lab in labs], trip, self.rate if trip else 0.0) as proxy:
                _lead(client, labs, proxy.ports)
                yield client, proxy
        finally:
            timed([*OURS, "hosts", "disconnect"], client.env, client.folder)
            shutil.rmtree(client.folder, ignore_errors=True)


def _start_nothing_more(labs: list[Lab]) -> None:
    """What still waits there goes: else each end of a job would start the next one while all of them are ended."""
    for lab in labs:
        for queue in lab.root.glob("hosts/*/queue"):
            shutil.rmtree(queue, ignore_errors=True)


def _lead(client: Client, labs: list[Lab], ports: list[int]) -> None:
    """Let a client's SSH configuration lead to other ports; the hosts keep their keys."""
    config = client.folder / "ssh_config"
    text = config.read_text()
    for lab, port in zip(labs, ports, strict=True):
        line = f"  Port {lab.sshd.port}\n"
        assert line in text
        text = text.replace(line, f"  Port {port}\n  HostKeyAlias [127.0.0.1]:{lab.sshd.port}\n")
    config.write_text(text)


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


def flush(folder: Path) -> None:
    """What earlier turns have written goes to the disk now, not during the next one; a busy disk is not waited for."""
    with suppress(subprocess.TimeoutExpired):
        subprocess.run(["sync", "-f", str(folder)], check=False, timeout=5)


class ByHand:
    """The peer: rsync, then ssh with nohup, on connections of their own or (`options`) through a shared one."""

    def __init__(self, lab: Lab, client: Client, *options: str) -> None:
        self.alias, self.client, self.target = lab.alias, client, str(lab.folder / "by-hand")
        self.ssh = ["ssh", "-F", str(client.folder / "ssh_config"), *options]

    def __call__(self, code: Path, times: int = 1) -> Taken:
        ssh, launch = shlex.join(self.ssh), f"cd {self.target} && setsid nohup bash -c true </dev/null >log 2>&1 &"
        copy = f"rsync -a -e {shlex.quote(ssh)} {code}/ {self.alias}:{self.target}/"
        script = f"set -e; for n in $(seq {times}); do {copy}; {ssh} {self.alias} {shlex.quote(launch)}; done"
        return timed(["bash", "-c", script], self.client.env, self.client.folder)

    def run(self, *words: str) -> Taken:
        """A command there, its output thrown away here."""
        argv = [*self.ssh, self.alias, shlex.join(words)]
        return timed(argv, self.client.env, self.client.folder, out=subprocess.DEVNULL)

    def forget(self) -> None:
        """Nothing of the folder is on the host any more."""
        shutil.rmtree(self.target, ignore_errors=True)


class BySubmit:
    """Ours: one `jobrunner submit` of the folder's spec. What the job then does on the host is waited for, untimed."""

    def __init__(self, lab: Lab, client: Client, *options: str) -> None:
        self.lab, self.client, self.options = lab, client, options

    def __call__(self, *specs: Path) -> Taken:
        paths = [str(spec / "spec.yaml" if spec.is_dir() else spec) for spec in specs]
        took = timed([*OURS, "submit", *paths, *self.options], self.client.env, self.client.folder)
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

    def disconnect(self) -> None:
        """No connection is kept."""
        timed([*OURS, "hosts", "disconnect"], self.client.env, self.client.folder)
