"""The life of a job, from the queue to its verdict, under every Python that the agent must run under."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.support.agentproc import Tree, agent_host, pythons, until
from tests.support.running import Runs, of_job

SCRIPT = b"""
import os, sys
print("args", sys.argv[1:])
print("cwd", os.getcwd())
for name in sorted(os.environ):
    if name.startswith("JOBRUNNER_") or name.endswith("_VISIBLE_DEVICES"):
        print(name + "=" + os.environ[name])
sys.stderr.write("to stderr\\n")
"""


@pytest.mark.parametrize("python", pythons())
def test_life(tmp_path: Path, python: str) -> None:
    with agent_host(tmp_path, python=python) as host:
        runs = Runs(host)
        tree = Tree().file("train.py", SCRIPT)
        view = runs.submit(
            "alifejob1", tree=tree, command={"script": "train.py", "args": ["--lr", "5e-5", "$HOME '\n\""]}
        )
        assert view["state"] in ("QUEUED", "RUNNING")
        view = runs.final("alifejob1")
        assert (view["state"], view["exit_code"], view["reason"]) == ("COMPLETED", 0, None), runs.log("alifejob1")
        log = runs.log("alifejob1")
        assert r"""args ['--lr', '5e-5', '$HOME \'\n"']""" in log and "to stderr" in log
        assert f"cwd {host.job('alifejob1')}/1/work" in log
        assert "JOBRUNNER_CARDS=\n" in log and "ASCEND_RT_VISIBLE_DEVICES=\n" in log and "JOBRUNNER_ATTEMPT=1\n" in log
        assert "JOBRUNNER_RESUME_FROM" not in log
        runs.submit("alifejob2", "echo out; exit 7", launcher="nohup")
        view = runs.final("alifejob2")
        assert (view["state"], view["exit_code"], view["reason"]) == ("FAILED", 7, "exit")
        runs.submit("alifejob3", "sleep 600")
        runs.running("alifejob3")
        answer = runs.channel.ask("stop", ids=["alifejob3"], wait_s=10)
        assert answer["jobs"]["alifejob3"]["state"] == "CANCELLED" and answer["left"] == {}
        assert of_job("alifejob3") == []
        until(lambda: not runs.dispatcher(), what="the dispatcher ends with the queue")
        kinds = [event["kind"] for event in runs.events("alifejob3")]
        assert kinds == ["submitted", "queued", "started", "cancel", "stopping", "ended", "final"]


@pytest.fixture
def runs(tmp_path: Path):
    with agent_host(tmp_path) as host:
        yield Runs(host)


def test_signal_and_launch_failures(runs: Runs) -> None:
    runs.submit("asignal01", "kill -SEGV $$")
    view = runs.final("asignal01")
    assert (view["state"], view["reason"], view["signal"]) == ("FAILED", "signal", "SIGSEGV")
    runs.submit("alaunch01", command={"argv": ["no-such-program-here"]})
    view = runs.final("alaunch01")
    assert (view["state"], view["reason"]) == ("FAILED", "launch") and "no-such-program-here" in view["evidence"]
    runs.submit("asetup001", "true", runtime={"setup": ["false || (exit 9)"]})
    view = runs.final("asetup001")
    assert (view["state"], view["reason"], view["exit_code"]) == ("FAILED", "setup", 9)
    runs.submit("avenv0001", "true", runtime={"venv": "/no/such/venv"})
    assert runs.final("avenv0001")["reason"] == "setup"


def test_script_without_x_bit_runs_by_its_interpreter(runs: Runs) -> None:
    tree = Tree().file("go", b"#!/bin/sh\necho by $0 $1\n", 0o644).file("x.sh", b"echo bash $BASH_VERSION\n")
    runs.submit("anoexec01", tree=tree, command={"script": "go", "args": ["a b"]})
    assert runs.final("anoexec01")["state"] == "COMPLETED"
    assert runs.log("anoexec01").endswith("/work/go a b\n")
    runs.submit("anoexec02", tree=tree, command={"script": "x.sh", "args": []})
    assert runs.final("anoexec02")["state"] == "COMPLETED" and "bash 5" in runs.log("anoexec02")


def test_environment_layers_and_bytes(runs: Runs) -> None:
    """Every layer sees those above; odd names and values arrive byte for byte; what a spec may not set wins."""
    odd = "a'b\"c\n$HOME `x` \udcff é"
    show = "import os,sys; sys.stdout.buffer.write(b'\\0'.join(k+b'='+v for k,v in sorted(os.environb.items())))"
    runs.submit(
        "aenviron1",
        command={"argv": ["python3", "-c", show]},
        host_env={"LAYER": "host", "ODD": odd},
        host_setup=["export FROM_HOST=$LAYER", "JOBRUNNER_CARDS=9; export JOBRUNNER_CARDS"],
        env={"LAYER": "spec", "a.b": odd, "SECONDS": "77", "BASH_ENV": "/no/file", "EMPTY": ""},
        secrets=["TOKEN"],
        secret_values={"TOKEN": "hush"},
        runtime={"setup": ["set -eu", "export SEEN=$FROM_HOST/$TOKEN", "unset EMPTY", "f() { :; }; sleep 600 &"]},
    )
    assert runs.final("aenviron1")["state"] == "COMPLETED", runs.log("aenviron1")
    found = dict(line.split("=", 1) for line in runs.log("aenviron1").split("\0"))
    assert found["LAYER"] == "spec" and found["FROM_HOST"] == "spec" and found["SEEN"] == "spec/hush"
    assert found["ODD"] == odd and found["a.b"] == odd and found["SECONDS"] == "77"
    assert found["BASH_ENV"] == "/no/file" and "EMPTY" not in found and "_" not in found
    assert found["JOBRUNNER_CARDS"] == "" and found["CUDA_VISIBLE_DEVICES"] == "" and found["PYTHONUNBUFFERED"] == "1"
    assert int(found["MASTER_PORT"]) and found["MASTER_ADDR"] == "127.0.0.1" and "JOBRUNNER_LEASE_SCOPE" in found
    assert of_job("aenviron1") == []
    assert not (runs.host.job("aenviron1") / "secrets.json").exists()
    for path in runs.host.root.rglob("*"):
        if path.is_file() and path.name != "log":
            assert b"hush" not in path.read_bytes(), path


def test_ports_differ_between_jobs(runs: Runs) -> None:
    for number in (1, 2):
        runs.submit(f"aports00{number}", "echo port=$MASTER_PORT; sleep 600", limits={"cpu_jobs": 4})
    ports = {runs.logged(f"aports00{number}", "port=") for number in (1, 2)}
    assert len(ports) == 2
    runs.channel.ask("stop", ids=["aports001", "aports002"], wait_s=10)


def test_records_are_complete(runs: Runs) -> None:
    runs.submit("arecords1", "exit 0")
    runs.final("arecords1")
    folder = runs.host.job("arecords1")
    ended = json.loads((folder / "1" / "exit.json").read_bytes())
    assert ended["exit_code"] == 0 and ended["usage"]["wall_s"] >= 0 and ended["left"] == []
    assert sorted(path.name for path in (folder / "1").iterdir()) == [
        "exit.json", "log", "runtime.json", "start.json", "work",
    ]  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == [
        "1", "environ.json", "events.jsonl", "final.json", "out", "request.json",
    ]  # fmt: skip
    assert os.stat(folder / "1" / "log").st_mode & 0o777 == 0o600
