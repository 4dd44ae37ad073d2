"""The queue: retries, back-off, order, holds, dependencies, drains, and waiting on the host."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.agentproc import AgentFailed, agent_host, until
from tests.support.running import Runs

ONE = {"cpu_jobs": 1}


@pytest.fixture
def runs(tmp_path: Path):
    with agent_host(tmp_path) as host:
        yield Runs(host)


def blocker(runs: Runs, job_id: str = "ablocker1") -> None:
    runs.submit(job_id, "while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.02; done", limits=ONE)
    runs.running(job_id)


def unblock(runs: Runs, job_id: str = "ablocker1") -> None:
    (runs.host.job(job_id) / "out" / "go").touch()


def test_retries_with_backoff(runs: Runs) -> None:
    retry = {"max": 2, "on": ["exit"], "backoff_s": 0.3}
    runs.submit("aretries1", "echo try $JOBRUNNER_ATTEMPT; test $JOBRUNNER_ATTEMPT = 3", retry=retry)
    view = runs.final("aretries1")
    assert (view["state"], view["attempt"]) == ("COMPLETED", 3)
    assert [attempt["exit_code"] for attempt in view["attempts"]] == [1, 1, 0]
    assert [runs.log("aretries1", number) for number in (1, 2, 3)] == ["try 1\n", "try 2\n", "try 3\n"]
    delays = [event["delay_s"] for event in runs.events("aretries1") if event["kind"] == "retry"]
    assert delays == [0.3, 0.6]
    runs.submit("aretries2", "kill -9 $$", retry=retry)
    assert runs.final("aretries2")["attempt"] == 1, "only what `on` names is tried again"


def test_waiting_for_a_retry_is_queued_and_can_be_cancelled(runs: Runs) -> None:
    runs.submit("abackoff1", "exit 1", retry={"max": 1, "on": ["exit"], "backoff_s": 600})
    view = until(lambda: (v := runs.view("abackoff1"))["attempt"] == 2 and v)
    assert view["state"] == "QUEUED" and view["not_before"]
    assert runs.channel.ask("why", id="abackoff1")["findings"][0]["code"] == "backoff"
    view = runs.channel.ask("stop", ids=["abackoff1"], wait_s=5)["jobs"]["abackoff1"]
    assert (view["state"], view["attempt"]) == ("CANCELLED", 1)


def test_retry_on_timeout(runs: Runs) -> None:
    retry = {"max": 1, "on": ["timeout"], "backoff_s": 0}
    runs.submit("atimeretr", "test $JOBRUNNER_ATTEMPT = 2 || sleep 600", timeout_s=0.3, retry=retry)
    view = runs.final("atimeretr")
    assert (view["state"], view["attempt"]) == ("COMPLETED", 2)


def test_priority_and_age_order_ones_own(runs: Runs) -> None:
    blocker(runs)
    stamp = "date +%s%N > $JOBRUNNER_OUTPUT_DIR/at"
    for job_id, priority in (("aorder001", 0), ("aorder002", 5), ("aorder003", 0), ("aorder004", 0)):
        runs.submit(job_id, stamp, priority=priority, limits=ONE)
    runs.channel.ask("wish", ids=["aorder004"], kind="priority", value=9)
    unblock(runs)
    ids = ["aorder004", "aorder002", "aorder001", "aorder003"]
    for job_id in ids:
        assert runs.final(job_id)["state"] == "COMPLETED"
    times = [int((runs.host.job(job_id) / "out" / "at").read_text()) for job_id in ids]
    assert times == sorted(times)


def test_hold_and_release(runs: Runs) -> None:
    blocker(runs)
    runs.submit("aheld0001", "true", limits=ONE)
    view = runs.channel.ask("wish", ids=["aheld0001"], kind="hold")["jobs"]["aheld0001"]
    assert view["hold"] and view["state"] == "QUEUED"
    runs.submit("aheld0002", "true", limits=ONE)
    unblock(runs)
    assert runs.final("aheld0002")["state"] == "COMPLETED"
    assert runs.view("aheld0001")["state"] == "QUEUED"
    assert runs.channel.ask("why", id="aheld0001")["findings"][0]["code"] == "hold"
    runs.channel.ask("wish", ids=["aheld0001"], kind="release")
    assert runs.final("aheld0001")["state"] == "COMPLETED"
    with pytest.raises(AgentFailed) as error:
        runs.channel.ask("wish", ids=["aheld0001"], kind="louder")
    assert error.value.code == "bad_wish"


def test_after(runs: Runs) -> None:
    free = {"cpu_jobs": 8}
    blocker(runs, "afirst001")
    wanted = {"aafterok1": "ok", "aafterany": "any", "aafterbad": "failed"}
    for job_id, when in wanted.items():
        runs.submit(job_id, "true", after=[{"job": "afirst001", "when": when}], limits=free)
    assert runs.channel.ask("why", id="aafterok1")["findings"][0]["code"] == "after"
    assert {runs.view(job_id)["state"] for job_id in wanted} == {"QUEUED"}
    unblock(runs, "afirst001")
    assert runs.final("aafterok1")["state"] == runs.final("aafterany")["state"] == "COMPLETED"
    view = runs.final("aafterbad")
    assert (view["state"], view["reason"]) == ("FAILED", "dependency") and "afirst001" in view["evidence"]


def test_after_a_job_on_another_host(runs: Runs) -> None:
    runs.submit("aremote01", "echo $1", after=[{"job": "belsewhere", "when": "ok"}])
    assert runs.view("aremote01")["state"] == "QUEUED"
    runs.channel.ask("resolve", id="aremote01", after={"belsewhere": "ok"})
    assert runs.final("aremote01")["state"] == "COMPLETED"
    runs.submit("aremote02", "true", after=[{"job": "belsewhere", "when": "ok"}])
    runs.channel.ask("resolve", id="aremote02", after={"belsewhere": "failed"})
    assert runs.final("aremote02")["reason"] == "dependency"


def test_drain(runs: Runs) -> None:
    assert runs.channel.ask("drain", on=True) == {"drained": True}
    runs.submit("adrained1", "true")
    assert runs.channel.ask("look", jobs=[])["drained"] is True
    assert runs.channel.ask("why", id="adrained1")["findings"][0]["code"] == "drained"
    assert runs.view("adrained1")["state"] == "QUEUED"
    runs.channel.ask("drain", on=False)
    assert runs.final("adrained1")["state"] == "COMPLETED"


def test_why_tells_that_the_queue_stood_still(runs: Runs) -> None:
    from tests.support.running import kill

    runs.channel.ask("drain", on=True)
    runs.submit("astopped1", "true")
    kill(until(runs.dispatcher, what="a dispatcher"))
    assert runs.channel.ask("why", id="astopped1")["findings"][0]["code"] == "queue_stopped"
    assert until(runs.dispatcher, what="it runs again")


def test_wait_answers_at_once(runs: Runs) -> None:
    blocker(runs)
    began = time.monotonic()
    answer = runs.channel.ask("wait", ids=["ablocker1"], timeout_s=0.3, known={"ablocker1": "RUNNING"})
    assert answer["jobs"]["ablocker1"]["state"] == "RUNNING" and time.monotonic() - began >= 0.3
    assert runs.channel.ask("wait", ids=["ablocker1"], timeout_s=60, known={"ablocker1": "QUEUED"})["jobs"]
    unblock(runs)
    answer = runs.channel.ask("wait", ids=["ablocker1"], timeout_s=60, known={"ablocker1": "RUNNING"})
    assert answer["jobs"]["ablocker1"]["state"] == "COMPLETED"


def test_a_long_queue_is_worked_off(runs: Runs) -> None:
    ids = [f"along{number:04d}" for number in range(60)]
    from tests.support.agentproc import job

    jobs = [job(job_id, command={"argv": ["true"]}, limits={"cpu_jobs": 4}) for job_id in ids]
    runs.channel.stage(jobs, None)
    views = runs.channel.ask("wait", ids=ids, timeout_s=40)["jobs"]
    assert {view["state"] for view in views.values()} == {"COMPLETED"}
    until(lambda: not runs.dispatcher(), what="the dispatcher ends")
