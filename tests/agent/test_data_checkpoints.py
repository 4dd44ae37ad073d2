"""A job's checkpoints: found in every attempt, noted once, hashed later, gone on from, and removed as the spec says."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import checkpoints, jobs, leases
from jobrunner.agent.files import write_json
from jobrunner.agent.layout import lock_name
from tests.support.agentproc import AgentHost, agent_host, job, until

from .test_data_ckptcheck import put, zipped  # isort: skip


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentHost]:
    with agent_host(tmp_path) as made:
        monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", made.scope)
        made.drain()
        yield made


def made(host: AgentHost, job_id: str = "job00001", **spec: Any) -> Path:
    host.channel().stage([job(job_id, checkpoints={"paths": ["ckpt/*.pt", "checkpoint-*/"], **spec})], None)
    return host.begin(job_id) / "work"


def age(path: Path, seconds: float) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def noted(host: AgentHost) -> list[dict[str, Any]]:
    return list(checkpoints.noted(host.layout, "job00001").values())


def test_found_in_every_attempt_and_in_out(host: AgentHost) -> None:
    work = made(host)
    put(work, {"ckpt/1.pt": b"a", "ckpt/2.pt": b"b", "ckpt/note.txt": b"", "checkpoint-7/trainer_state.json": b"{}"})
    host.begin("job00001", 2)
    put(host.job("job00001") / "2" / "work", {"ckpt/2.pt": b"later", "checkpoint-8/model.safetensors": b"half"})
    put(host.job("job00001") / "out", {"ckpt/3.pt": b"c"})
    host.end("job00001", 2)
    listed = host.ask("checkpoints", id="job00001")["checkpoints"]
    by_name = {entry["name"]: entry for entry in listed}
    assert set(by_name) == {"ckpt/1.pt", "ckpt/2.pt", "ckpt/2.pt@1", "ckpt/3.pt", "checkpoint-7", "checkpoint-8"}
    assert by_name["ckpt/2.pt"]["attempt"] == 2 and by_name["ckpt/3.pt"]["attempt"] is None
    assert by_name["ckpt/2.pt"]["step"] == 2 and by_name["ckpt/2.pt"]["size"] == 5
    assert by_name["checkpoint-7"]["complete"] and not by_name["checkpoint-8"]["complete"]
    assert Path(by_name["ckpt/1.pt"]["path"]) == work / "ckpt" / "1.pt"
    assert by_name["ckpt/1.pt"]["modified_at"].endswith("Z")


def test_a_file_being_written_is_not_complete_until_it_has_settled(host: AgentHost) -> None:
    work = made(host)
    lock = leases.bind(host.layout.job_lock("job00001"))
    try:
        assert jobs.running_start(host.layout, "job00001")
        put(work, {"ckpt/1.pt": zipped()})
        (first,) = checkpoints.note(host.layout, "job00001")
        assert not first["complete"]
        age(work / "ckpt" / "1.pt", 5)
        (second,) = checkpoints.note(host.layout, "job00001")
        assert second["complete"]
        assert checkpoints.note(host.layout, "job00001") == []
        # A clock that runs ahead: seen twice the same, long enough apart.
        age(work / "ckpt" / "1.pt", -300)
        assert not checkpoints.note(host.layout, "job00001")[0]["complete"]
        for entry in noted(host):
            checkpoints.append_line(
                os.fsencode(host.job("job00001") / "checkpoints.jsonl"), {**entry, "seen_steady": time.monotonic() - 3}
            )
        assert checkpoints.note(host.layout, "job00001")[0]["complete"]
    finally:
        leases.release([lock])


def test_once_the_job_has_ended_the_list_is_complete_at_once(host: AgentHost) -> None:
    work = made(host)
    put(work, {f"ckpt/{n}.pt": b"x" for n in range(5)})
    host.end("job00001")
    assert len(checkpoints.note(host.layout, "job00001")) == 5
    assert all(entry["complete"] for entry in noted(host))


def test_hashes_follow_by_themselves(host: AgentHost) -> None:
    work = made(host)
    put(work, {"ckpt/1.pt": b"content", "checkpoint-5/trainer_state.json": b"{}", "checkpoint-5/a/b": b"x"})
    host.end("job00001")
    checkpoints.note(host.layout, "job00001")
    until(lambda: all(entry["sha256"] for entry in noted(host)), what="hashes")
    by_name = {entry["name"]: entry["sha256"] for entry in noted(host)}
    assert by_name["ckpt/1.pt"] == hashlib.sha256(b"content").hexdigest()
    lines = "".join(
        f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in [("a/b", b"x"), ("trainer_state.json", b"{}")]
    )
    assert by_name["checkpoint-5"] == hashlib.sha256(lines.encode()).hexdigest()
    assert checkpoints.note(host.layout, "job00001") == []
    assert checkpoints.main([str(host.root), host.home.name, "job00001"]) == 0


def test_what_the_job_removes_is_noted_as_removed(host: AgentHost) -> None:
    work = made(host)
    put(work, {"ckpt/1.pt": b"a", "ckpt/2.pt": b"b"})
    host.end("job00001")
    checkpoints.note(host.layout, "job00001")
    (work / "ckpt" / "1.pt").unlink()
    checkpoints.note(host.layout, "job00001")
    assert [entry["name"] for entry in checkpoints.listing(host.layout, "job00001")] == ["ckpt/2.pt"]


def test_going_on_from_the_newest_that_is_whole(host: AgentHost) -> None:
    work = made(host)
    assert checkpoints.newest_valid(host.layout, "job00001") is None
    put(work, {"ckpt/9.pt": zipped(), "ckpt/10.pt": zipped(), "ckpt/11.pt": zipped()[:-1], "ckpt/12.pt": b""})
    assert checkpoints.newest_valid(host.layout, "job00001") == os.fsencode(work / "ckpt" / "10.pt")


def test_a_retried_job_goes_on_from_the_job_before(host: AgentHost) -> None:
    work = made(host)
    put(work, {"ckpt/3.pt": zipped()})
    host.end("job00001", state="FAILED")
    run = {"checkpoints": {"paths": ["ckpt/*.pt"]}}
    host.ask("clone", id="job00001", resume=True, **job("job00002", **run))
    host.ask("clone", id="job00002", resume=True, **job("job00003", **run))
    host.ask("clone", id="job00001", resume=False, **job("job00004", **run))
    source = os.fsencode(work / "ckpt" / "3.pt")
    assert checkpoints.newest_valid(host.layout, "job00003") == source
    assert checkpoints.newest_valid(host.layout, "job00004") is None
    put(host.begin("job00003") / "work", {"ckpt/1.pt": zipped()})
    own = os.fsencode(host.job("job00003") / "1" / "work" / "ckpt" / "1.pt")
    assert checkpoints.newest_valid(host.layout, "job00003") == own
    write_json(os.fsencode(host.job("job00001") / "resume.json"), {"job": "job00002"})
    (work / "ckpt" / "3.pt").unlink()
    assert checkpoints.newest_valid(host.layout, "job00002") is None, "a circle of files ends"


def test_links(host: AgentHost, tmp_path: Path) -> None:
    work = made(host)
    put(work, {"ckpt/1.pt": b"a", "elsewhere/real": b"b"})
    put(tmp_path, {"outside.pt": b"secret"})
    (work / "ckpt" / "last.pt").symlink_to("1.pt")
    (work / "ckpt" / "2.pt").symlink_to("../elsewhere/real")
    (work / "ckpt" / "3.pt").symlink_to(tmp_path / "outside.pt")
    (work / "ckpt" / "4.pt").symlink_to("nowhere")
    os.mkfifo(work / "ckpt" / "5.pt")
    host.end("job00001")
    checkpoints.note(host.layout, "job00001")
    assert {entry["name"] for entry in noted(host)} == {"ckpt/1.pt", "ckpt/2.pt"}


def keep(host: AgentHost) -> list[str]:
    checkpoints.note(host.layout, "job00001")
    checkpoints.apply_keep(host.layout, "job00001")
    return sorted(path.name for path in (host.job("job00001") / "1" / "work" / "ckpt").iterdir())


def test_keep_removes_old_ones_and_says_so(host: AgentHost) -> None:
    work = made(host, keep={"last": 2, "best": None})
    put(work, {f"ckpt/{n}.pt": b"x" for n in range(1, 6)} | {"ckpt/other.txt": b"the job's own"})
    host.end("job00001")
    assert keep(host) == ["4.pt", "5.pt", "other.txt"]
    assert sorted(entry["name"] for entry in noted(host) if entry["removed"]) == ["ckpt/1.pt", "ckpt/2.pt", "ckpt/3.pt"]
    assert [entry["name"] for entry in checkpoints.listing(host.layout, "job00001")] == ["ckpt/5.pt", "ckpt/4.pt"]


def test_keep_never_takes_the_one_to_go_on_from(host: AgentHost) -> None:
    work = made(host, keep={"last": 1})
    put(work, {"ckpt/1.pt": zipped(), "ckpt/2.pt": zipped()})
    host.end("job00001")
    checkpoints.note(host.layout, "job00001")
    (work / "ckpt" / "2.pt").write_bytes(zipped()[:50])
    checkpoints.apply_keep(host.layout, "job00001")
    assert (work / "ckpt" / "1.pt").exists()


def test_keep_never_takes_what_is_being_pulled(host: AgentHost) -> None:
    work = made(host, keep={"last": 1})
    put(work, {"ckpt/1.pt": b"x", "ckpt/2.pt": b"x", "ckpt/3.pt": b"x"})
    host.end("job00001")
    channel = host.channel()
    channel.send({"v": 1, "op": "collect", "id": "job00001", "checkpoint": "ckpt/1.pt"})
    channel.json()
    assert keep(host) == ["1.pt", "3.pt"]
    channel.send({"done": True})
    channel.json()
    assert keep(host) == ["3.pt"]


def test_the_mark_of_a_dead_transfer_protects_nothing(host: AgentHost) -> None:
    work = made(host, keep={"last": 1})
    put(work, {"ckpt/1.pt": b"x", "ckpt/2.pt": b"x"})
    host.end("job00001")
    folder = host.job("job00001") / "pulls"
    folder.mkdir()
    (folder / "abcd").write_text('{"paths": ["%s"]}' % (work / "ckpt" / "1.pt"))
    lock = leases.bind(lock_name("pull", host.home.name, "abcd"))
    assert keep(host) == ["1.pt", "2.pt"]
    leases.release([lock])
    assert keep(host) == ["2.pt"]
    assert list(folder.iterdir()) == []


def test_keep_takes_only_what_was_noted_as_it_was_noted(host: AgentHost) -> None:
    work = made(host, keep={"last": 1})
    put(work, {"ckpt/1.pt": b"x", "ckpt/2.pt": b"x"})
    host.end("job00001")
    checkpoints.note(host.layout, "job00001")
    (work / "ckpt" / "1.pt").write_bytes(b"something else")
    checkpoints.apply_keep(host.layout, "job00001")
    assert (work / "ckpt" / "1.pt").read_bytes() == b"something else"


def test_the_best_stays_by_the_metric_in_the_log(host: AgentHost) -> None:
    entry = job("job00001", metrics={"val_loss": r"val_loss=([\d.]+)"})
    entry["request"]["run"]["checkpoints"] = {"paths": ["ckpt/*.pt"], "keep": {"last": 1, "best": "val_loss min"}}
    host.channel().stage([entry], None)
    folder = host.begin("job00001", log=b"epoch 1 val_loss=0.3\nepoch 2 val_loss=0.1\nepoch 3 val_loss=0.2\n")
    put(folder / "work", {f"ckpt/epoch_{n}.pt": b"x" for n in (1, 2, 3)})
    host.end("job00001")
    assert keep(host) == ["epoch_2.pt", "epoch_3.pt"]
    channel = host.channel()
    channel.send({"v": 1, "op": "collect", "id": "job00001", "checkpoint": "best"})
    assert [item["path"] for item in channel.json()["files"]] == ["epoch_2.pt"]


def test_a_job_without_checkpoints_pays_nothing(host: AgentHost) -> None:
    host.channel().stage([job("job00001")], None)
    assert checkpoints.note(host.layout, "job00001") == []
    assert checkpoints.newest_valid(host.layout, "job00001") is None
    assert not (host.job("job00001") / "checkpoints.jsonl").exists()
