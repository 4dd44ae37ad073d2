"""Cancel: launchers' worker trees go, neighbours stay, and what cannot be ended is named."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agentproc import Tree, agent_host, until
from tests.support.running import Runs, gone, of_job

# As torchrun and deepspeed start their workers: sessions of their own, descriptors closed, TERM taken for later.
LAUNCHER = b"""
import os, signal, subprocess, sys, time
out = os.environ["JOBRUNNER_OUTPUT_DIR"]
if sys.argv[1] == "worker":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    helper = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
    with open("%s/%s.tmp" % (out, sys.argv[2]), "w") as note:
        note.write("%d %d" % (os.getpid(), helper.pid))
    os.rename(note.name, note.name[:-4])
    time.sleep(600)
signal.signal(signal.SIGTERM, lambda *_: None)
workers = [
    subprocess.Popen([sys.executable, __file__, "worker", str(rank)], start_new_session=True, close_fds=True)
    for rank in range(4)
]
for worker in workers:
    worker.wait()
"""


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with agent_host(tmp_path) as host:
        yield Runs(host)


@contextlib.contextmanager
def neighbours(runs: Runs) -> Iterator[list[int]]:
    """What must not be touched: a job of the same user, a process in no job, and one that speaks of the job's id."""
    runs.submit("aneighbo1", "sleep 600", limits={"cpu_jobs": 8})
    runs.running("aneighbo1")
    plain = subprocess.Popen(["sleep", "600"], start_new_session=True)
    named = subprocess.Popen(
        ["sleep", "600"], env={**os.environ, "JOBRUNNER_JOB_ID": "alauncher1", "MY_JOBRUNNER_JOB_ID": "alauncher"}
    )
    try:
        yield [*of_job("aneighbo1"), plain.pid, named.pid]
    finally:
        for process in (plain, named):
            process.kill()
            process.wait()


def test_a_launchers_workers_go_and_the_neighbours_stay(runs: Runs) -> None:
    with neighbours(runs) as others:
        tree = Tree().file("run.py", LAUNCHER)
        runs.submit(
            "alauncher", tree=tree, command={"script": "run.py", "args": ["main"]}, grace_s=0.5, limits={"cpu_jobs": 8}
        )
        out = runs.host.job("alauncher") / "out"
        until(lambda: all((out / str(rank)).exists() for rank in range(4)), what="the workers")
        family = [int(pid) for rank in range(4) for pid in (out / str(rank)).read_text().split()]
        began = time.monotonic()
        view = runs.channel.ask("stop", ids=["alauncher"], wait_s=15)["jobs"]["alauncher"]
        took = time.monotonic() - began
        assert view["state"] == "CANCELLED" and all(gone(pid) for pid in family)
        assert 0.5 <= took < 0.5 + 2, took
        assert not any(gone(pid) for pid in others)
        assert runs.view("aneighbo1")["state"] == "RUNNING"


def test_a_pid_that_was_given_anew_is_not_hit(runs: Runs) -> None:
    """The records of a dead job name pids that are others' now: nobody of these is signalled."""
    with neighbours(runs) as others:
        runs.submit("areusepid", "sleep 600", limits={"cpu_jobs": 8})
        start = runs.running("areusepid")
        path = runs.host.job("areusepid") / "1" / "start.json"
        text = path.read_text()
        for pid in (start["supervisor"]["pid"], *of_job("areusepid")):
            os.kill(pid, signal.SIGKILL)
            until(lambda pid=pid: gone(pid), what="its end")
        text = text.replace(f'"pid":{start["supervisor"]["pid"]}', f'"pid":{others[-2]}')
        text = text.replace(f'"pid":{start["command"]["pid"]}', f'"pid":{others[-1]}')
        path.write_text(text.replace(f'"pgid":{start["command"]["pid"]}', f'"pgid":{others[-1]}'))
        view = runs.channel.ask("stop", ids=["areusepid"], wait_s=5)["jobs"]["areusepid"]
        assert view["state"] == "CANCELLED"
        assert not any(gone(pid) for pid in others)


def test_what_is_left_is_named(runs: Runs) -> None:
    """Nobody carries the wish out (the supervisor hangs): the answer says which processes there are."""
    runs.submit("ahangsup1", "sleep 600")
    start = runs.running("ahangsup1")
    os.kill(start["supervisor"]["pid"], signal.SIGSTOP)
    try:
        answer = runs.channel.ask("stop", ids=["ahangsup1"], grace_s=0, wait_s=0.5)
    finally:
        os.kill(start["supervisor"]["pid"], signal.SIGCONT)
    assert answer["jobs"]["ahangsup1"]["state"] == "RUNNING"
    assert start["command"]["pid"] in [item["pid"] for item in answer["left"]["ahangsup1"]]
    assert runs.final("ahangsup1")["state"] == "CANCELLED" and of_job("ahangsup1") == []
