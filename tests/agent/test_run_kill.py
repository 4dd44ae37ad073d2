"""Truth under kill -9: of the dispatcher, the supervisor, the job, and all of them, and after a reboot."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.support.agentproc import agent_host, job, until
from tests.support.running import FINAL, Runs, gone, kill, of_job, parent


@pytest.fixture
def runs(tmp_path: Path):
    with agent_host(tmp_path) as host:
        yield Runs(host)


def test_supervisor_killed_job_lives(runs: Runs) -> None:
    """The job goes on, is RUNNING, gets a new supervisor, can be cancelled, and its end is not made up."""
    runs.submit("akillsup1", "while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.05; done")
    runs.submit("akillsup2", "sleep 600", limits={"cpu_jobs": 4})
    for job_id in ("akillsup1", "akillsup2"):
        start = runs.running(job_id)
        kill(start["supervisor"]["pid"])
        assert not gone(start["command"]["pid"])
        view = runs.view(job_id)
        assert view["state"] == "RUNNING"
        until(
            lambda old=start, j=job_id: runs.start(j)["supervisor"]["pid"] != old["supervisor"]["pid"], what="adopted"
        )
    (runs.host.job("akillsup1") / "out" / "go").touch()
    view = runs.final("akillsup1")
    assert (view["state"], view["reason"], view["exit_code"]) == ("LOST", "unobserved", None)
    answer = runs.channel.ask("stop", ids=["akillsup2"], wait_s=10)
    assert answer["jobs"]["akillsup2"]["state"] == "CANCELLED"
    assert of_job("akillsup2") == []


def test_supervisor_and_command_killed_a_stray_lives(runs: Runs) -> None:
    """What a command left behind does not keep its job alive: it is stopped, as if its supervisor had lived."""
    runs.submit("akillstray", "setsid sleep 600 </dev/null >/dev/null 2>&1 & sleep 600; true", grace_s=1)
    start = runs.running("akillstray")
    until(lambda: len(of_job("akillstray")) >= 3, what="the stray runs")
    kill(start["supervisor"]["pid"])
    kill(start["command"]["pid"])
    view = runs.final("akillstray")
    assert (view["state"], view["reason"]) == ("LOST", "unobserved")
    assert of_job("akillstray") == []


def test_all_killed(runs: Runs) -> None:
    runs.submit("akillall1", "sleep 600")
    start = runs.running("akillall1")
    os.kill(start["supervisor"]["pid"], signal.SIGSTOP)  # it sees nothing of what comes now
    for pid in of_job("akillall1"):
        kill(pid)
    kill(start["supervisor"]["pid"])
    view = runs.final("akillall1")
    assert (view["state"], view["reason"]) == ("LOST", "killed") and str(start["supervisor"]["pid"]) in view["evidence"]


def test_job_killed(runs: Runs) -> None:
    runs.submit("akilljob1", "sleep 600")
    os.kill(runs.running("akilljob1")["command"]["pid"], signal.SIGKILL)
    view = runs.final("akilljob1")
    assert (view["state"], view["reason"], view["signal"]) == ("FAILED", "signal", "SIGKILL")
    assert of_job("akilljob1") == []


def test_dispatcher_killed(runs: Runs) -> None:
    """Running jobs go on; the queue goes on when one of them ends, with nobody visiting."""
    one = {"limits": {"cpu_jobs": 1}}
    runs.submit("akilldis1", "while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.02; done", **one)
    runs.running("akilldis1")
    runs.submit("akilldis2", "exit 4", **one)
    kill(until(runs.dispatcher, what="a dispatcher"))
    (runs.host.job("akilldis1") / "out" / "go").touch()
    final = runs.host.job("akilldis2") / "final.json"
    until(final.exists, what="the queue goes on by itself")
    assert json.loads(final.read_bytes())["exit_code"] == 4
    assert runs.view("akilldis1")["state"] == "COMPLETED"


def test_reboot(runs: Runs) -> None:
    """Another boot id: whatever the pids say, the job is lost; a retry policy makes a new attempt of it."""
    for job_id, retry in (("areboot01", None), ("areboot02", {"max": 1, "on": ["lost"], "backoff_s": 0})):
        runs.submit(job_id, "test $JOBRUNNER_ATTEMPT = 2 || sleep 600", retry=retry, limits={"cpu_jobs": 4})
        start = runs.running(job_id)
        dispatcher = parent(start["supervisor"]["pid"])
        os.kill(dispatcher, signal.SIGSTOP)  # nobody sees it before it looks as after a reboot
        kill(start["supervisor"]["pid"])
        for pid in of_job(job_id):
            kill(pid)
        path = runs.host.job(job_id) / "1" / "start.json"
        record = json.loads(path.read_bytes())
        record["supervisor"].update(boot_id="00000000-0000-4000-8000-000000000000", pid=os.getpid())
        record["command"]["boot_id"] = record["supervisor"]["boot_id"]
        path.write_text(json.dumps(record))
        os.kill(dispatcher, signal.SIGCONT)
    view = runs.final("areboot01")
    assert (view["state"], view["reason"]) == ("LOST", "host_reboot")
    view = runs.final("areboot02")
    assert (view["state"], view["attempt"]) == ("COMPLETED", 2)
    assert [attempt["reason"] for attempt in view["attempts"]] == ["host_reboot", None]


def test_exit_record_without_verdict_is_concluded(runs: Runs) -> None:
    """A supervisor that died between exit.json and final.json: the verdict is what exit.json says."""
    runs.submit("aconclud1", "exit 5")
    runs.final("aconclud1")
    (runs.host.job("aconclud1") / "final.json").unlink()
    view = runs.view("aconclud1")
    assert (view["state"], view["exit_code"]) == ("FAILED", 5)


def test_left_over_entry_starts_nothing(runs: Runs) -> None:
    """A queue entry of an attempt that has begun (its removal was cut off) does not start it again."""
    runs.submit("aleftover", "echo once")
    runs.final("aleftover")
    (runs.host.job("aleftover") / "final.json").unlink()
    (runs.host.home / "queue" / "aleftover").write_text(json.dumps({"id": "aleftover", "attempt": 1, "cards": 0}))
    assert runs.final("aleftover")["state"] == "COMPLETED"
    until(lambda: not list((runs.host.home / "queue").iterdir()), what="the entry is gone")
    assert runs.log("aleftover") == "once\n"


def test_cut_enqueueing_is_repeated(runs: Runs) -> None:
    runs.channel.ask("drain", on=True)
    runs.submit("acutqueue", "exit 0")
    (runs.host.home / "queue" / "acutqueue").unlink()
    assert runs.view("acutqueue")["state"] == "QUEUED"
    assert (runs.host.home / "queue" / "acutqueue").exists()
    runs.channel.ask("drain", on=False)
    assert runs.final("acutqueue")["state"] == "COMPLETED"


@pytest.mark.parametrize("seed", range(6))
def test_kill_at_random_points(runs: Runs, seed: int) -> None:
    """Whoever is killed whenever: each job gets exactly one verdict, never runs twice at once, leaves nothing."""
    chance = random.Random(seed)
    ids = [f"arandom{seed}{number}" for number in range(4)]
    # `mkdir` fails if another copy of the job is alive.
    body = "cd $JOBRUNNER_OUTPUT_DIR; mkdir in || { echo TWICE; exit 99; }; sleep 0.3; rmdir in; echo done"
    for job_id in ids:
        runs.submit(job_id, body, limits={"cpu_jobs": 2})
    end = time.monotonic() + 1.2
    while time.monotonic() < end:
        time.sleep(chance.random() * 0.15)
        victims = runs.agents("jr-dispatch", "jr-supervise")
        if victims:
            kill(chance.choice(victims))
        runs.channel.ask("look", jobs="live")
    verdicts = {}
    for job_id in ids:
        view = runs.final(job_id, within=20)
        verdicts[job_id] = view["state"]
        assert "TWICE" not in runs.log(job_id)
        assert of_job(job_id) == []
        assert [event["kind"] for event in runs.events(job_id)].count("final") == 1
        assert view["state"] in ("COMPLETED", "LOST"), view
        assert (view["state"] == "LOST") <= (view["reason"] in ("killed", "unobserved"))
        if view["state"] == "COMPLETED":
            assert "done" in runs.log(job_id)
    assert set(verdicts.values()) <= set(FINAL)


def test_broken_supervisor_is_not_started_for_ever(tmp_path: Path) -> None:
    """A job that names an agent whose supervisor breaks at once: the others go on, and it fails with the evidence."""
    with agent_host(tmp_path) as host:
        host.ask("probe")
        broken = host.root / "agent" / "agent-00badbad" / "jobrunner" / "agent"
        broken.mkdir(parents=True)
        for folder in (broken, broken.parent):
            (folder / "__init__.py").write_text("")
        (broken / "supervisor.py").write_text("def main(argv):\n    raise ValueError('broken')\n")
        runs = Runs(host)
        entry = job("abroken01", limits={"cpu_jobs": 1})
        entry["request"]["agent"] = "00badbad"
        runs.channel.stage([entry], None)
        runs.submit("aworks001", "true", limits={"cpu_jobs": 1})
        assert runs.final("aworks001")["state"] == "COMPLETED"
        view = runs.final("abroken01", within=30)
        assert (view["state"], view["reason"]) == ("FAILED", "launch") and "agent.log" in view["evidence"]
        assert "ValueError: broken" in (host.home / "agent.log").read_text()
