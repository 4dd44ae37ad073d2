"""A sweep over two hosts whose submit, `serve`, `tick`, helpers and machines are killed at random points."""

from __future__ import annotations

import json
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.commands import Laptop
from tests.faults.host import NAMESPACES, BreakableHost

CLIENT = ("submit", "serve", "serve", "tick")
HOST = ("jr-dispatch", "jr-supervise", "both", "everything", "sshd", "reboot")
TRIAL = """import os, sys, time
def mark(word):
    handle = os.open(os.environ["RAN"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(handle, ("%s %s %s\\n" % (word, sys.argv[1], os.environ["JOBRUNNER_JOB_ID"])).encode())
    os.close(handle)
mark("start")
print("loss=%s" % sys.argv[1], flush=True)
time.sleep(float(os.environ["PACE"]))
mark("end")
"""
SPEC = """device: npu
command: [python3, -ISE, train.py, "{{x}}"]
env: {{RAN: {ran}, PACE: "{pace}"}}
grace: 1s
metrics: {{loss: 'loss=(.+)'}}
sweep: {sweep}
"""


@dataclass
class Kills:
    """What was killed, in order, and what came of the sweep."""

    done: list[str] = field(default_factory=list)
    retried: int = 0
    moved: int = 0
    seconds: float = 0.0


