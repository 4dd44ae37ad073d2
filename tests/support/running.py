"""Jobs that really run on a host of the tests: the agent's runtime driven through its own operations."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

from tests.support.agentproc import AgentHost, Channel, Tree, job, until

FINAL = ("COMPLETED", "FAILED", "TIMEOUT", "CANCELLED", "LOST")


class Runs:
    """Submits jobs to an `AgentHost` and looks at them, over one channel."""

    def __init__(self, host: AgentHost, **env: str) -> None:
        self.host = host
        self.env = env
        self.channel: Channel = host.channel(**env)

    def submit(self, job_id: str, shell: str | None = None, tree: Tree | None = None, **run: Any) -> dict[str, Any]:
        """Stage a job; its view. `shell` is a command string."""
        if shell is not None:
            run["command"] = {"shell": shell}
        run.setdefault("grace_s", 2)
        entry = job(job_id, **run)
        entry["secrets"] = run.pop("secret_values", {})
        entry["request"]["run"].pop("secret_values", None)
        return self.channel.stage([entry], tree)["jobs"][job_id]

    def view(self, job_id: str) -> dict[str, Any]:
        """The job's view, reconciled."""
        return self.channel.ask("look", jobs=[job_id])["jobs"][job_id]

    def state(self, job_id: str, *states: str, within: float = 15.0) -> dict[str, Any]:
        """Wait until the job is in one of the states; its view."""
        return until(lambda: (v := self.view(job_id))["state"] in states and v, within, f"{job_id} is {states}")

    def final(self, job_id: str, within: float = 15.0) -> dict[str, Any]:
        """Wait until the job is final; its view."""
        return self.state(job_id, *FINAL, within=within)

    def running(self, job_id: str) -> dict[str, Any]:
        """Wait until the job's command runs; its start record."""
        until(lambda: (v := self.view(job_id))["state"] == "RUNNING" and v["phase"] == "command", what=f"{job_id} runs")
        return self.start(job_id)

    def start(self, job_id: str, attempt: int | None = None) -> dict[str, Any]:
        """The start record of an attempt, of the newest by default."""
        number = attempt or self.view(job_id)["attempt"]
        return json.loads((self.host.job(job_id) / str(number) / "start.json").read_bytes())

    def log(self, job_id: str, attempt: int = 1) -> str:
        """An attempt's log so far."""
        try:
            return (self.host.job(job_id) / str(attempt) / "log").read_text(errors="surrogateescape")
        except FileNotFoundError:
            return ""

    def logged(self, job_id: str, text: str, attempt: int = 1) -> str:
        """Wait until the log has `text`; the log."""
        return until(lambda: text in (found := self.log(job_id, attempt)) and found, what=f"{text!r} in the log")

    def events(self, job_id: str) -> list[dict[str, Any]]:
        """The job's journal."""
        return [json.loads(line) for line in (self.host.job(job_id) / "events.jsonl").read_text().splitlines()]

    def dispatcher(self) -> int:
        """The pid of the dispatcher, or 0. Its children, which read the cards or get a start ready, have its name too."""
        found = self.agents("jr-dispatch")
        return next((pid for pid in found if parent(pid) not in found and not gone(pid)), 0)

    def agents(self, *names: str) -> list[int]:
        """Pids of this host's own processes with one of these names: jr-dispatch, jr-supervise, jr-setup."""
        found = []
        for pid in living(f"JOBRUNNER_LEASE_SCOPE={self.host.scope}"):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() in names:
                    found.append(pid)
        return found


def living(mark: str) -> list[int]:
    """Pids of the live processes with `mark` (`NAME=value`) in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                state = (entry / "stat").read_bytes().rpartition(b")")[2].split()[0]
                if state != b"Z" and mark.encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return found


def of_job(job_id: str) -> list[int]:
    """Pids of the live processes that carry a job's id."""
    return living(f"JOBRUNNER_JOB_ID={job_id}")


def parent(pid: int) -> int:
    """The pid of a process's parent; 0 if it has ended."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except OSError:
        return 0


def gone(pid: int) -> bool:
    """True if no live process has that pid."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def kill(pid: int) -> None:
    """SIGKILL, and wait until it is gone."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    until(lambda: gone(pid), what=f"{pid} is gone")


def private_dirty_kb(pid: int) -> int:
    """`Private_Dirty` of a process in KiB."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1])
    raise AssertionError("no Private_Dirty")


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settle_down(seconds: float) -> None:
    """Let a measured span pass."""
    time.sleep(seconds)
