"""From one job's end to the next one's start, and queues that are long."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import ahead, conclude, handover, leases, line, queue, starts, worktree
from jobrunner.agent.layout import Layout
from jobrunner.lab.simcards import tools_dir, write_lab
from tests.support.agentproc import Tree, agent_host, job, until
from tests.support.running import Runs, gone, of_job


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


@pytest.fixture
def runs_here(tmp_path: Path):
    with agent_host(tmp_path) as host:
        yield Runs(host)


@pytest.fixture
def one_card(tmp_path: Path):
    write_lab(tmp_path / "lab", "npu", 1)
    env = {"PATH": f"{tools_dir()}:{os.environ['PATH']}", "JOBRUNNER_LAB": str(tmp_path / "lab")}
    with agent_host(tmp_path) as host:
        yield Runs(host, **env)


def test_processes_that_a_killed_supervisor_left_keep_the_card_from_the_next_job(one_card: Runs) -> None:
    runs = one_card
    # What stays holds no lease: only its environment tells whose it is.
    stays = 'exec 3>&-; for n in /proc/self/fd/*; do n=${n##*/}; [ $n -gt 2 ] && eval "exec $n>&-"; done 2>/dev/null'
    for number in range(2):  # the second time the card comes from a job whose end was seen
        runs.submit(f"aclean000{number}", "true", device="npu", cards=1)
        assert runs.final(f"aclean000{number}", within=40)["state"] == "COMPLETED"
    runs.submit("aleaves001", f"(setsid bash -c '{stays}; sleep 300' &) ; sleep 300", device="npu", cards=1, grace_s=0)
    runs.submit("anext00001", "true", device="npu", cards=1)
    start = runs.running("aleaves001")
    until(lambda: len(of_job("aleaves001")) >= 2)
    os.kill(start["supervisor"]["pid"], signal.SIGKILL)
    until(lambda: gone(start["supervisor"]["pid"]))
    adopted = until(
        lambda: (new := runs.start("aleaves001"))["supervisor"]["pid"] != start["supervisor"]["pid"] and new
    )
    assert runs.view("anext00001")["state"] == "QUEUED" and of_job("aleaves001")
    os.kill(adopted["command"]["pid"], signal.SIGKILL)
    assert runs.final("anext00001", within=40)["state"] == "COMPLETED"
    assert not of_job("aleaves001"), "nothing of the one is left when the next begins"


def test_whose_cards_are_clear() -> None:
    memory = handover.Handover()
    try:
        assert not memory.clear("npu", [0]) and not memory.clear("npu", [])
        memory.given("ajob000001", "npu", [0, 1])
        assert handover.tell(memory.inlet, "ajob000001")
        memory.wait(60)  # until something is told
        handover.tell(memory.inlet, "astranger1")
        memory.listen()
        assert memory.clear("npu", [1, 0]) and not memory.clear("mlu", [0]) and not memory.clear("npu", [0, 2])
        memory.given("ajob000002", "npu", [1])
        assert memory.clear("npu", [0]) and not memory.clear("npu", [1])
        memory.over("ajob000002")  # its supervisor was killed: nothing was told
        handover.tell(memory.inlet, "ajob000002")
        memory.listen()
        assert not memory.clear("npu", [1])
        assert handover.is_heard(memory.inlet)
    finally:
        for handle in memory.descriptors():
            os.close(handle)
        assert not handover.is_heard(memory.inlet) and not handover.is_heard(None)
        assert not handover.tell(memory.inlet, "ajob000001")  # nobody listens any more: no error
        os.close(memory.inlet)


def test_the_next_jobs_find_their_folders_made(runs_here: Runs) -> None:
    runs = runs_here
    limits = {"cpu_jobs": 1}
    runs.submit("ablocker01", "while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.02; done", limits=limits)
    runs.running("ablocker01")
    tree = Tree().file("a.txt", b"one\n")
    ids = [f"anext0000{number}" for number in range(6)]
    entries = [job(id_, command={"shell": "cat a.txt"}, limits=limits) for id_ in ids]
    runs.channel.stage(entries, tree)
    until(lambda: [len(ready(runs, id_)) for id_ in ids] == [1] * ahead.NEXT + [0] * 2)
    assert runs.view(ids[0])["state"] == "QUEUED" and runs.view(ids[0])["attempts"] == []
    runs.channel.ask("stop", ids=[ids[0]], wait_s=5)
    assert runs.view(ids[0])["state"] == "CANCELLED" and not (runs.host.job(ids[0]) / "1").exists()
    (runs.host.job("ablocker01") / "out" / "go").touch()
    for id_ in ids[1:]:
        assert runs.final(id_)["state"] == "COMPLETED" and runs.log(id_) == "one\n" and not ready(runs, id_)


def test_what_is_made_for_a_job_that_was_cancelled_meanwhile_goes(runs_here: Runs, monkeypatch: Any) -> None:
    """Whoever cancelled it has come before all of it was made."""
    runs, make = runs_here, worktree.make_ready
    runs.host.drain()
    runs.channel.stage([job("alate00001")], Tree().file("a.txt", b"one\n"))

    def make_late(*words: Any) -> None:
        runs.channel.ask("stop", ids=["alate00001"], wait_s=5)
        make(*words)
        assert ready(runs, "alate00001")

    monkeypatch.setattr(worktree, "make_ready", make_late)
    ahead._make(runs.host.layout, {"id": "alate00001"})
    folder = runs.host.job("alate00001")
    assert runs.view("alate00001")["state"] == "CANCELLED" and not (folder / "1").exists()
    assert not list(folder.glob("*.room"))


def test_what_was_being_made_for_a_cancelled_job_goes_with_the_dispatcher(runs_here: Runs, monkeypatch: Any) -> None:
    """Its helper is in the midst of it, and is killed then."""
    runs, make = runs_here, worktree.make_ready
    runs.host.drain()
    runs.channel.stage([job("alate00002")], Tree().file("a.txt", b"one\n"))

    def make_and_linger(*words: Any) -> None:
        make(*words)
        time.sleep(60)

    monkeypatch.setattr(worktree, "make_ready", make_and_linger)
    helper = ahead.Ahead(runs.host.layout)
    helper.begin([{"id": "alate00002"}])
    until(lambda: ready(runs, "alate00002"))
    monkeypatch.setattr(conclude, "drop_unstarted", lambda *_: None)  # whoever cancels has looked already
    conclude.finish(runs.host.layout, "alate00002", {"state": "CANCELLED"})
    monkeypatch.undo()
    assert ready(runs, "alate00002")
    helper.end()
    assert not (runs.host.job("alate00002") / "1").exists()
    helper.end()  # there is none any more


def ready(runs: Runs, job_id: str) -> list[Path]:
    return list(runs.host.job(job_id).glob("1/ready-*/a.txt"))


def test_what_was_made_or_begun_before_a_crash_of_the_host_is_made_anew(runs_here: Runs) -> None:
    runs = runs_here
    runs.host.drain()
    tree = Tree().file("a.txt", b"one\n")
    runs.channel.stage([job("acrashed02", command={"shell": "cat a.txt; ls"})], tree)
    layout, folder = runs.host.layout, runs.host.job("acrashed02") / "1"
    worktree.make_ready(layout, "acrashed02", 1)
    (made,) = ready(runs, "acrashed02")
    made.write_bytes(b"")  # its content never came to the disk
    made.parent.rename(folder / "ready-an-earlier-boot")
    (folder / "work").mkdir()  # and a start of which only this and its log are left
    (folder / "work" / "half.txt").touch()
    (folder / "log").write_text("begun\n")
    assert runs.view("acrashed02")["state"] == "QUEUED"
    (runs.host.home / "drain").unlink()
    runs.channel.ask("look", jobs="live")
    assert runs.final("acrashed02")["state"] == "COMPLETED"
    assert runs.log("acrashed02") == "one\na.txt\n"
    assert {path.name for path in folder.iterdir()} >= {"work", "start.json"} and not list(folder.glob("*ready*"))
    assert not list(folder.glob(".work-*"))


def test_a_start_record_that_a_crash_of_the_host_lost(runs_here: Runs) -> None:
    runs = runs_here
    runs.host.drain()
    runs.submit("acrashed01", "true")
    folder = runs.host.begin("acrashed01")
    (folder / "start.json").write_bytes(b"")
    os.utime(folder / "start.json", (1, 1))
    view = runs.view("acrashed01")
    assert (view["state"], view["reason"]) == ("LOST", "host_reboot")


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