class SweepPlay:
    """One sweep of so many points, killed so often; a seed decides at which moments."""

    def __init__(self, folder: Path, seed: int, *, points: int, kills: int, method: str = "grid") -> None:
        self.folder, self.points, self.kills, self.method = folder, points, kills, method
        self.chance = random.Random(f"sweep {seed}")
        self.pace = self.chance.uniform(0.5, 1.2) * kills * 6 / points  # seconds a trial: it is to outlast the kills
        self.story = Kills()
        self.ran = folder / "ran"

    def run(self) -> Kills:
        """Play it; AssertionError if a point did not run to its end exactly once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        hosts = self.folder / "hosts"
        with (
            BreakableHost(hosts / "one", name="one", cards=4) as one,
            BreakableHost(hosts / "two", name="two", cards=2) as two,
        ):
            self.hosts = (one, two)
            self.laptop = Laptop(self.folder / "laptop", one, two)
            spec = str(self._spec())
            self._send(spec)
            self._live()
            self._finish(spec)
            self._check()
        self.story.seconds = time.monotonic() - began
        return self.story

    def _spec(self) -> Path:
        values = [f"0.{number:03d}" for number in range(1, self.points + 1)]
        sweep: dict[str, Any] = {"parameters": {"x": values}, "objective": "loss min"}
        if self.method != "grid":
            sweep.update(method=self.method, trials=self.points, parallel=6)
        text = SPEC.format(ran=self.ran, pace=self.pace, sweep=json.dumps(sweep))
        return self.laptop.spec(text, "kills", train__py=TRIAL)

    def _send(self, spec: str) -> None:
        """Submits that are killed, while the hosts are, too; the last one is left alone."""
        for _ in range(max(1, self.kills // 5)):
            command = self.laptop.begin("submit", spec)
            time.sleep(self.chance.uniform(0.0, 1.2))
            if self.chance.random() < 0.3:
                self._strike_host()
            if command.ended.is_set() and command.code == 0:
                return
            command.signal(signal.SIGKILL)
            command.wait(20)
            self._note("submit")
            if command.code == 0 or self._sent():
                return
        self.laptop.run("submit", spec, code=None)

    def _sent(self) -> bool:
        """True if a submit was killed after its last step: the next one would rightly be another sweep."""
        known = self.laptop.json("sweep", "ls", "--offline")["sweeps"]
        return any(sweep["state"] != "staging" for sweep in known)

    def _live(self) -> None:
        """`serve` and `tick` are killed while the trials run, and so are the hosts' helpers and the hosts."""
        while len(self.story.done) < self.kills:
            if self.chance.random() < 0.5:
                words = self.chance.choice((("serve", "--every", "1s"), ("tick",)))
                commands = [self.laptop.begin(*words) for _ in range(self.chance.choice((1, 1, 2)))]
                time.sleep(self.chance.uniform(0.05, 1.5))
                if self.chance.random() < 0.4:
                    self._strike_host()
                for command in commands:
                    command.signal(signal.SIGKILL)
                    command.wait(20)
                    assert "Traceback" not in command.told(), command.told()
                self._note(words[0])
            else:
                time.sleep(self.chance.uniform(0.0, 0.5))
                self._strike_host()

    def _strike_host(self) -> None:
        kinds = HOST if NAMESPACES else HOST[:-1]
        host, kind = self.chance.choice(self.hosts), self.chance.choice(kinds)
        if kind == "reboot":
            host.reboot()
        elif kind == "everything":
            host.kill_everything()
        elif kind == "sshd":
            host.sshd_down()
            time.sleep(self.chance.uniform(0.1, 0.6))
            host.sshd_up()
        else:
            host.kill(*(("jr-dispatch", "jr-supervise") if kind == "both" else (kind,)))
        self._note(f"{kind} on {host.alias}")

    def _note(self, what: str) -> None:
        self.story.done.append(what)

    def _finish(self, spec: str) -> None:
        """Everything works again: ordinary commands have to bring it to its end."""
        self.laptop.run("ls", code=None)
        ends = time.monotonic() + 150
        while time.monotonic() < ends:
            self.laptop.run("tick")
            data = self.laptop.json("sweep", "show", "kills", code=None)
            if not data.get("sweep") or data["sweep"]["state"] == "staging":
                self.laptop.run("submit", spec)
                continue
            lost = [t for t in data["trials"] if t["state"] in ("LOST", "FAILED")]
            if data["sweep"]["completed"] == self.points:
                return
            if lost and not any(t["state"] in ("RUNNING", "QUEUED", "STAGING", "UNSENT") for t in data["trials"]):
                self.story.retried += len(lost)
                self.laptop.run("sweep", "retry", "kills")
            time.sleep(0.2)
        raise AssertionError(f"the sweep does not end: {data['sweep']}\n{self.story.done}")

    def _check(self) -> None:
        """Each point has one completed job, ran to its end once, and never twice at the same time."""
        data = self.laptop.json("sweep", "show", "kills")
        [listed] = self.laptop.json("sweep", "ls")["sweeps"]
        assert listed["state"] == "done" and listed["completed"] == self.points, listed
        jobs = self.laptop.json("ls", "--all")["jobs"]
        names = {row["id"]: row for row in jobs}
        assert {row["sweep"] for row in jobs} == {data["sweep"]["id"]}, jobs
        ends, starts = Counter[str](), Counter[str]()
        for line in self.ran.read_text().splitlines():
            word, point, job = line.split()
            assert job in names, f"{job} of {point} is in no listing"
            starts[job] += word == "start"
            if word == "end" and names[job]["state"] == "COMPLETED":
                ends[point] += 1
            elif word == "end":  # nobody can know how it ended: what watched it was killed with it
                assert names[job]["state"] == "LOST" and self._watcher_was_killed(), (names[job], self.story.done)
        points = [trial["parameters"]["x"] for trial in data["trials"]]
        assert len(set(points)) == len(points) == self.points
        assert ends == dict.fromkeys(points, 1), {p: ends[p] for p in points if ends[p] != 1}
        assert max(starts.values()) == 1, [(job, names[job]) for job, count in starts.items() if count > 1]
        completed = Counter(row["name"] for row in jobs if row["state"] == "COMPLETED")
        assert set(completed.values()) == {1} and len(completed) == self.points, completed
        for host in self.hosts:
            assert not host.processes("jr-supervise"), "nothing of a job is left"
            self.story.moved += sum(
                '"MOVED"' in path.read_text() for path in host.root.glob("hosts/*/jobs/*/final.json")
            )

    def _watcher_was_killed(self) -> bool:
        return any(word.split()[0] in ("jr-supervise", "both", "everything", "reboot") for word in self.story.done)
