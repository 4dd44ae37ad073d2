"""The tree that a job runs in: as it was sent, with what is carried over; a damaged copy is never run."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.agent import inside, remove, worktree
from jobrunner.agent.files import AgentError
from tests.support.agentproc import AgentHost, Tree, agent_host, job


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with agent_host(tmp_path) as made:
        made.drain()
        yield made


def written(host: AgentHost, tree: Tree | None, attempt: int = 1, carry_from: int | None = None) -> Path:
    if not host.job("job00001").exists():
        host.channel().stage([job("job00001", carry=["cache/", "state.txt", "deep/*/keep"])], tree)
    return Path(os.fsdecode(worktree.materialise(host.layout, "job00001", attempt, carry_from)))


def test_everything_is_as_it_was_sent(host: AgentHost) -> None:
    tree = (
        Tree()
        .file("run.sh", b"#!/bin/sh\n", 0o755)
        .file("data/ro.txt", b"x", 0o444)
        .file("-rf", b"")
        .file("a\nb", b"1")
    )
    tree.folder("empty").folder("closed", 0o555).file("closed/in", b"2").file("set", b"3", 0o4755)
    tree.link("inside", "data/ro.txt").link("out", "/etc/passwd").link("loop", "loop").link("broken", "nowhere")
    work = written(host, tree)
    assert (work / "run.sh").read_bytes() == b"#!/bin/sh\n"
    modes = {name: stat.S_IMODE((work / name).lstat().st_mode) for name in ["run.sh", "data/ro.txt", "closed", "set"]}
    assert modes == {"run.sh": 0o755, "data/ro.txt": 0o444, "closed": 0o555, "set": 0o755}
    assert (work / "empty").is_dir() and (work / "-rf").read_bytes() == b"" and (work / "a\nb").read_bytes() == b"1"
    assert {name: os.readlink(work / name) for name in ["inside", "out", "loop", "broken"]} == {
        "inside": "data/ro.txt", "out": "/etc/passwd", "loop": "loop", "broken": "nowhere",
    }  # fmt: skip
    assert [path.name for path in work.parent.iterdir()] == ["work"]
    assert remove.tree(os.fsencode(work)) and not work.exists()


def test_no_code_is_an_empty_folder(host: AgentHost) -> None:
    assert list(written(host, None).iterdir()) == []


def test_it_may_be_repeated(host: AgentHost) -> None:
    work = written(host, Tree().file("a", b"1"))
    (work / "a").write_bytes(b"the job's own")
    (work.parent / ".work-cut").mkdir()
    assert written(host, None) == work
    assert (work / "a").read_bytes() == b"the job's own"


def test_what_a_cut_build_left_goes(host: AgentHost) -> None:
    host.channel().stage([job("job00001")], Tree().file("a", b"1"))
    left = host.job("job00001") / "1" / ".work-cut"
    left.mkdir(parents=True)
    (left / "half").write_bytes(b"")
    worktree.materialise(host.layout, "job00001", 1)
    assert not left.exists()


@pytest.mark.parametrize("damage", ["changed", "missing", "link"])
def test_a_damaged_copy_is_never_run(host: AgentHost, damage: str, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"1234").hexdigest()
    host.channel().stage([job("job00001")], Tree().file("a", b"1234"))
    path = host.root / "blobs" / digest[:2] / digest
    path.unlink()
    if damage == "changed":
        path.write_bytes(b"1235")
    elif damage == "link":
        (tmp_path / "other").write_bytes(b"1234")
        path.symlink_to(tmp_path / "other")
    with pytest.raises(AgentError) as failed:
        worktree.materialise(host.layout, "job00001", 1)
    assert failed.value.code == "blob_damaged"
    assert not (host.job("job00001") / "1" / "work").exists()
    if damage == "changed":
        assert not path.exists(), "the next submit has to send it again"


def test_an_unreadable_list_of_files_is_no_empty_tree(host: AgentHost) -> None:
    host.channel().stage([job("job00001")], Tree().file("a", b"1234"))
    (host.job("job00001") / "manifest.json").write_bytes(b'[["f", "a"')
    with pytest.raises(AgentError, match="cannot be read"):
        worktree.materialise(host.layout, "job00001", 1)


def test_what_is_carried_lies_over_the_tree(host: AgentHost, tmp_path: Path) -> None:
    tree = (
        Tree().file("state.txt", b"as sent").file("train.py", b"code").file("cache/seed", b"seed").folder("deep", 0o555)
    )
    first = written(host, tree)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_bytes(b"stay")
    os.chmod(first / "deep", 0o755)
    (first / "state.txt").write_bytes(b"as the job left it")
    (first / "train.py").write_bytes(b"changed by the job")
    (first / "cache" / "sub").mkdir()
    (first / "cache" / "sub" / "x.bin").write_bytes(b"\0" * 3_000_000)
    (first / "cache" / "away").symlink_to(outside)
    os.mkfifo(first / "cache" / "pipe")
    os.chmod(first / "cache", 0o500)
    (first / "deep" / "d1").mkdir(parents=True)
    (first / "deep" / "d1" / "keep").write_bytes(b"k")
    (first / "deep" / "d1" / "drop").write_bytes(b"d")
    second = written(host, None, 2, carry_from=1)
    assert (second / "state.txt").read_bytes() == b"as the job left it"
    assert (second / "train.py").read_bytes() == b"code"
    assert (second / "cache" / "sub" / "x.bin").stat().st_size == 3_000_000
    assert os.readlink(second / "cache" / "away") == str(outside)
    assert not (second / "cache" / "pipe").exists()
    assert (second / "deep" / "d1" / "keep").read_bytes() == b"k" and not (second / "deep" / "d1" / "drop").exists()
    assert stat.S_IMODE((second / "deep").stat().st_mode) == 0o555
    os.chmod(first / "cache", 0o700)
    assert list(outside.iterdir()) == [outside / "precious"]


def test_a_link_in_the_old_tree_does_not_carry_what_it_leads_to(host: AgentHost, tmp_path: Path) -> None:
    first = written(host, Tree().file("a", b"1"))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "secret").write_bytes(b"no")
    (first / "deep").symlink_to(tmp_path / "elsewhere")
    second = written(host, None, 2, carry_from=1)
    assert not (second / "deep").exists()


@pytest.mark.parametrize("pattern", ["", "/etc/*", "../*", "a/../../b", "./"])
def test_patterns_that_climb_are_refused(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(AgentError, match="not a relative pattern"):
        inside.find(os.fsencode(tmp_path), [pattern])


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("ckpt/*.pt", {"ckpt/1.pt", "ckpt/2.pt"}),
        ("./ckpt/1.pt", {"ckpt/1.pt"}),
        ("**/*.pt", {"ckpt/1.pt", "ckpt/2.pt", "top.pt", "ckpt/deep/3.pt"}),
        ("ckpt/**", {"ckpt/1.pt", "ckpt/2.pt", "ckpt/deep/3.pt"}),
        ("*/", {"ckpt"}),
        ("ckpt", {"ckpt"}),
        ("ckpt/?.pt", {"ckpt/1.pt", "ckpt/2.pt"}),
        ("ckpt/[!1].pt", {"ckpt/2.pt"}),
        ("**/deep", {"ckpt/deep"}),
        ("ckpt/**/deep/", {"ckpt/deep"}),
        ("*/link/*", set()),
        (".hid*", {".hidden"}),
        ("*.pt", {"top.pt"}),
        ("é?", {"éß"}),
        ("nothing/here", set()),
    ],
)
def test_patterns(tmp_path: Path, pattern: str, expected: set[str]) -> None:
    (tmp_path / "ckpt" / "deep").mkdir(parents=True)
    for name in ["ckpt/1.pt", "ckpt/2.pt", "ckpt/deep/3.pt", "top.pt", ".hidden", "éß"]:
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "ckpt" / "link").symlink_to("/etc")
    found = {os.fsdecode(path) for path in inside.find(os.fsencode(tmp_path), [pattern])}
    assert found - ({"ckpt/link"} if "**" in pattern else set()) == expected


def test_a_swapped_in_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "top" / "real").mkdir(parents=True)
    (tmp_path / "top" / "real" / "f").write_bytes(b"x")
    (tmp_path / "top" / "way").symlink_to("real")
    top = os.fsencode(tmp_path / "top")
    os.close(inside.open_at(top, "real/f"))
    with pytest.raises(OSError):
        inside.open_at(top, "way/f")
    with pytest.raises(AgentError):
        inside.open_at(top, "../x")
