"""Packs: a first upload of many small files, cut, damaged, cleaned up."""

from __future__ import annotations

import hashlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.agent import blobs, clock, packs, wire, worktree
from jobrunner.agent.files import AgentError
from tests.support.agentproc import AgentFailed, AgentHost, Tree, agent_host, job, until

COUNT = packs.LEAST + 20


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with agent_host(tmp_path) as made:
        made.drain()
        yield made


def content(number: int) -> bytes:
    return b"" if number == 7 else f"x = {number}\n".encode() * (number + 1)


def many(count: int = COUNT) -> Tree:
    tree = Tree().file("big.bin", b"b" * (packs.MOST_BYTES + 1))
    for number in range(count):
        tree.file(f"pkg/m{number:04}.py", content(number), 0o755 if number % 2 else 0o640)
    return tree


def the_pack(host: AgentHost) -> Path:
    [path] = (host.root / "packs").glob("*.pack")
    return path


def digest(number: int) -> str:
    return hashlib.sha256(content(number)).hexdigest()


def place(host: AgentHost, number: int) -> tuple[int, int]:
    return next((at, size) for name, at, size in packs.records(os.fsencode(the_pack(host))) if name == digest(number))


def test_many_small_contents_are_one_file(host: AgentHost) -> None:
    channel = host.channel()
    assert len(channel.stage([job("job00001")], many())["need"]) == COUNT + 1
    assert len([path for path in (host.root / "blobs").rglob("*") if path.is_file()]) == 1  # the big one
    assert the_pack(host).stat().st_mode & 0o777 == 0o600
    assert channel.stage([job("job00002")], many())["need"] == []
    work = Path(os.fsdecode(worktree.materialise(host.layout, "job00002", 1)))
    for number in range(COUNT):
        path = work / f"pkg/m{number:04}.py"
        assert path.read_bytes() == content(number)
        assert path.stat().st_mode & 0o777 == (0o755 if number % 2 else 0o640)
    assert (work / "big.bin").stat().st_size == packs.MOST_BYTES + 1
    assert channel.stage([job("job00003")], many().file("new.py", b"new"))["need"] == [COUNT + 1]


@pytest.mark.parametrize("damage", ["gone", "empty", "short", "of another size"])
def test_without_its_index_a_pack_says_the_same(host: AgentHost, damage: str) -> None:
    host.channel().stage([job("job00001")], many())
    index = Path(f"{the_pack(host)}.idx")
    before = packs.records(os.fsencode(the_pack(host)))
    assert len(before) == COUNT
    data = index.read_bytes()
    index.unlink()
    if damage != "gone":
        index.write_bytes({"empty": b"", "short": data[:-5]}.get(damage, b"\0" * 8 + data[8:]))
    assert packs.records(os.fsencode(the_pack(host))) == before


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_what_came_before_a_cut_stays(host: AgentHost, how: str) -> None:
    channel = host.channel()
    channel.send({"v": 1, "op": "stage", "jobs": [job("job00001")], "manifest": many().entries})
    channel.json()
    for data in many().contents[:31]:
        channel.content(data)
    channel.raw(wire.pack(b"B", b"half of one"))
    until(lambda: len(packs.records(os.fsencode(the_pack(host)))) == 30 if _packs(host) else False)
    if how == "killed":
        channel.process.send_signal(signal.SIGKILL)
        channel.process.wait(10)
    else:
        channel.close()
    assert host.channel().stage([job("job00001")], many())["need"] == list(range(31, COUNT + 1))


def _packs(host: AgentHost) -> list[Path]:
    return list((host.root / "packs").glob("*.pack"))


def test_a_file_that_changed_meanwhile_is_in_no_pack(host: AgentHost) -> None:
    channel = host.channel()
    channel.send({"v": 1, "op": "stage", "jobs": [job("job00001")], "manifest": many().entries})
    channel.json()
    channel.content(many().contents[0])
    channel.content(content(0))
    channel.content(b"z" * len(content(1)))
    with pytest.raises(AgentFailed) as failed:
        channel.json()
    assert failed.value.code == "changed"
    assert [name for name, _, _ in packs.records(os.fsencode(the_pack(host)))] == [digest(0)]
    assert host.channel().stage([job("job00001")], many())["need"] == list(range(2, COUNT + 1))


def test_a_damaged_content_is_never_run_and_is_sent_again(host: AgentHost) -> None:
    host.channel().stage([job("job00001")], many())
    at, _ = place(host, 11)
    with the_pack(host).open("r+b") as pack:
        pack.seek(at)
        pack.write(b"?")
    with pytest.raises(AgentError) as failed:
        worktree.materialise(host.layout, "job00001", 1)
    assert failed.value.code == "blob_damaged"
    channel = host.channel()
    assert channel.stage([job("job00002")], many())["need"] == [12]
    work = Path(os.fsdecode(worktree.materialise(host.layout, "job00002", 1)))
    assert (work / "pkg/m0011.py").read_bytes() == content(11)


def test_a_pack_that_lost_its_end_is_good_up_to_there(host: AgentHost) -> None:
    host.channel().stage([job("job00001")], many())
    at, _ = place(host, 40)
    os.truncate(the_pack(host), at + 3)
    need = host.channel().stage([job("job00002")], many())["need"]
    assert need == list(range(41, COUNT + 1))


def test_packs_that_a_job_names_stay_and_others_go(host: AgentHost) -> None:
    host.channel().stage([job("job00001")], many())
    old = time.time() - 40 * 86400
    host.begin("job00001")
    os.utime(the_pack(host), (old, old))
    assert not [entry for entry in host.ask("gc", dry_run=False)["removed"] if ".pack" in entry["path"]]
    host.end("job00001", at=clock.stamp(old))
    removed = host.ask("gc", dry_run=False, keep_days=30)["removed"]
    assert [Path(entry["path"]).suffix for entry in removed].count(".pack") == 1
    assert list((host.root / "packs").iterdir()) == []


def test_a_pack_that_is_used_again_is_young_again(host: AgentHost) -> None:
    host.channel().stage([job("job00001")], many())
    old = time.time() - 2 * blobs.FRESH_S
    os.utime(the_pack(host), (old, old))
    host.channel().stage([job("job00002")], many())
    assert the_pack(host).stat().st_mtime > old + blobs.FRESH_S


def test_a_stranger_in_the_folder_is_passed_over(host: AgentHost) -> None:
    (host.root / "packs").mkdir(parents=True)
    (host.root / "packs" / "odd.pack").write_bytes(b"not a pack at all, but long enough for a head to be read from it")
    (host.root / "packs" / "link.pack").symlink_to("/etc/passwd")
    (host.root / "packs" / "folder.pack").mkdir()
    os.mkfifo(host.root / "packs" / "fifo.pack")
    assert len(host.channel().stage([job("job00001")], many())["need"]) == COUNT + 1
