"""Records that are cut, empty or odd, and processes that only look alive: a verdict is honest, no length is negative."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import clock, procs
from tests.support.agentproc import AgentHost, Tree, agent_host, job, until
from tests.support.running import Runs, kill, of_job


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with agent_host(tmp_path) as made:
        made.drain()
        yield made


def settled(host: AgentHost, job_id: str) -> dict[str, Any]:
    """The view once nobody acts on the job any more: the dispatcher may be settling it at this moment."""
    channel = host.channel()

    def final() -> Any:
        view = channel.ask("look", jobs=[job_id])["jobs"][job_id]
        return view if view["state"] != "RUNNING" else None

    return dict(until(final, what="it is settled"))


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"x"', '{"exit_code": 0', "\x00" * 40, "7"])
def test_an_exit_record_that_says_nothing_is_none(host: AgentHost, text: str) -> None:
    """The disk was full, or the machine went down while it was written: nobody knows how it ended, and so it says."""
    host.channel().stage([job("acutshort")], Tree().file("t", b"x"))
    host.begin("acutshort")
    (host.job("acutshort") / "1" / "exit.json").write_text(text)
    view = settled(host, "acutshort")
    assert (view["state"], view["reason"], view["exit_code"]) == ("LOST", "killed", None)
    assert view["ended_at"] >= view["started_at"]


@pytest.mark.parametrize("field", ["started_at", "at", "exit_code", "signal", "usage", "evidence"])
def test_an_exit_record_with_odd_values_settles_all_the_same(host: AgentHost, field: str) -> None:
    host.channel().stage([job("aoddvalue")], Tree().file("t", b"x"))
    host.begin("aoddvalue")
    record = {"v": 1, "exit_code": 1, "signal": None, "reason": "exit", "at": clock.stamp(), "stopped_by": None}
    (host.job("aoddvalue") / "1" / "exit.json").write_text(json.dumps({**record, field: [{"odd": True}]}))
    view = settled(host, "aoddvalue")
    assert view["state"] == "FAILED" and (host.job("aoddvalue") / "final.json").exists()


def test_a_zombie_is_not_alive() -> None:
    """Its parent does not collect it (as process 1 of some containers): nothing of it runs."""
    child = os.fork()
    if not child:
        os._exit(0)
    try:
        until(lambda: procs.read(child).state == b"Z", what="the child has ended")
        who = procs.identity(child)
        assert who is not None and not procs.alive(who)
        assert child not in [process.pid for process in procs.scan()]
    finally:
        os.waitpid(child, 0)


def test_a_session_whose_number_a_stranger_took_is_not_the_jobs() -> None:
    """The command's pid is another process's by now: neither that nor what it has started belongs to the job."""

    def process(pid: int, ppid: int, sid: int, ticks: int) -> procs.Process:
        return procs.Process(pid, b"S", ppid, sid, sid, ticks)

    command = {"pid": 50, "ticks": 1000, "boot_id": clock.boot_id()}
    orphan, leader, worker = process(60, 1, 50, 1500), process(50, 1, 50, 9000), process(51, 50, 50, 9001)
    assert [found.pid for found in procs.of_job("a", command, processes=[orphan])] == [60]
    assert procs.of_job("a", command, processes=[leader, worker]) == []


@pytest.mark.parametrize(("grace", "word"), [(20, ""), (0.3, "within its grace of 0.3 s was killed")])
def test_a_stop_tells_whether_the_grace_was_enough(tmp_path: Path, grace: float, word: str) -> None:
    with agent_host(tmp_path) as made:
        runs = Runs(made)
        how = "echo saved; exit 0" if grace > 1 else "echo asked"
        runs.submit("agracious", f"trap '{how}' TERM; echo up; while :; do sleep 0.05; done", grace_s=grace)
        runs.logged("agracious", "up")
        view = runs.channel.ask("stop", ids=["agracious"], wait_s=10)["jobs"]["agracious"]
        assert view["state"] == "CANCELLED" and of_job("agracious") == []
        assert (word in view["evidence"]) if word else ("was killed" not in view["evidence"]), view
        for pid in of_job("agracious"):
            kill(pid)
