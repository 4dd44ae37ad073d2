"""Stopping: whole process trees, grace, time limits, and wishes at any moment."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.agentproc import Tree, agent_host, until
from tests.support.running import Runs, gone, of_job

TREE = b"""
import os, signal, sys, time
def note(name):
    with open(os.path.join(os.environ["JOBRUNNER_OUTPUT_DIR"], name + ".tmp"), "w") as handle:
        handle.write(str(os.getpid()))
    os.rename(handle.name, handle.name[:-4])
def child(name, setup=lambda: None, env=None):
    if os.fork() == 0:
        setup()
        note(name)
        if env is not None:
            os.execve("/bin/sleep", ["sleep", "600"], env)
        time.sleep(600)
        os._exit(0)
def double():
    os.setsid()
    if os.fork():
        os._exit(0)
def deaf():
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
child("plain")
child("setsid", os.setsid)
child("double", double)
child("deaf", deaf)
child("wiped", double, env={})
child("stopped", lambda: (note("stopped"), os.kill(os.getpid(), signal.SIGSTOP)))
note("main")
time.sleep(float(sys.argv[1]))
"""
NAMES = ("plain", "setsid", "double", "deaf", "wiped", "stopped", "main")


@pytest.fixture
def runs(tmp_path: Path):
    with agent_host(tmp_path) as host:
        yield Runs(host)


def pids(runs: Runs, job_id: str) -> list[int]:
    out = runs.host.job(job_id) / "out"
    until(lambda: all((out / name).exists() for name in NAMES), what="the tree stands")
    return [int((out / name).read_text()) for name in NAMES]


def test_cancel_takes_the_whole_tree(runs: Runs) -> None:
    runs.submit("atreestop", tree=Tree().file("t.py", TREE), command={"script": "t.py", "args": ["600"]}, grace_s=0.4)
    found = pids(runs, "atreestop")
    began = time.monotonic()
    view = runs.channel.ask("stop", ids=["atreestop"], wait_s=15)["jobs"]["atreestop"]
    assert view["state"] == "CANCELLED" and 0.4 <= time.monotonic() - began < 5
    assert all(gone(pid) for pid in found)


def test_left_over_processes_are_stopped_before_the_state_is_final(runs: Runs) -> None:
    runs.submit("atreeleft", tree=Tree().file("t.py", TREE), command={"script": "t.py", "args": ["0.5"]}, grace_s=0.3)
    found = pids(runs, "atreeleft")
    view = runs.final("atreeleft")
    assert view["state"] == "COMPLETED" and all(gone(pid) for pid in found)
    assert "leftovers" in [event["kind"] for event in runs.events("atreeleft")]


def test_timeout_and_grace(runs: Runs) -> None:
    runs.submit("atimeout1", "trap 'echo term; sleep 600' TERM; sleep 600 & wait; wait", timeout_s=0.5, grace_s=0.3)
    view = runs.final("atimeout1")
    assert view["state"] == "TIMEOUT" and view["reason"] is None and "term" in runs.log("atimeout1")
    assert of_job("atimeout1") == []


def test_grace_lets_a_job_save(runs: Runs) -> None:
    runs.submit("agraceful", "trap 'echo saved; exit 0' TERM; echo up; sleep 600 & wait", grace_s=20)
    runs.logged("agraceful", "up")
    began = time.monotonic()
    view = runs.channel.ask("stop", ids=["agraceful"], wait_s=10)["jobs"]["agraceful"]
    assert view["state"] == "CANCELLED" and "saved" in runs.log("agraceful") and time.monotonic() - began < 5


def test_shorter_grace_of_a_second_wish_counts(runs: Runs) -> None:
    runs.submit("ashorter1", "trap '' TERM; echo up; while :; do sleep 0.1; done", grace_s=60)
    runs.logged("ashorter1", "up")
    answer = runs.channel.ask("stop", ids=["ashorter1"], wait_s=0.3)
    assert answer["jobs"]["ashorter1"]["state"] == "RUNNING" and answer["left"]["ashorter1"]
    left = answer["left"]["ashorter1"]  # the shell, and a `sleep` that may have ended when it is asked for its command
    assert all(isinstance(entry["pid"], int) for entry in left) and any(entry["command"] for entry in left)
    answer = runs.channel.ask("stop", ids=["ashorter1"], grace_s=0, wait_s=10)
    assert answer["jobs"]["ashorter1"]["state"] == "CANCELLED"


def test_cancel_in_setup_and_in_queue(runs: Runs) -> None:
    runs.submit("asetupend", "true", runtime={"setup": ["echo in setup; sleep 600"]})
    runs.logged("asetupend", "in setup")
    assert runs.view("asetupend")["phase"] == "setup"
    runs.channel.ask("drain", on=True)
    runs.submit("aqueueend", "true")
    views = runs.channel.ask("stop", ids=["asetupend", "aqueueend"], wait_s=10)["jobs"]
    assert {view["state"] for view in views.values()} == {"CANCELLED"}
    assert of_job("asetupend") == [] and not (runs.host.home / "queue" / "aqueueend").exists()
    assert not (runs.host.job("aqueueend") / "1").exists()


def test_kept_wish_comes_with_any_request(runs: Runs) -> None:
    runs.submit("awishkept", "sleep 600")
    runs.running("awishkept")
    runs.channel.ask("look", jobs=[], cancel=[{"id": "awishkept", "grace_s": 1, "at": "2026-12-01T09:30:00.000000Z"}])
    view = runs.final("awishkept")
    assert view["state"] == "CANCELLED" and view["cancel_requested_at"] == "2026-12-01T09:30:00.000000Z"


def test_cancel_right_after_submit(runs: Runs) -> None:
    """A wish that meets a start under way is never lost."""
    for number in range(8):
        job_id = f"aquick0{number}x"
        runs.submit(job_id, "sleep 600", limits={"cpu_jobs": 20})
        runs.channel.ask("stop", ids=[job_id], wait_s=0)
        assert runs.final(job_id)["state"] == "CANCELLED"
        assert of_job(job_id) == []


def test_verdict_stays(runs: Runs) -> None:
    runs.submit("astays001", "true")
    before = runs.final("astays001")
    after = runs.channel.ask("stop", ids=["astays001"], wait_s=1)["jobs"]["astays001"]
    assert after["state"] == "COMPLETED" == before["state"] and after["cancel_requested_at"] is None
    assert os.path.exists(runs.host.job("astays001") / "final.json")
