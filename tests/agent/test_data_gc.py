"""Cleaning, the records for a lost ledger, and the facts about a host."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobrunner.agent import clock, gc, probe, records, working
from tests.support.agentproc import AgentFailed, AgentHost, Tree, agent_host, job

OLD = time.time() - 40 * 86400


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with agent_host(tmp_path) as made:
        made.drain()
        yield made


def finished(host: AgentHost, job_id: str, at: float = OLD, content: bytes = b"", **run: Any) -> Path:
    """A job that ended then, with a work folder; its path."""
    tree = Tree().file("train.py", b"shared").file("own.py", content or job_id.encode())
    host.channel().stage([job(job_id, **run)], tree)
    work = host.begin(job_id) / "work"
    for name in ["train.py", "big.bin", "ckpt/1.pt", "plots/a.png", "plots/sub/b.png"]:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_bytes(b"x" * 5000)
    (host.job(job_id) / "1" / "log").write_bytes(b"the log")
    host.end(job_id, at=clock.stamp(at))
    return work


def age_everything(top: Path, at: float = OLD) -> None:
    for path in top.rglob("*"):
        os.utime(path, (at, at), follow_symlinks=False)


def why(answer: dict[str, Any]) -> dict[str, str]:
    return {Path(entry["path"]).name: entry["why"] for entry in answer["removed"]}


def blobs(host: AgentHost) -> int:
    return len([path for path in (host.root / "blobs").rglob("*") if path.is_file()])


def test_failures_of_sweeps_go_when_nothing_of_the_sweep_waits(host: AgentHost) -> None:
    entry = job("job00001")
    entry["request"]["sweep"] = {"id": "alive00001", "stop_after": 2}
    host.channel().stage([entry], None)
    folder = host.home / "sweeps"
    folder.mkdir()
    for name in ("alive00001", "agone00001", "arecent001"):
        (folder / f"{name}.jsonl").write_text("{}\n")
    for name in ("alive00001", "agone00001"):
        os.utime(folder / f"{name}.jsonl", (OLD, OLD))
    assert list(why(host.ask("gc", dry_run=False, keep_days=30))) == ["agone00001.jsonl"]
    assert sorted(path.stem for path in folder.iterdir()) == ["alive00001", "arecent001"]


def test_a_trial_removes_nothing(host: AgentHost) -> None:
    work = finished(host, "job00001")
    age_everything(host.root / "blobs")
    answer = host.ask("gc", dry_run=True, keep_days=30)
    assert work.exists() and blobs(host) == 2
    assert len(answer["removed"]) == 3 and answer["bytes"] > 20_000
    assert host.ask("gc", dry_run=False, keep_days=30)["removed"] == answer["removed"]
    assert not work.exists() and blobs(host) == 0
    assert (host.job("job00001") / "1" / "log").read_bytes() == b"the log"
    assert host.ask("gc", dry_run=False, keep_days=30)["removed"] == []
    with pytest.raises(AgentFailed, match="code_gone"):
        host.ask("clone", id="job00001", **job("job00002"))


def test_checkpoints_and_outputs_stay_unless_asked_for(host: AgentHost) -> None:
    work = finished(host, "job00001", outputs=["plots/"], checkpoints={"paths": ["ckpt/*.pt"]})
    (host.job("job00001") / "out" / "ckpt").mkdir()
    (host.job("job00001") / "out" / "ckpt" / "2.pt").write_bytes(b"x")
    (host.job("job00001") / "out" / "result").write_bytes(b"x")
    (work / "link").symlink_to("/etc")
    host.ask("checkpoints", id="job00001")
    host.ask("gc", dry_run=False, keep_days=30)
    left = sorted(str(path.relative_to(work)) for path in work.rglob("*") if path.is_file())
    assert left == ["ckpt/1.pt", "plots/a.png", "plots/sub/b.png"]
    assert len(host.ask("checkpoints", id="job00001")["checkpoints"]) == 2
    host.ask("gc", dry_run=False, keep_days=30, checkpoints=True)
    assert not work.exists() and (host.job("job00001") / "out" / "result").exists()
    assert host.ask("checkpoints", id="job00001")["checkpoints"] == []


def test_a_checkpoint_that_a_living_job_may_go_on_from_stays(host: AgentHost) -> None:
    work = finished(host, "job00001", checkpoints={"paths": ["ckpt/*.pt"]})
    host.ask("clone", id="job00001", resume=True, **job("job00002"))
    host.ask("clone", id="job00002", resume=True, **job("job00003"))
    host.begin("job00002")
    host.end("job00002")
    host.ask("gc", dry_run=False, keep_days=30, checkpoints=True)
    assert (work / "ckpt" / "1.pt").exists() and not (work / "train.py").exists()
    host.begin("job00003")
    host.end("job00003")
    host.ask("gc", dry_run=False, keep_days=30, checkpoints=True)
    assert not work.exists()


def test_young_and_living_jobs_keep_everything(host: AgentHost) -> None:
    young = finished(host, "job00001", at=time.time() - 86400)
    host.channel().stage([job("job00002")], Tree().file("a", b"of a queued job"))
    age_everything(host.root / "blobs")
    assert host.ask("gc", dry_run=False, keep_days=30)["removed"] == []
    assert young.exists() and blobs(host) == 3
    assert len(host.ask("gc", dry_run=False, keep_days=0.5)["removed"]) == 3
    assert blobs(host) == 1, "the queued job's code stays"


def test_what_is_shared_with_a_living_job_stays(host: AgentHost) -> None:
    finished(host, "job00001")
    host.channel().stage([job("job00002")], Tree().file("train.py", b"shared"))
    age_everything(host.root / "blobs")
    host.ask("gc", dry_run=False, keep_days=30)
    assert blobs(host) == 1
    host.ask("clone", id="job00002", **job("job00003"))


def test_young_contents_may_belong_to_a_stage_that_is_under_way(host: AgentHost) -> None:
    finished(host, "job00001")
    host.ask("gc", dry_run=False, keep_days=30)
    assert blobs(host) == 2


def test_another_machine_s_jobs_are_left_alone_and_what_they_name_stays(host: AgentHost) -> None:
    finished(host, "job00001")
    other = host.root / "hosts" / "i0123456789abcd"
    (other / "jobs").mkdir(parents=True)
    os.rename(host.job("job00001"), other / "jobs" / "job00001")
    age_everything(host.root)
    assert host.ask("gc", dry_run=False, keep_days=0)["removed"] == []
    assert (other / "jobs" / "job00001" / "1" / "work").exists() and blobs(host) == 2


def test_an_unreadable_list_of_files_stops_the_sweep(host: AgentHost) -> None:
    finished(host, "job00001")
    host.channel().stage([job("job00002")], Tree().file("a", b"a"))
    (host.job("job00002") / "manifest.json").write_bytes(b"[[")
    age_everything(host.root / "blobs")
    host.ask("gc", dry_run=False, keep_days=30)
    assert blobs(host) == 3


def test_what_is_being_pulled_stays(host: AgentHost) -> None:
    work = finished(host, "job00001", outputs=["big.bin"])
    channel = host.channel()
    channel.send({"v": 1, "op": "collect", "id": "job00001"})
    channel.json()
    host.ask("gc", dry_run=False, keep_days=30)
    assert (work / "train.py").exists()
    channel.close()
    host.ask("gc", dry_run=False, keep_days=30)
    assert not (work / "train.py").exists() and (work / "big.bin").exists()


def test_old_agents_go_but_those_that_jobs_name_stay(host: AgentHost) -> None:
    entry = job("job00001")
    entry["request"]["agent"] = "aaaa"
    host.channel().stage([entry], None)
    agents = host.root / "agent"
    agents.mkdir(exist_ok=True)
    for name in ["agent-aaaa.pyz", "agent-bbbb.pyz", "agent-cccc.pyz", "notes.txt"]:
        (agents / name).write_bytes(b"zip")
        os.utime(agents / name, (OLD, OLD))
    (agents / "agent-dddd.pyz").write_bytes(b"just put here")
    for name in ["agent-bbbb", "agent-dddd", "agent-eeee"]:
        (agents / name / "jobrunner").mkdir(parents=True)
        os.utime(agents / name, (OLD, OLD))
    words = [host.python, "-c", "input()", str(agents / "agent-eeee"), "dispatcher"]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as running:
        answer = host.ask("gc", dry_run=False)
        assert sorted(why(answer)) == ["agent-bbbb", "agent-bbbb.pyz", "agent-cccc.pyz"]
        running.communicate(b"\n")
    assert sorted(why(host.ask("gc", dry_run=False))) == ["agent-eeee"]
    host.begin("job00001")
    host.end("job00001")
    assert sorted(why(host.ask("gc", dry_run=False))) == ["agent-aaaa.pyz"]


def test_left_overs_go_after_a_day(host: AgentHost) -> None:
    host.channel().stage([job("job00001")], Tree().file("a", b"a"))
    shard = next(path for path in (host.root / "blobs").iterdir())
    old = [host.home / "jobs" / ".tmp-job00009-aa", shard / ".tmp-1", host.job("job00001") / "x.12.tmp"]
    old.append(host.job("job00001") / "1" / ".work-aa")  # what was to be the work folder of an attempt
    for path in old:
        path.mkdir(parents=True) if path.suffix == "" and "blobs" not in path.parts else path.write_bytes(b"x")
        os.utime(path, (OLD, OLD))
    young = host.home / "jobs" / ".tmp-job00008-aa"
    young.mkdir()
    assert len(host.ask("gc", dry_run=False)["removed"]) == 4
    assert not any(path.exists() for path in old) and young.exists()


@pytest.mark.parametrize("days", [-1, "30", True, float("inf")])
def test_impossible_days(host: AgentHost, days: Any) -> None:
    with pytest.raises(AgentFailed):
        host.ask("gc", dry_run=True, keep_days=days)


def test_records_tell_everything_but_secrets(host: AgentHost) -> None:
    entry = job("job00001", checkpoints={"paths": ["ckpt/*.pt"]})
    entry["secrets"] = {"KEY": "s3cret"}
    host.channel().stage([entry], None)
    work = host.begin("job00001") / "work"
    (work / "ckpt").mkdir()
    (work / "ckpt" / "4.pt").write_bytes(b"x")
    host.end("job00001")
    host.ask("checkpoints", id="job00001")
    host.channel().stage([job("job00002")], None)
    answer = host.ask("records", jobs="all")
    assert sorted(answer["jobs"]) == ["job00001", "job00002"] and answer["next"] is None
    first = answer["jobs"]["job00001"]
    assert first["request"] == entry["request"] and first["view"]["state"] == "COMPLETED"
    assert first["attempts"][0]["number"] == 1 and first["events"][0]["kind"] == "submitted"
    assert first["checkpoints"][0]["step"] == 4
    assert "s3cret" not in str(answer)
    assert sorted(host.ask("records", jobs="live")["jobs"]) == ["job00002"]
    assert host.ask("records", jobs=["job00009"])["jobs"] == {"job00009": None}
    for wrong in [7, ["../x"], [7], "some"]:
        with pytest.raises(AgentFailed):
            host.ask("records", jobs=wrong)


def test_records_come_in_pages(host: AgentHost, monkeypatch: pytest.MonkeyPatch) -> None:
    from jobrunner.agent import records

    monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", host.scope)
    monkeypatch.setattr(records, "PAGE", 1)
    host.channel().stage([job(f"job0000{n}") for n in range(4)], None)

    class Session:
        layout = host.layout

    seen: list[str] = []
    following = None
    while True:
        answer = records.run(Session(), {"jobs": "all", "from": following})
        seen += answer["jobs"]
        following = answer["next"]
        if following is None:
            break
    assert seen == ["job00000", "job00001", "job00002", "job00003"]


def test_facts(host: AgentHost) -> None:
    facts = host.ask("probe")
    assert facts["disk"]["free_bytes"] > 0 and facts["cpus"] >= 1 and facts["memory_mb"] > 0
    assert facts["root"]["noexec"] is False and facts["root"]["network"] is False and facts["root"]["filesystem"]
    assert facts["notify"] is True and facts["shell"].startswith("/")
    assert facts["others"] == []
    assert not [path for path in host.root.iterdir() if path.name.startswith(".probe")]


def test_facts_about_tools_that_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in {"tmux": "echo tmux 3.3a", "docker": 'echo "cannot connect" >&2; exit 1'}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)
    with agent_host(tmp_path) as host:
        facts = host.channel(PATH=f"{tmp_path}:/usr/bin:/bin").ask("probe")
        assert facts["tmux"] == {"path": str(tmp_path / "tmux"), "version": "tmux 3.3a", "error": None}
        assert facts["docker"]["error"] == "cannot connect" and facts["docker"]["server"] is None
        facts = host.channel(PATH="/nowhere").ask("probe")
        assert facts["tmux"] == {"path": None, "version": None, "error": None}


def test_a_slow_tool_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "TOOL_S", 0.1)
    text, error = probe._ask(["sleep", "5"])
    assert text == "" and error and "no answer" in error


def test_both_say_that_they_are_at_work(host: AgentHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits hears of every step, at most every few seconds: here of each."""
    monkeypatch.setattr(working, "TICK_S", 0.0)
    host.channel().stage([job(f"job0000{n}") for n in range(3)], None)
    said: list[Any] = []
    session = SimpleNamespace(layout=host.layout, agent="", send_json=said.append)
    records.run(session, {"jobs": "all"})
    assert said == [{"tick": True}] * 3
    said.clear()
    gc.run(session, {"dry_run": True})
    assert len(said) > 3 and {"tick": True} in said
    monkeypatch.setattr(working, "TICK_S", 60.0)
    said.clear()
    gc.run(session, {"dry_run": True})
    assert said == []
