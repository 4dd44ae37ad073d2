"""Results are handed out whole or said to have changed; resumable; never through a link out of the job's folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.agentproc import AgentFailed, AgentHost, Channel, agent_host, job


@pytest.fixture
def host(tmp_path: Path) -> Iterator[AgentHost]:
    with agent_host(tmp_path) as made:
        made.drain()
        yield made


@pytest.fixture
def work(host: AgentHost) -> Path:
    checkpoints = {"paths": ["ckpt/*.pt", "checkpoint-*"]}
    host.channel().stage([job("job00001", outputs=["metrics.json", "plots/"], checkpoints=checkpoints)], None)
    return host.begin("job00001") / "work"


def put(top: Path, files: dict[str, bytes]) -> None:
    for name, data in files.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(data)


class Pull:
    """One `collect`: the list, then files by name."""

    def __init__(self, channel: Channel, **fields: Any) -> None:
        self.channel = channel
        channel.send({"v": 1, "op": "collect", "id": "job00001", **fields})
        message = channel.json()
        self.files = message["files"]
        self.skipped = message["skipped"]
        self.coming = message["coming"]
        self.names = [entry["path"] for entry in self.files]

    def get(self, name: str, offset: int = 0) -> tuple[bytes, dict[str, Any]]:
        self.channel.send({"get": self.names.index(name), "offset": offset})
        return self.hear()

    def hear(self) -> tuple[bytes, dict[str, Any]]:
        data = b""
        while True:
            frame = self.channel.reader.frame()
            assert frame is not None
            if frame[0] == b"E":
                return data, self.channel.json()
            data += frame[1]

    def done(self) -> Any:
        self.channel.send({"done": True})
        return self.channel.json()["data"]


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_outputs_by_default(host: AgentHost, work: Path) -> None:
    big = os.urandom(700_000)
    put(work, {"metrics.json": b"{}", "plots/a.png": b"a", "plots/deep/b.png": big, "other": b"no"})
    put(host.job("job00001") / "out", {"plots/c.png": b"c", "unlisted": b"no"})
    pull = Pull(host.channel())
    assert pull.names == ["metrics.json", "plots/a.png", "plots/c.png", "plots/deep/b.png"]
    assert pull.files[3]["size"] == 700_000 and pull.files[3]["type"] == "f" and pull.files[3]["mtime"].endswith("Z")
    assert pull.get("plots/deep/b.png") == (big, {"sha256": sha(big)})
    assert pull.get("plots/deep/b.png", 600_001) == (big[600_001:], {"sha256": sha(big)})
    assert pull.get("plots/deep/b.png", 700_000) == (b"", {"sha256": sha(big)})
    assert pull.get("metrics.json") == (b"{}", {"sha256": sha(b"{}")})
    assert pull.done() == {"sent": 700_000 + 99_999 + 2}
    assert pull.channel.ask("checkpoints", id="job00001")["checkpoints"] == []


def test_everything_in_out_where_the_spec_names_no_outputs(host: AgentHost) -> None:
    host.channel().stage([job("job00001")], None)
    put(host.begin("job00001") / "work", {"code.py": b""})
    put(host.job("job00001") / "out", {"a/b": b"1", "c": b"2", ".hidden": b"3"})
    assert Pull(host.channel()).names == [".hidden", "a/b", "c"]


def test_a_waiting_job_has_nothing_to_hand_out_yet(host: AgentHost) -> None:
    host.channel().stage([job("job00001"), job("job00002", outputs=["*.txt"], checkpoints={"paths": ["*.pt"]})], None)
    for id_ in ("job00001", "job00002"):
        channel = host.channel()
        channel.send({"v": 1, "op": "collect", "id": id_})
        assert channel.json()["files"] == []
        assert host.ask("checkpoints", id=id_)["checkpoints"] == []
        assert host.ask("records", jobs=[id_])["jobs"][id_]["request"]["id"] == id_
    with pytest.raises(AgentFailed, match="no_such_file"):
        Pull(host.channel(), paths=["*"])


def test_the_newest_of_several_attempts(host: AgentHost, work: Path) -> None:
    put(work, {"metrics.json": b"first", "plots/only1.png": b"1"})
    os.utime(work / "metrics.json", (1_000_000, 1_000_000))
    put(host.begin("job00001", 2) / "work", {"metrics.json": b"second"})
    pull = Pull(host.channel())
    assert pull.names == ["metrics.json", "plots/only1.png"]
    assert pull.get("metrics.json")[0] == b"second"


def test_by_path(host: AgentHost, work: Path) -> None:
    put(work, {"runs/1/a.txt": b"1", "runs/2/a.txt": b"2", "b.txt": b"3"})
    assert Pull(host.channel(), paths=["runs/*/a.txt", "b.txt"]).names == ["b.txt", "runs/1/a.txt", "runs/2/a.txt"]
    for paths, code in [
        (["nosuch"], "no_such_file"),
        (["../x"], "bad_pattern"),
        (["/etc/passwd"], "bad_pattern"),
        (7, "bad_request"),
    ]:
        with pytest.raises(AgentFailed) as failed:
            Pull(host.channel(), paths=paths)
        assert failed.value.code == code


def test_checkpoints_by_name(host: AgentHost, work: Path) -> None:
    put(
        work,
        {"ckpt/1.pt": b"one", "ckpt/2.pt": b"two", "checkpoint-3/trainer_state.json": b"{}", "checkpoint-3/w/x": b"w"},
    )
    put(work, {"checkpoint-4/model": b"half"})
    host.end("job00001")
    pull = Pull(host.channel(), checkpoint="ckpt/1.pt")
    assert pull.names == ["ckpt/1.pt"] and pull.get("ckpt/1.pt")[0] == b"one"
    assert Pull(host.channel(), checkpoint="checkpoint-3").names == [
        "checkpoint-3/trainer_state.json",
        "checkpoint-3/w/x",
    ]
    assert len(Pull(host.channel(), checkpoint="all").names) == 4
    assert len(Pull(host.channel(), checkpoint="last").names) in (1, 2)
    for name, code in [
        ("checkpoint-4", "not_complete"),
        ("ckpt/9.pt", "no_such_checkpoint"),
        ("best", "no_such_checkpoint"),
    ]:
        with pytest.raises(AgentFailed) as failed:
            Pull(host.channel(), checkpoint=name)
        assert failed.value.code == code


def test_hashes_of_what_the_client_has(host: AgentHost, work: Path) -> None:
    put(work, {"metrics.json": b"12345", "plots/a": b"123"})
    pull = Pull(host.channel(), have=[{"path": "metrics.json", "size": 5}, {"path": "plots/a", "size": 2}])
    assert [entry["sha256"] for entry in pull.files] == [sha(b"12345"), None]


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("how", ["rewritten", "appended", "shorter", "replaced", "removed", "link"])
def test_a_file_that_changes_is_never_passed_off_as_complete(
    host: AgentHost, work: Path, how: str, many: bool, tmp_path: Path
) -> None:
    put(work, {"metrics.json": b"x" * 1000, "plots/a": b"1"})
    pull = Pull(host.channel())
    path = work / "metrics.json"
    if how == "rewritten":
        with path.open("r+b") as handle:
            handle.write(b"y")
    elif how == "appended":
        with path.open("ab") as handle:
            handle.write(b"y")
    elif how == "shorter":
        os.truncate(path, 999)
    elif how == "replaced":
        put(work, {"new": b"x" * 1000})
        os.replace(work / "new", path)
    else:
        path.unlink()
        if how == "link":
            path.symlink_to("/etc/passwd")
    if many:
        pull.channel.send({"each": [0, 1]})
    told = [pull.hear() if many else pull.get(name) for name in ("metrics.json", "plots/a")]
    assert told == [(b"", {"sha256": None, "changed": True}), (b"1", {"sha256": sha(b"1")})]


def test_a_file_that_changes_while_it_is_sent(host: AgentHost, work: Path) -> None:
    size = 64 << 20
    put(work, {"metrics.json": b"\0" * size})
    pull = Pull(host.channel())
    pull.channel.send({"get": 0, "offset": 0})
    frame = pull.channel.reader.frame()
    assert frame is not None and frame[0] == b"B"
    with (work / "metrics.json").open("r+b") as handle:
        handle.seek(size - 10)
        handle.write(b"torn")
    while frame is not None and frame[0] != b"E":
        frame = pull.channel.reader.frame()
    assert pull.channel.json() == {"sha256": None, "changed": True}


def test_nothing_comes_through_links_out_of_the_job(host: AgentHost, work: Path, tmp_path: Path) -> None:
    put(tmp_path, {"secret/key": b"private"})
    put(work, {"real/file": b"mine", "plots/own.png": b"p"})
    (work / "plots" / "out").symlink_to(tmp_path / "secret" / "key")
    (work / "plots" / "folder").symlink_to(tmp_path / "secret")
    (work / "plots" / "inner").symlink_to("../real/file")
    (work / "plots" / "innerfolder").symlink_to("../real")
    (work / "plots" / "broken").symlink_to("nowhere")
    (work / "metrics.json").symlink_to(host.job("job00001") / "environ.json")
    os.mkfifo(work / "plots" / "pipe")
    pull = Pull(host.channel())
    assert pull.names == ["plots/inner", "plots/own.png"]
    assert pull.get("plots/inner")[0] == b"mine"
    odd = ["metrics.json", "plots/broken", "plots/folder", "plots/innerfolder", "plots/out", "plots/pipe"]
    assert sorted(entry["path"] for entry in pull.skipped) == odd


def test_a_folder_that_becomes_a_link_is_not_followed(host: AgentHost, work: Path, tmp_path: Path) -> None:
    put(tmp_path, {"secret/a": b"private"})
    put(work, {"plots/a": b"public!"})
    pull = Pull(host.channel())
    (work / "plots").rename(work / "was")
    (work / "plots").symlink_to(tmp_path / "secret")
    assert pull.get("plots/a") == (b"", {"sha256": None, "changed": True})


def test_odd_names_arrive(host: AgentHost, work: Path) -> None:
    names = [b"plots/-rf", b"plots/a b\n\xff", "plots/中文".encode()]
    (work / "plots").mkdir()
    for name in names:
        (work / os.fsdecode(name)).write_bytes(name)
    pull = Pull(host.channel())
    assert sorted(os.fsencode(name) for name in pull.names) == sorted(names)
    assert all(pull.get(name)[0] == os.fsencode(name) for name in pull.names)


def test_many_files_at_once(host: AgentHost, work: Path) -> None:
    """In the order that they are asked for, over several folders; a link that took a folder's place is not followed."""
    files = {f"plots/{number % 3}/f{number}": bytes([number]) * (number * 5000) for number in range(60)}
    put(work, files)
    pull = Pull(host.channel())
    pull.channel.send({"each": [pull.names.index(name) for name in files]})
    assert [pull.hear() for _ in files] == [(data, {"sha256": sha(data)}) for data in files.values()]
    (work / "plots" / "1").rename(work / "was")
    (work / "plots" / "1").symlink_to(work / "was")
    pull.channel.send({"each": [pull.names.index(name) for name in ("plots/0/f0", "plots/1/f1", "plots/2/f2")]})
    assert [pull.hear()[1] for _ in range(3)] == [
        {"sha256": sha(b"")},
        {"sha256": None, "changed": True},
        {"sha256": sha(files["plots/2/f2"])},
    ]
    assert pull.done()["sent"] == sum(map(len, files.values())) + len(files["plots/2/f2"])


