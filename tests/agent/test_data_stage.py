"""Staging: what is sent, what is there already, what is refused, and that a job is made once or not at all."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import subprocess
import time
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.agent import blobs, stage, together
from jobrunner.agent.files import AgentError
from jobrunner.agent.layout import Layout
from tests.support.agentproc import AgentFailed, AgentHost, Channel, Tree, agent_host, job, load


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with agent_host(tmp_path) as made:
        made.drain()
        yield made


@pytest.fixture
def channel(host: AgentHost) -> Channel:
    return host.channel()


def small() -> Tree:
    return Tree().file("train.py", b"print('hi')\n").file("lib/a.py", b"A = 1\n").file("lib/b.py", b"A = 1\n")


def blob(host: AgentHost, data: bytes) -> Path:
    digest = hashlib.sha256(data).hexdigest()
    return host.root / "blobs" / digest[:2] / digest


def test_a_job_is_made_and_queued(host: AgentHost, channel: Channel) -> None:
    entry = job("job00001", env={"X": "1"})
    entry["secrets"] = {"KEY": "s3cret"}
    answer = channel.stage([entry], small())
    assert answer["need"] == [0, 1] and answer["existed"] == [] and answer["exists"] is None
    assert answer["jobs"]["job00001"]["state"] == "QUEUED"
    folder = host.job("job00001")
    assert load(folder / "request.json") == entry["request"]
    assert load(folder / "manifest.json") == small().entries
    assert load(folder / "secrets.json") == {"KEY": "s3cret"}
    assert not (folder / "out").exists()  # it is made when the job starts
    assert (host.home / "queue" / "job00001").exists()
    for path in [folder, *folder.iterdir()]:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    assert b"s3cret" not in b"".join(
        p.read_bytes() for p in folder.iterdir() if p.is_file() and p.name != "secrets.json"
    )


def test_an_unchanged_tree_costs_no_bytes(channel: Channel) -> None:
    channel.stage([job("job00001")], small())
    assert channel.stage([job("job00002")], small())["need"] == []
    assert channel.stage([job("job00003")], small().file("new.py", b"new"))["need"] == [2]


def test_many_jobs_share_one_tree(host: AgentHost, channel: Channel) -> None:
    jobs = [job(f"trial{n:04}") for n in range(30)]
    answer = channel.stage(jobs, small())
    assert sorted(answer["jobs"]) == sorted(entry["request"]["id"] for entry in jobs)
    assert len({(host.job(name) / "manifest.json").stat().st_ino for name in answer["jobs"]}) == 1


def test_no_code_at_all(host: AgentHost, channel: Channel) -> None:
    assert channel.stage([job("job00001")], None)["need"] == []
    assert not (host.job("job00001") / "manifest.json").exists()


def test_a_packed_list_is_the_same(host: AgentHost, channel: Channel) -> None:
    packed = base64.b64encode(zlib.compress(json.dumps(small().entries).encode())).decode()
    channel.send({"v": 1, "op": "stage", "jobs": [job("job00001")], "manifest_z": packed})
    assert channel.json()["need"] == [0, 1]
    for data in small().contents:
        channel.content(data)
    channel.json()
    assert load(host.job("job00001") / "manifest.json") == small().entries


def test_a_repeated_submit_finds_its_job(host: AgentHost, channel: Channel) -> None:
    channel.stage([job("job00001")], small())
    before = (host.job("job00001") / "request.json").stat()
    again = channel.stage([job("job00001", env={"OTHER": "1"})], small())
    assert again["existed"] == ["job00001"] and again["need"] == []
    assert again["exists"]["job00001"]["state"] == "QUEUED"
    assert (host.job("job00001") / "request.json").stat().st_mtime_ns == before.st_mtime_ns
    both = channel.stage([job("job00001"), job("job00002")], small())
    assert both["existed"] == ["job00001"] and sorted(both["jobs"]) == ["job00001", "job00002"]


def test_a_job_whose_enqueueing_was_cut_is_queued_by_the_next_submit(host: AgentHost, channel: Channel) -> None:
    channel.stage([job("job00001")], None)
    (host.home / "queue" / "job00001").unlink()
    channel.stage([job("job00001")], None)
    assert (host.home / "queue" / "job00001").exists()


def test_two_at_once_with_one_id_make_one_job(host: AgentHost) -> None:
    one, two = host.channel(), host.channel()
    for channel in (one, two):
        channel.send({"v": 1, "op": "stage", "jobs": [job("job00001")], "manifest": small().entries})
        assert channel.json()["need"] == [0, 1]
    answers = []
    for channel in (one, two):
        for data in small().contents:
            channel.content(data)
        answers.append(channel.json()["data"]["existed"])
    assert sorted(answers) == [[], ["job00001"]]
    assert [path.name for path in (host.home / "jobs").iterdir()] == ["job00001"]


@pytest.mark.parametrize("frames", [[b"B", b"wrong"], [b"B", b"print('hi')\nmore"], [b"B", b""], [b"J", b"{}"]])
def test_a_file_that_changed_meanwhile_makes_no_job(host: AgentHost, channel: Channel, frames: list[bytes]) -> None:
    from jobrunner.agent import wire

    channel.send({"v": 1, "op": "stage", "jobs": [job("job00001")], "manifest": small().entries})
    channel.json()
    channel.raw(wire.pack(frames[0], frames[1]) + wire.pack(b"E", b""))
    channel.content(b"A = 1\n")
    with pytest.raises(AgentFailed) as failed:
        channel.json()
    assert failed.value.code in ("changed", "aborted")
    assert list((host.home / "jobs").iterdir()) == []
    assert not list(host.root.glob("blobs/*/.tmp-*"))
    # The channel is usable, and the same submit succeeds.
    assert channel.stage([job("job00001")], small())["jobs"]["job00001"]["state"] == "QUEUED"


def test_a_submit_that_is_cut_leaves_no_job(host: AgentHost, channel: Channel) -> None:
    channel.send({"v": 1, "op": "stage", "jobs": [job("job00001")], "manifest": small().entries})
    channel.json()
    channel.content(b"print('hi')\n")
    channel.close()
    assert list((host.home / "jobs").iterdir()) == []
    assert not list(host.root.glob("blobs/*/.tmp-*"))
    assert host.channel().stage([job("job00001")], small())["need"] == [1]


def test_hostile_lists_write_nothing(host: AgentHost, channel: Channel) -> None:
    for path in ["../../evil", "/tmp/evil", "a/../b"]:
        with pytest.raises(AgentFailed, match="bad_manifest"):
            channel.stage([job("job00001")], Tree().file(path, b"x"))
    for ids in [["../evil"], ["UPPERCASE1"], ["short"], ["job00001", "job00001"]]:
        with pytest.raises(AgentFailed, match="bad_id"):
            channel.stage([job(name) for name in ids], None)
    assert not (host.root / "blobs").exists() or not list((host.root / "blobs").iterdir())


def test_a_damaged_length_is_sent_again(host: AgentHost, channel: Channel) -> None:
    channel.stage([job("job00001")], small())
    blob(host, b"A = 1\n").write_bytes(b"A")
    assert channel.stage([job("job00002")], small())["need"] == [1]
    assert blob(host, b"A = 1\n").read_bytes() == b"A = 1\n"


def test_an_old_content_that_is_used_again_becomes_young(host: AgentHost, channel: Channel) -> None:
    channel.stage([job("job00001")], small())
    path = blob(host, b"A = 1\n")
    os.utime(path, (time.time() - 90_000,) * 2)
    channel.stage([job("job00002")], small())
    assert time.time() - path.stat().st_mtime < 60


def test_a_big_file_takes_no_memory(host: AgentHost, channel: Channel) -> None:
    size = 160 << 20
    piece = os.urandom(1 << 20)
    digest = hashlib.sha256(piece * (size >> 20)).hexdigest()
    entries = [["f", "big.bin", 0o644, size, digest]]
    channel.send({"v": 1, "op": "stage", "jobs": [job("job00001")], "manifest": entries})
    assert channel.json()["need"] == [0]
    from jobrunner.agent import wire

    for _ in range(size >> 20):
        channel.raw(wire.pack(b"B", piece))
    channel.raw(wire.pack(b"E", b""))
    channel.json()
    peak = next(
        int(line.split()[1])
        for line in Path(f"/proc/{channel.process.pid}/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    assert peak < 60_000, f"{peak} KB at the peak"


def test_no_space_is_said_before_anything_is_sent(host: AgentHost, channel: Channel) -> None:
    free = os.statvfs(host.root)
    size = free.f_bavail * free.f_frsize * 2
    channel.send({"v": 1, "op": "stage", "jobs": [job("job00001")], "manifest": [["f", "big", 0o644, size, "b" * 64]]})
    with pytest.raises(AgentFailed) as failed:
        channel.json()
    assert failed.value.code == "no_space"
    assert str(host.root) in failed.value.message and "bytes are free" in failed.value.message


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a small file system can be mounted by root only")
def test_a_disk_that_fills_up_meanwhile(host: AgentHost) -> None:
    blob_folder = host.root / "blobs"
    blob_folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(blob_folder)], check=True)
    try:
        tree = Tree().file("big", os.urandom(200_000))
        channel = host.channel()
        with pytest.raises(AgentFailed) as failed:
            channel.stage([job("job00001")], tree)
        assert failed.value.code == "no_space"
        assert str(blob_folder) in failed.value.message and "bytes are free" in failed.value.message
        assert list((host.home / "jobs").iterdir()) == [] and not list(blob_folder.rglob(".tmp-*"))
        assert channel.stage([job("job00001")], small())["jobs"]["job00001"]["state"] == "QUEUED"
    finally:
        subprocess.run(["umount", str(blob_folder)], check=True)


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="a file system can be mounted by root only")
def test_a_read_only_file_system_is_named(host: AgentHost) -> None:
    blob_folder = host.root / "blobs"
    blob_folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "ro,size=64k", "none", str(blob_folder)], check=True)
    try:
        with pytest.raises(AgentFailed) as failed:
            host.channel().stage([job("job00001")], small())
        assert failed.value.code == "read_only" and str(blob_folder) in failed.value.message
    finally:
        subprocess.run(["umount", str(blob_folder)], check=True)


def test_no_room_for_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen:
        f_bavail, f_frsize, f_files, f_favail = 1 << 40, 1, 1000, 10

    monkeypatch.setattr(os, "statvfs", lambda path: Seen)
    with pytest.raises(AgentError, match="room for 10 more"):
        blobs.check_space(os.fsencode(tmp_path), 10, 100)


def test_the_submitting_session_s_environment_is_kept_without_what_is_only_its_own(host: AgentHost) -> None:
    extra = {"SSH_CONNECTION": "1", "XDG_RUNTIME_DIR": "/x", "TMUX": "t", "TMUX_PANE": "p", "DISPLAY": ":0"}
    keep = {"MINE": "a=b\nc", "LANG": "zh_CN.GB18030", "ODD": "\udcff", "JOBRUNNER_JOB_ID": "outer001"}
    host.channel(**extra, **keep).stage([job("job00001")], None)
    seen = load(host.job("job00001") / "environ.json")
    assert not set(seen) & set(extra) and "JOBRUNNER_JOB_ID" not in seen
    assert {name: seen[name] for name in ("MINE", "LANG", "ODD")} == {n: keep[n] for n in ("MINE", "LANG", "ODD")}
    assert seen["JOBRUNNER_LEASE_SCOPE"] == host.scope


def test_left_overs_of_cut_stages_go_after_a_day(host: AgentHost, channel: Channel) -> None:
    old, young = host.home / "jobs" / ".tmp-job00009-aa", host.home / "jobs" / ".tmp-job00008-bb"
    for folder in (old, young):
        (folder / "out").mkdir(parents=True)
    os.utime(old, (time.time() - 90_000,) * 2)
    channel.stage([job("job00001")], small())
    assert not old.exists() and young.exists()
    assert stage.sweep_leftovers(host.layout) == []


def test_clone_takes_the_code_and_not_the_bytes(host: AgentHost, channel: Channel) -> None:
    channel.stage([job("job00001")], small())
    answer = channel.ask("clone", id="job00001", **job("job00002"), resume=True)
    assert answer["existed"] == [] and answer["jobs"]["job00002"]["state"] == "QUEUED"
    assert load(host.job("job00002") / "manifest.json") == small().entries
    assert load(host.job("job00002") / "resume.json")["job"] == "job00001"
    assert channel.ask("clone", id="job00001", **job("job00002"))["existed"] == ["job00002"]
    channel.ask("clone", id="job00001", **job("job00003"))
    assert not (host.job("job00003") / "resume.json").exists()


def test_clone_says_what_is_missing(host: AgentHost, channel: Channel) -> None:
    with pytest.raises(AgentFailed, match="no_such_job"):
        channel.ask("clone", id="nosuch01", **job("job00002"))
    channel.stage([job("job00001")], small())
    blob(host, b"A = 1\n").unlink()
    with pytest.raises(AgentFailed, match="code_gone"):
        channel.ask("clone", id="job00001", **job("job00002"))
    assert not host.job("job00002").exists()


def test_a_tombstone_closes_an_id(host: AgentHost, channel: Channel) -> None:
    view = channel.ask("tombstone", id="job00001", name="resnet")["jobs"]["job00001"]
    assert (view["state"], view["reason"], view["name"]) == ("FAILED", "interrupted", "resnet")
    late = channel.stage([job("job00001")], small())
    assert late["existed"] == ["job00001"] and late["jobs"]["job00001"]["state"] == "FAILED"
    assert not (host.home / "queue" / "job00001").exists()


def test_a_tombstone_tells_what_was_being_sent(host: AgentHost, channel: Channel) -> None:
    sent = job("job00001")["request"]
    asked = {"request": sent, "cancelled": True, "at": "2026-12-01T09:30:00.000000Z"}
    view = channel.ask("tombstone", id="job00001", name="x", **asked)["jobs"]["job00001"]
    assert (view["state"], view["reason"], view["cancel_requested_at"]) == ("CANCELLED", None, asked["at"])
    kept = json.loads((host.job("job00001") / "request.json").read_text())
    assert kept == {**sent, "tombstone": True}
    # Its code never came: there is nothing that could be run again.
    with pytest.raises(AgentFailed, match="code_gone"):
        channel.ask("clone", id="job00001", **job("job00002"))


def test_a_tombstone_comes_too_late(channel: Channel) -> None:
    channel.stage([job("job00001")], None)
    assert channel.ask("tombstone", id="job00001", name="x")["jobs"]["job00001"]["state"] == "QUEUED"


def test_many_jobs_come_packed_and_wait_in_their_order(host: AgentHost, channel: Channel) -> None:
    jobs = [job(f"packed{n:03}") for n in range(12)]
    packed = base64.b64encode(zlib.compress(json.dumps(jobs).encode())).decode()
    again = channel.stage([], small(), jobs_z=packed)
    assert [view["state"] for view in again["jobs"].values()] == ["QUEUED"] * 12
    entries = [load(host.home / "queue" / f"packed{n:03}") for n in range(12)]
    since = [entry["since"] for entry in entries]
    assert since == sorted(since) and len(set(since)) == 12
    assert len({(host.job(entry["id"]) / "environ.json").stat().st_ino for entry in entries}) == 1
    assert sorted(channel.stage([], small(), jobs_z=packed)["existed"]) == sorted(entry["id"] for entry in entries)
    assert [load(host.home / "queue" / entry["id"]) for entry in entries] == entries
    assert not [path.name for path in (host.home / "queue").iterdir() if path.name.endswith(".tmp")]


def test_a_disk_that_fails_to_sync_makes_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many jobs none is published before all of them are on the disk, and no queue entry is left aside."""
    layout = Layout(os.fsencode(tmp_path / "root"), "i0000001")
    entries = [(job(f"failing{n:02}"), None) for n in range(6)]

    def broken(paths: list[bytes]) -> None:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(together, "sync_all", broken)
    with pytest.raises(OSError):
        stage.commit(layout, entries, [])
    assert all(name.startswith(b".tmp-") for name in os.listdir(layout.jobs))
    assert os.listdir(layout.queue) == []
    assert not [name for name in os.listdir(layout.home) if name.startswith(b".tmp-")]


def test_one_failing_sync_of_many_is_told(tmp_path: Path) -> None:
    paths = [os.fsencode(tmp_path / f"f{n}") for n in range(40)]
    for path in paths:
        Path(os.fsdecode(path)).write_bytes(b"x")
    together.sync_all([*paths, os.fsencode(tmp_path)])
    os.unlink(paths[20])
    with pytest.raises(FileNotFoundError):
        together.sync_all(paths)
