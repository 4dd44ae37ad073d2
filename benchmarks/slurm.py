"""Slurm on one node with one CPU: munged, slurmctld and slurmd of our own, on ports and sockets of their own.

Nothing of the machine's own Slurm or MUNGE is read or changed. Everything is ended by the ids of the processes.
"""

from __future__ import annotations

import contextlib
import getpass
import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from jobrunner.lab.processes import end_carriers
from tests.support.waiting import eventually

SBIN = "/usr/sbin:/usr/local/sbin:/sbin"
START_S = 60.0


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{SBIN}")


def available() -> bool:
    """True if all of Slurm's programs are here, and munged."""
    return all(_find(name) for name in ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "scontrol", "sinfo"))


def _port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Cluster:
    """A running one. `conf` is what SLURM_CONF has to name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.conf = folder / "slurm.conf"
        self.env = {**os.environ, "SLURM_CONF": str(self.conf)}
        self._processes: list[subprocess.Popen[bytes]] = []

    def call(self, *words: str, limit: float = 60.0) -> str:
        """One of Slurm's commands; what it says."""
        done = subprocess.run(words, env=self.env, cwd=self.folder, capture_output=True, text=True, timeout=limit)
        if done.returncode:
            raise RuntimeError(f"{words}: {done.stderr.strip()}")
        return done.stdout

    def batch(self, line: str, out: Path | str = "/dev/null") -> str:
        """Submit a shell line; the job's number."""
        return self.call("sbatch", "--parsable", "-o", str(out), "--wrap", line).strip()

    def hold(self) -> str:
        """Let a job have the only CPU; its number once it runs."""
        number = self.batch("sleep 900")
        eventually(lambda: self.state(number) == "RUNNING", START_S, "the job that holds Slurm's CPU")
        return number

    def state(self, number: str) -> str:
        """A job's state, as Slurm calls it."""
        found = re.search(r"JobState=(\w+)", self.call("scontrol", "-o", "show", "job", number))
        return found.group(1) if found else ""

    def start(self) -> None:
        """Bring it up; returns when the node takes jobs."""
        _write(self.folder, self.conf)
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        munge = ["munged", "-F", f"--key-file={key}", f"--socket={self.folder / 'munge.socket'}"]
        munge += [f"--{kind}-file={self.folder / f'munge.{kind}'}" for kind in ("pid", "log", "seed")]
        self._launch(*munge)
        eventually(lambda: (self.folder / "munge.socket").exists(), START_S, "munged's socket")
        self._launch("slurmctld", "-D", "-f", str(self.conf))
        self._launch("slurmd", "-D", "-f", str(self.conf), "-N", "bench")

        def ready() -> bool:
            assert all(process.poll() is None for process in self._processes), self._complaint()
            time.sleep(0.2)
            done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=self.env, capture_output=True, text=True, timeout=60)
            return done.stdout.strip() == "idle"

        try:
            eventually(ready, START_S, "Slurm's node")
        except AssertionError as error:
            raise RuntimeError(f"{error}: {self._complaint()}") from error

    def _launch(self, name: str, *words: str) -> None:
        program = _find(name)
        assert program is not None
        with open(self.folder / f"{name}.out", "wb") as out:
            process = subprocess.Popen(
                [program, *words], env=self.env, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)

    def _complaint(self) -> str:
        texts = [path.read_text("utf-8", "replace").splitlines()[-3:] for path in sorted(self.folder.glob("*.out"))]
        return " / ".join(line for lines in texts for line in lines)[-800:]

    def stop(self) -> None:
        """End the jobs, then what was started here, then what carries our configuration still."""
        with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired, OSError):
            self.call("scancel", "-u", getpass.getuser())
        for process in reversed(self._processes):
            process.terminate()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
            if process.poll() is None:
                process.kill()
                process.wait()
        end_carriers("SLURM_CONF", str(self.conf))


def _write(folder: Path, conf: Path) -> None:
    folder.chmod(0o755)  # munged wants its socket to be reachable
    host = socket.gethostname().split(".")[0]
    for name in ("state", "spool"):
        (folder / name).mkdir()
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    conf.write_text(
        f"ClusterName=bench\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={_port()}\nSlurmdPort={_port()}\n"
        f"SlurmUser={getpass.getuser()}\nSlurmdUser={getpass.getuser()}\n"
        f"AuthType=auth/munge\nAuthInfo=socket={folder / 'munge.socket'}\nCredType=cred/munge\n"
        f"StateSaveLocation={folder / 'state'}\nSlurmdSpoolDir={folder / 'spool'}\n"
        f"SlurmctldPidFile={folder / 'slurmctld.pid'}\nSlurmdPidFile={folder / 'slurmd.pid'}\n"
        f"SlurmctldLogFile={folder / 'slurmctld.log'}\nSlurmdLogFile={folder / 'slurmd.log'}\n"
        "ProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nMpiDefault=none\nReturnToService=2\n"
        "SelectType=select/cons_tres\nSelectTypeParameters=CR_CPU\nSlurmdParameters=config_overrides\n"
        "AccountingStorageType=accounting_storage/none\nJobAcctGatherType=jobacct_gather/none\n"
        f"NodeName=bench NodeHostname={host} NodeAddr=127.0.0.1 CPUs=1 RealMemory=100 State=UNKNOWN\n"
        "PartitionName=bench Nodes=bench Default=YES MaxTime=INFINITE State=UP\n"
    )


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Slurm while the block runs."""
    found = Cluster(folder)
    try:
        found.start()
        yield found
    finally:
        found.stop()
