"""Fetching over links that break: at the byte, verified, and what is being fetched is never cleaned away."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import parted
from jobrunner.service import lanes
from tests.support.lab import Lab
from tests.support.quick import QuickClient
from tests.support.relay import relayed
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
SIZE = 24_000_000


@pytest.fixture
def quick(lab: Lab, tmp_path: Path) -> QuickClient:
    return QuickClient(tmp_path / "quick", lab)


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def big(quick: QuickClient, name: str) -> str:
    text = (
        f"device: cpu\ncommand: mkdir ckpt; head -c {SIZE} /dev/urandom > ckpt/m-1.bin\n"
        "checkpoints: {paths: ['ckpt/*.bin']}\n"
    )
    id_ = quick.submit(text, name)
    quick.run("wait", id_)
    return id_


def test_a_cut_pull_moves_each_byte_once(quick: QuickClient, lab: Lab, tmp_path: Path) -> None:
    """Every connection dies after 9 MB: the command itself goes on, and hardly more than the file has passed."""
    id_ = big(quick, "cut")
    with relayed(quick, lab) as relay:
        relay.direction, relay.limit = "down", 9_000_000
        data = quick.json("checkpoints", id_, "--pull", "last", "--to", str(tmp_path / "got"))
        passed = relay.passed["down"]
    assert digest(tmp_path / "got" / "m-1.bin") == digest(lab.job_folder(id_) / "1" / "work" / "ckpt" / "m-1.bin")
    # What was on its way in sshd's and the relay's buffers at a cut is lost and comes again.
    assert SIZE < passed < SIZE * 1.35, passed
    assert [path.name for path in (tmp_path / "got").iterdir()] == ["m-1.bin"]
    assert data["files"][0]["sha256"] == digest(tmp_path / "got" / "m-1.bin")


@pytest.mark.parametrize("path", ["../../x", "/etc/passwd", "a/../../b"])
def test_a_path_that_climbs_is_wrong_usage(quick: QuickClient, path: str) -> None:
    id_ = quick.submit("device: cpu\ncommand: 'true'\n", "climbs")
    quick.run("wait", id_)
    error = quick.json("pull", id_, path, code=2)["errors"][0]
    assert error["code"] == "bad_pattern" and path in error["message"] and error["remedy"]


def test_the_next_pull_goes_on_where_a_killed_one_stopped(quick: QuickClient, lab: Lab, tmp_path: Path) -> None:
    id_ = big(quick, "killed")
    got = tmp_path / "got"
    with relayed(quick, lab) as relay:
        relay.delay = 0.0004  # 10 MB/s
        process = quick.start("checkpoints", id_, "--pull", "last", "--to", str(got))
        eventually(lambda: [p for p in got.glob(".*.part") if p.stat().st_size > SIZE // 3], 30, "a third of it")
        process.kill()
        process.communicate()
        relay.delay = 0.0
        [part] = got.glob(".*.part")
        there = part.stat().st_size
        eventually(lambda: not relay.open, 20, "what was on its way has passed")
        before = relay.passed["down"]
        data = quick.json("checkpoints", id_, "--pull", "last", "--to", str(got))
        passed = relay.passed["down"] - before
        again = quick.json("checkpoints", id_, "--pull", "last", "--to", str(got))
    assert data["files"][0]["fetched"] == SIZE - there
    assert SIZE - there < passed < SIZE - there + 300_000
    assert digest(got / "m-1.bin") == digest(lab.job_folder(id_) / "1" / "work" / "ckpt" / "m-1.bin")
    assert again["files"][0]["fetched"] == 0


def wide(monkeypatch: pytest.MonkeyPatch, count: int = 3) -> None:
    """Files as small as ours come over several channels, in many chunks."""
    monkeypatch.setattr(lanes.Lanes, "least", SIZE // 2)
    monkeypatch.setattr(lanes, "wanted_lanes", lambda _: count)
    monkeypatch.setattr(parted, "CHUNK", 1_000_000)


@pytest.mark.parametrize("transport", ["fabric", "auto"])
def test_a_cut_pull_over_several_channels_moves_each_byte_once(
    quick: QuickClient, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, transport: str
) -> None:
    id_ = big(quick, "wide")
    wide(monkeypatch)
    with relayed(quick, lab) as relay:
        relay.direction, relay.limit = "down", 9_000_000
        words = ("checkpoints", id_, "--pull", "last", "--to", str(tmp_path / "got"), "--transport", transport)
        data = quick.json(*words)
        passed = relay.passed["down"]
    assert digest(tmp_path / "got" / "m-1.bin") == digest(lab.job_folder(id_) / "1" / "work" / "ckpt" / "m-1.bin")
    assert SIZE < passed < SIZE * 1.5, passed  # what was on its way at a cut comes again
    assert [path.name for path in (tmp_path / "got").iterdir()] == ["m-1.bin"]
    assert data["files"][0]["sha256"] == digest(tmp_path / "got" / "m-1.bin")


def test_a_part_with_gaps_is_gone_on_with_and_a_spoilt_one_never_gets_its_name(
    quick: QuickClient, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id_ = big(quick, "gaps")
    wide(monkeypatch)
    source, got = lab.job_folder(id_) / "1" / "work" / "ckpt" / "m-1.bin", tmp_path / "got"
    real, planted = lanes.Lanes.fetch, [b"x" * 700_000, source.read_bytes()[5_000_000:5_700_000]]

    def fetch(self: lanes.Lanes, entry: Any, handle: int, advance: Any) -> Any:
        assert lanes.Parted(handle, SIZE).put(5_000_000, planted.pop(0))
        return real(self, entry, handle, advance)

    monkeypatch.setattr(lanes.Lanes, "fetch", fetch)
    words = ("checkpoints", id_, "--pull", "last", "--to", str(got))
    assert quick.json(*words, code=None)["errors"][0]["code"] == "hash_mismatch"
    assert list(got.iterdir()) == []
    data = quick.json(*words)
    assert data["files"][0]["fetched"] == SIZE - 700_000 and digest(got / "m-1.bin") == digest(source)


def test_many_small_files_over_cuts(quick: QuickClient, lab: Lab, tmp_path: Path) -> None:
    shell = "cd $JOBRUNNER_OUTPUT_DIR; for i in $(seq 1 150); do head -c $((i * 97)) /dev/urandom > f$i.bin; done"
    id_ = quick.submit(f"device: cpu\ncommand: {shell}\n", "small")
    quick.run("wait", id_)
    with relayed(quick, lab) as relay:
        relay.direction, relay.limit = "down", 400_000
        quick.run("pull", id_, "--to", str(tmp_path / "got"))
    there = {path.name: digest(path) for path in (lab.job_folder(id_) / "out").iterdir()}
    assert {path.name: digest(path) for path in (tmp_path / "got").iterdir()} == there and len(there) == 150


def test_what_is_being_pulled_stays_though_keep_does_not_want_it(quick: QuickClient, lab: Lab, tmp_path: Path) -> None:
    """A slow pull of the oldest checkpoint while the job writes newer ones and `keep: 1` is applied on the host."""
    shell = (
        f"mkdir ckpt; head -c {SIZE // 3} /dev/urandom > ckpt/m-1.bin; "
        "while [ ! -e $JOBRUNNER_OUTPUT_DIR/more ]; do sleep 0.05; done; echo 2 > ckpt/m-2.bin; echo 3 > ckpt/m-3.bin"
    )
    id_ = quick.submit(f"device: cpu\ncommand: {shell}\ncheckpoints: {{paths: ['ckpt/*.bin'], keep: 1}}\n", "pulled")
    eventually(lambda: quick.json("checkpoints", id_)["checkpoints"][:1], 20, "the first checkpoint")
    eventually(lambda: quick.json("checkpoints", id_)["checkpoints"][0]["complete"], 20, "it has settled")
    folder = lab.job_folder(id_)
    oldest = folder / "1" / "work" / "ckpt" / "m-1.bin"
    with relayed(quick, lab) as relay:
        relay.delay = 0.0005
        got = tmp_path / "got"
        process = quick.start("checkpoints", id_, "--pull", "m-1.bin", "--to", str(got))
        eventually(lambda: [p for p in got.glob(".*.part") if p.stat().st_size > 0], 30, "it is under way")
        (folder / "out" / "more").touch()
        eventually((folder / "final.json").exists, 20, "the end of the job")
        assert oldest.exists() and not (folder / "1" / "work" / "ckpt" / "m-2.bin").exists()
        relay.delay = 0.0
        process.communicate(timeout=60)
        assert process.returncode == 0 and (got / "m-1.bin").stat().st_size == SIZE // 3


def test_gc_says_what_it_would_do_and_then_does_it(quick: QuickClient, lab: Lab) -> None:
    id_ = quick.submit("device: cpu\ncommand: 'true'\ncode: .\n", "old", data__bin="x" * 50_000)
    quick.run("wait", id_)
    folder = lab.job_folder(id_)
    final = folder / "final.json"
    final.write_text(final.read_text().replace('"at":"20', '"at":"19'))
    before = {path: path.stat().st_size for path in lab.root.rglob("*") if path.is_file()}
    dry = quick.json("gc", lab.alias, "--dry-run")["hosts"][0]
    assert dry["bytes"] >= 50_000 and {path: path.stat().st_size for path in before if path.exists()} == before
    really = quick.json("gc", lab.alias)["hosts"][0]
    assert [item["path"] for item in really["removed"]] == [item["path"] for item in dry["removed"]]
    assert not (folder / "1" / "work").exists() and final.exists() and (folder / "1" / "log").exists()
    assert quick.row(id_)["state"] == "COMPLETED"
