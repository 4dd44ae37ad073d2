"""From one job's end to the next one's start, and queues that are long."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import leases, line, queue, starts
from jobrunner.agent.layout import Layout
from jobrunner.lab.simcards import tools_dir, write_lab
from tests.support.agentproc import agent_host
from tests.support.running import Runs


def entry(job_id: str, **changes: Any) -> dict[str, Any]:
    base = {"id": job_id, "device": "npu", "cards": 1, "card_ids": None, "limits": {}, "timeout_s": None}
    return {**base, "attempt": 1, "hold": False, "not_before": None, "priority": 0, "queued_at": "t", **changes}


def put(layout: Layout, job_id: str, **changes: Any) -> None:
    queue.files.write_json(layout.queued(job_id), entry(job_id, **changes), sync=False)


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(os.fsencode(tmp_path), "i1")
    for folder in (found.queue, found.jobs):
        os.makedirs(folder)
    return found


def test_a_final_state_means_that_the_card_is_free(tmp_path: Path) -> None:
    write_lab(tmp_path / "lab", "npu", 1)
    env = {"PATH": f"{tools_dir()}:{os.environ['PATH']}", "JOBRUNNER_LAB": str(tmp_path / "lab")}
    with agent_host(tmp_path) as host:
        runs = Runs(host, **env)
        card = f"/card/npu/0@{host.scope}".encode()
        for number in range(4):
            job_id = f"afree0000{number}"
            runs.submit(job_id, "sleep 0.2", device="npu", cards=1)
            runs.running(job_id)
            assert any(name.endswith(card) for name in leases.held_names())
            verdict = host.job(job_id) / "final.json"
            while not verdict.exists():
                assert runs.channel.process.poll() is None
            assert not any(name.endswith(card) for name in leases.held_names())


def test_a_retry_keeps_its_place_before_younger_jobs(tmp_path: Path) -> None:
    write_lab(tmp_path / "lab", "npu", 1)
    env = {"PATH": f"{tools_dir()}:{os.environ['PATH']}", "JOBRUNNER_LAB": str(tmp_path / "lab")}
    with agent_host(tmp_path) as host:
        runs = Runs(host, **env)
        retry = {"max": 1, "on": ["exit"], "backoff_s": 0}
        runs.submit("aretried1", "test $JOBRUNNER_ATTEMPT = 2", device="npu", cards=1, retry=retry)
        runs.submit("ayounger1", "true", device="npu", cards=1)
        again, younger = runs.final("aretried1", within=40), runs.final("ayounger1", within=40)
        assert again["state"] == younger["state"] == "COMPLETED"
        assert again["ended_at"] < younger["started_at"]


def test_a_long_queue_is_seen_to_change(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "LONG", 10)
    for number in range(30):
        put(layout, f"ajob0000{number:02d}")
    cache = queue.Cache(layout)
    assert len(cache.entries()) == 30 == len(cache.entries())
    put(layout, "ajob000003", priority=7)
    os.unlink(layout.queued("ajob000004"))
    put(layout, "ajob000099")
    found = {item["id"]: item for item in cache.entries()}
    assert found["ajob000003"]["priority"] == 7 and "ajob000004" not in found and "ajob000099" in found
    monkeypatch.setattr(queue, "SURE_S", 0.0)  # the close look reads what has the same inode, too
    with open(layout.queued("ajob000005"), "w") as changed:
        changed.write('{"priority": 11, "v": 1}')
    assert {item["id"]: item for item in cache.entries()}["ajob000005"]["priority"] == 11


def test_whether_anything_waits(layout: Layout) -> None:
    assert not queue.waiting(layout)
    (Path(os.fsdecode(layout.queue)) / ".wake").touch()
    assert not queue.waiting(layout)
    put(layout, "ajob000001")
    assert queue.waiting(layout)


def test_a_decision_in_a_long_queue_is_about_the_first_of_every_kind(layout: Layout) -> None:
    many = [entry(f"ajob{number:06d}", since=f"{number:06d}") for number in range(1000)]
    rare = [entry("acpu000001", device="cpu", cards=0, since="999999"), entry("awide00001", cards=4, since="999998")]
    quick = entry("aquick0001", timeout_s=60, since="999997")
    held = {item["id"] for item in many[:50]}
    for item in [*many, *rare, quick]:
        put(layout, item["id"], **item)
    waiting = line.Line(layout)
    waiting.refresh()
    found = waiting.pick(lambda item: item["id"] not in held)
    assert [item["id"] for item in found[:2]] == ["ajob000050", "ajob000051"]
    assert {item["id"] for item in found} >= {"acpu000001", "awide00001", "aquick0001"}
    assert len(found) == line.EACH + 3
    for item in many[:900]:
        os.unlink(layout.queued(item["id"]))
        waiting.again(item["id"])
    put(layout, "afirst0001", **entry("afirst0001", since="000000", priority=1))
    waiting.again("afirst0001")
    found = waiting.pick(lambda item: True)
    assert [item["id"] for item in found[:2]] == ["afirst0001", "ajob000900"]


def test_a_long_queue_is_listed_seldom_and_a_short_one_always(layout: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "LONG", 5)
    for number in range(9):
        put(layout, f"ajob0000{number:02d}")
    waiting = line.Line(layout)
    waiting.refresh()
    monkeypatch.setattr(waiting, "_due", float("inf"))
    put(layout, "ajob000050")
    waiting.refresh()
    assert waiting.changed() and "ajob000050" not in waiting.entries
    assert waiting.pause() == float("inf")
    monkeypatch.setattr(waiting, "_due", 0.0)
    waiting.refresh()
    assert "ajob000050" in waiting.entries and [item["id"] for item in waiting.pick(lambda item: True)] == sorted(
        waiting.entries
    )
    for number in range(6):
        os.unlink(layout.queued(f"ajob0000{number:02d}"))
    monkeypatch.setattr(waiting, "_due", 0.0)
    waiting.refresh()
    assert len(waiting.entries) == 4
    put(layout, "ajob000051")
    waiting.refresh()
    assert len(waiting.entries) == 5 and waiting.pause() is None


def test_of_many_that_are_not_ready_only_some_are_looked_at_each_time(layout: Layout) -> None:
    for number in range(300):
        put(layout, f"ajob000{number:03d}", since=f"{number:03d}")
    waiting = line.Line(layout)
    waiting.refresh()
    asked: list[str] = []

    def ready(item: dict[str, Any]) -> bool:
        asked.append(item["id"])
        return item["id"] >= "ajob000290"

    assert len(waiting.pick(ready)) == 10 and len(asked) == 300
    asked.clear()
    assert waiting.pick(ready) == [] and len(asked) == line.MOST


@pytest.mark.parametrize("change", [{"hold": True}, {"priority": 1}, {"attempt": 2}, {"not_before": "later"}, None])
def test_what_was_changed_meanwhile_is_not_started(layout: Layout, change: dict[str, Any] | None) -> None:
    put(layout, "ajob000001")
    os.makedirs(layout.job("ajob000001"))
    known = entry("ajob000001")
    assert starts.waits(layout, known)
    if change is None:
        queue.files.write_json(os.path.join(layout.job("ajob000001"), b"cancel.json"), {"at": "now"})
    else:
        put(layout, "ajob000001", **change)
    assert not starts.waits(layout, known)
    assert starts.take(layout, known, []) is None
    lock = leases.bind(layout.job_lock("ajob000001"))
    assert lock is not None  # it was given back
    leases.release([lock])
