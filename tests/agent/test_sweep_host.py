"""What a sweep asks of a host: trials at once, an end after failures, and taking a waiting trial back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import line, order, trials
from tests.support.agentproc import Tree, agent_host, job, until
from tests.support.running import Runs

SWEEP = "asweep0001"
HELD = "while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.02; done"


@pytest.fixture
def runs(tmp_path: Path):
    with agent_host(tmp_path) as host:
        yield Runs(host)


def trial(job_id: str, shell: str, parallel: int | None = None, stop_after: int | None = None, **run: Any) -> Any:
    run.setdefault("limits", {"cpu_jobs": 8})
    entry = job(job_id, command={"shell": shell}, grace_s=2, **run)
    entry["request"]["sweep"] = {"id": SWEEP, "name": "s", "parallel": parallel, "stop_after": stop_after}
    return entry


def go(runs: Runs, job_id: str) -> None:
    out = runs.host.job(job_id) / "out"
    out.mkdir(exist_ok=True)  # it is made when a job starts
    (out / "go").touch()


def states(runs: Runs, ids: list[str]) -> list[str]:
    views = runs.channel.ask("look", jobs=ids)["jobs"]
    return [views[id_]["state"] for id_ in ids]


def entry(job_id: str, parallel: int | None = 2, **more: Any) -> dict[str, Any]:
    base = {"id": job_id, "cards": 1, "device": "npu", "since": job_id, "waited_s": 1.0, "limits": {}}
    return {**base, "sweep": {"id": SWEEP, "parallel": parallel, "stop_after": None}, **more}


def test_no_more_trials_of_a_sweep_start_than_may_run_at_once() -> None:
    waiting = [entry("a"), entry("b"), {**entry("c"), "sweep": None}]
    running = [{"cards": [7], "device": "npu", "left_s": None, "sweep": SWEEP}] * 2
    facts = order.Situation(waiting, free={"npu": {0, 1}}, running=running)
    decision = order.decide(facts)
    assert decision.start is not None and decision.start["id"] == "c"
    assert decision.why["a"] == (
        "sweep",
        "its sweep runs 2 trials at once here (`parallel`), and 2 run now",
    )
    facts = order.Situation([entry("a", 3)], free={"npu": {0}}, running=running)
    assert order.decide(facts).start["id"] == "a"  # type: ignore[index]


def test_colleagues_hear_only_of_the_trials_that_may_run() -> None:
    facts = order.Situation([entry(f"a{n}") for n in range(9)] + [{**entry("b"), "sweep": None}], free={})
    assert [item["id"] for item in order.claimable(facts)] == ["a0", "a1", "b"]


def test_a_sweep_at_its_limit_hides_nobody_in_a_long_queue() -> None:
    assert line.kind(entry("a")) != line.kind({**entry("z"), "sweep": None})


@pytest.mark.parametrize("told", [None, "x", {}, {"id": 3}, {"id": "../../x"}, {"id": "A B"}])
def test_what_is_no_sweep_is_none(told: Any) -> None:
    assert trials.of_request({"sweep": told}) is None


def test_parallel_is_kept_by_the_host_alone(runs: Runs) -> None:
    ids = [f"atrial000{n}" for n in range(4)]
    runs.channel.stage([trial(id_, HELD, parallel=2) for id_ in ids], None)
    runs.submit("aplain0001", "true", limits={"cpu_jobs": 8})
    assert runs.final("aplain0001")["state"] == "COMPLETED", "other jobs pass a sweep that is at its limit"
    until(lambda: states(runs, ids) == ["RUNNING", "RUNNING", "QUEUED", "QUEUED"])
    [finding] = runs.channel.ask("why", id=ids[2])["findings"]
    assert (finding["code"], "2 trials at once here" in finding["summary"]) == ("sweep", True)
    go(runs, ids[1])
    until(lambda: states(runs, ids) == ["RUNNING", "COMPLETED", "RUNNING", "QUEUED"])
    for id_ in ids:
        go(runs, id_)
    assert {runs.final(id_)["state"] for id_ in ids} == {"COMPLETED"}


def test_trials_that_wait_are_cancelled_after_so_many_failures(runs: Runs) -> None:
    ids = [f"afails000{n}" for n in range(6)]
    shells = ["exit 1", "true", "exit 1", "echo never", "echo never", "echo never"]
    retry = {"max": 1, "on": ["exit"], "backoff_s": 0}
    runs.channel.stage(
        [
            trial(id_, text, 1, 2, retry=retry if n == 0 else {})
            for n, (id_, text) in enumerate(zip(ids, shells, strict=True))
        ],
        None,
    )
    views = {id_: runs.final(id_) for id_ in ids}
    assert [views[id_]["state"] for id_ in ids] == ["FAILED", "COMPLETED", "FAILED"] + ["CANCELLED"] * 3
    assert views[ids[0]]["attempt"] == 2, "a failure that is tried again is none yet"
    assert "ends after 2 trials that failed" in views[ids[3]]["evidence"] and ids[2] in views[ids[3]]["evidence"]
    assert not (runs.host.job(ids[3]) / "1" / "start.json").exists()
    [event] = [event for event in runs.events(ids[3]) if event["kind"] == "not_started"]
    assert event["state"] == "CANCELLED" and ids[0] in event["why"]
    runs.channel.stage([trial("alater0001", "true", 1, 2)], None)
    assert runs.final("alater0001")["state"] == "COMPLETED", "what is submitted later has its chance"


def test_failures_are_counted_once_and_by_sweep(runs: Runs) -> None:
    runs.channel.stage([trial("afailed001", "exit 3", None, 1)], None)
    assert runs.final("afailed001")["state"] == "FAILED"
    lines = (runs.host.job("afailed001").parents[1] / "sweeps" / f"{SWEEP}.jsonl").read_text().splitlines()
    assert [json.loads(line)["job"] for line in lines] == ["afailed001"]


def take_back(runs: Runs, *ids: str, moves: int = 1) -> dict[str, Any]:
    to = {"alias": "other", "instance": "i9", "hostname": "h9"}
    return runs.channel.ask("take_back", jobs=dict.fromkeys(ids, moves), to=to)


def test_a_waiting_trial_is_taken_back_for_good(runs: Runs) -> None:
    runs.channel.stage([trial("afirst0001", HELD, 1), trial("asecond001", "echo never", 1)], None)
    runs.running("afirst0001")
    for _ in range(2):  # a repeated question has the same answer
        answer = take_back(runs, "afirst0001", "asecond001")
        assert answer["taken"] == {"afirst0001": False, "asecond001": True}
        view = answer["jobs"]["asecond001"]
        assert (view["state"], view["moved"]["to"]["alias"], view["moved"]["moves"]) == ("MOVED", "other", 1)
    assert take_back(runs, "asecond001", moves=2)["taken"] == {"asecond001": False}
    late = runs.channel.stage([trial("asecond001", "echo never", 1)], None)
    assert late["jobs"]["asecond001"]["state"] == "MOVED", "a submit that comes late does not start it here again"
    go(runs, "afirst0001")
    assert runs.final("afirst0001")["state"] == "COMPLETED"
    until(lambda: runs.dispatcher() == 0)
    assert runs.view("asecond001")["state"] == "MOVED" and not (runs.host.job("asecond001") / "1").exists()
    assert runs.channel.ask("stop", ids=["asecond001"], wait_s=30)["jobs"]["asecond001"]["state"] == "MOVED"
    assert runs.channel.ask("wait", ids=["asecond001"], timeout_s=30)["jobs"]["asecond001"]["state"] == "MOVED"


def test_what_is_held_cancelled_or_has_run_is_not_taken(runs: Runs) -> None:
    retry = {"max": 1, "on": ["exit"], "backoff_s": 600}
    runs.channel.stage([trial("aheld00001", HELD, 1), trial("aheld00002", "true", 1)], None)
    runs.channel.stage([trial("aagain0001", "exit 1", retry=retry)], None)
    until(lambda: runs.view("aagain0001")["attempt"] == 2)
    runs.channel.ask("wish", ids=["aheld00002"], kind="hold")
    assert take_back(runs, "aheld00002", "aagain0001", "anobody001")["taken"] == {
        "aheld00002": False,
        "aagain0001": False,
    }
    assert [runs.view(id_)["state"] for id_ in ("aheld00002", "aagain0001")] == ["QUEUED", "QUEUED"]


def test_a_trial_comes_back_to_the_host_that_it_left(runs: Runs) -> None:
    runs.channel.stage([trial("aholder001", HELD, 1)], None)
    runs.running("aholder001")
    tree = Tree().file("data.txt", b"hello\n")
    runs.channel.stage([trial("areturn001", "cat data.txt; echo $SECRET", 1, secrets=["SECRET"])], tree)
    secrets = runs.host.job("areturn001") / "secrets.json"
    assert take_back(runs, "areturn001")["taken"]["areturn001"] and not secrets.exists()
    back = trial("areturn001", "cat data.txt; echo $SECRET", 1, secrets=["SECRET"])
    back["secrets"] = {"SECRET": "shh"}
    back["request"]["moves"] = 1
    assert runs.channel.stage([back], None)["jobs"]["areturn001"]["state"] == "MOVED", (
        "this very sending was taken back"
    )
    back["request"]["moves"] = 2
    for _ in range(2):
        assert runs.channel.stage([back], None)["jobs"]["areturn001"]["state"] == "QUEUED"
    go(runs, "aholder001")
    assert runs.final("areturn001")["state"] == "COMPLETED" and runs.log("areturn001") == "hello\nshh\n"
    assert not secrets.exists()


def test_a_tombstone_of_a_move_gives_way_to_a_later_sending(runs: Runs) -> None:
    away = {"moves": 1, "to": {"alias": "other"}}
    view = runs.channel.ask("tombstone", id="agrave0001", name="g", request={}, moved=away)["jobs"]["agrave0001"]
    assert view["state"] == "MOVED"
    entry = trial("agrave0001", "echo here")
    assert runs.channel.stage([entry], None)["jobs"]["agrave0001"]["state"] == "MOVED"
    entry["request"]["moves"] = 2
    runs.channel.stage([entry], None)
    assert runs.final("agrave0001")["state"] == "COMPLETED" and runs.log("agrave0001") == "here\n"