def test_the_first_files_come_unasked_up_to_so_many_and_so_much(host: AgentHost, work: Path) -> None:
    put(work, {f"plots/f{number}": b"x" * 1000 for number in range(5)} | {"plots/g": b"y" * 5000})
    for ahead, count in [
        ({"files": 3, "bytes": 10**6}, 3),
        ({"files": 9, "bytes": 2500}, 2),
        ({"files": 9, "bytes": 9999}, 5),
        ({"files": 0, "bytes": 10**6}, 0),
        ({"files": -1, "bytes": -1}, 0),
        (None, 0),
    ]:
        pull = Pull(host.channel(), ahead=ahead)
        assert pull.coming == count, ahead
        assert [pull.hear()[0] for _ in range(count)] == [b"x" * 1000] * count
        assert pull.get("plots/g")[0] == b"y" * 5000
        assert pull.done()["sent"] == count * 1000 + 5000


def test_what_cannot_be_asked_for(host: AgentHost, work: Path) -> None:
    put(work, {"metrics.json": b"1"})
    for message in [{"get": 5}, {"get": -1}, {"get": "0"}, {"get": 0, "offset": -4}, {}, {"each": 1}, {"each": [9]}]:
        pull = Pull(host.channel())
        pull.channel.send(message)
        with pytest.raises(AgentFailed, match="bad_request"):
            pull.channel.json()
    pull = Pull(host.channel())
    assert pull.get("metrics.json", 99) == (b"", {"sha256": None, "changed": True})


def test_a_client_that_goes_away_leaves_no_mark(host: AgentHost, work: Path) -> None:
    put(work, {"metrics.json": b"1"})
    pull = Pull(host.channel())
    assert len(list((host.job("job00001") / "pulls").iterdir())) == 1
    assert pull.channel.close() == 0
    assert list((host.job("job00001") / "pulls").iterdir()) == []
