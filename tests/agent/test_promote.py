"""Models are kept only if they beat the one that is kept; whole, by rename, with a way back."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent.promote import beats
from tests.support.agentproc import AgentFailed, AgentHost, Channel, agent_host, job, pythons

ASK = {"metric": "acc", "direction": "max", "to": "models/m"}


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentHost]:
    with agent_host(tmp_path_factory.mktemp("host"), python=pythons()[0]) as made:
        made.drain()
        yield made


_COUNT = iter(range(1, 1000))
_OPEN: dict[int, Channel] = {}


def ask(host: AgentHost, op: str, **fields: Any) -> dict[str, Any]:
    """One request over a channel that stays open for the whole file."""
    if id(host) not in _OPEN:
        _OPEN[id(host)] = host.channel()
    return _OPEN[id(host)].ask(op, **fields)


def model(host: AgentHost, data: bytes = b"model", name: str = "ckpt/m.pt") -> tuple[str, str]:
    """A job with one checkpoint: its id, and the checkpoint's path on the host."""
    id_ = f"job{next(_COUNT):05d}"
    ask(host, "look", jobs=[])
    _OPEN[id(host)].stage([job(id_, checkpoints={"paths": ["ckpt/*.pt", "ckpt/deep-*"]})], None)
    path = host.begin(id_) / "work" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    for old in (path, *path.parents[:3]):
        os.utime(old, (1, 1))
    [found] = ask(host, "checkpoints", id=id_)["checkpoints"]
    return id_, found["path"]


def promote(host: AgentHost, id_: str, path: str, value: float, **more: Any) -> dict[str, Any]:
    return ask(host, "promote", id=id_, path=path, value=value, **{**ASK, **more})


def test_what_beats_what() -> None:
    new = {"metric": "acc", "direction": "max", "value": 0.5}
    kept = {"metric": "acc", "direction": "max", "value": 0.5}
    assert beats(new, None, None)[0] and beats({**new, "value": 0.6}, kept, None)[0]
    assert beats(new, kept, None) == (None, 0.5), "as good is not better"
    assert beats({**new, "value": 0.6}, kept, 0.7) == (None, 0.7), "the one on another host counts, too"
    assert beats(new, None, 0.7) == (None, 0.7)
    low = {**kept, "direction": "min"}
    assert beats({**low, "value": 0.4}, low, None)[0] and beats({**low, "value": 0.6}, low, None)[0] is None
    why, against = beats(new, low, None)
    assert "another metric" in str(why) and against is None


def test_only_the_better_model_is_kept(host: AgentHost) -> None:
    first, path = model(host, b"first")
    said = promote(host, first, path, 0.5, to="models/a")
    assert (said["decision"], said["why"]) == ("promoted", "no model was kept so far")
    top = Path(host.root) / "models" / "a"
    assert (top / "current" / "m.pt").read_bytes() == b"first" and Path(said["path"]).read_bytes() == b"first"
    assert json.loads((top / "current" / "promotion.json").read_text())["value"] == 0.5
    worse, path = model(host, b"worse")
    said = promote(host, worse, path, 0.4, to="models/a")
    assert said["decision"] == "kept" and "acc 0.4 is not better than 0.5" in said["why"] and said["against"] == 0.5
    assert (top / "current" / "m.pt").read_bytes() == b"first" and said["current"]["job"] == first
    better, path = model(host, b"better")
    assert promote(host, better, path, 0.6, to="models/a")["decision"] == "promoted"
    again = promote(host, better, path, 0.6, to="models/a")
    assert (
        again["decision"] == "promoted" and "already" in again["why"] and len(list((top / "versions").iterdir())) == 2
    )
    assert os.readlink(top / "current").startswith("versions/") and (top / "current" / "m.pt").read_bytes() == b"better"
    back = ask(host, "rollback", to="models/a")
    assert back["current"]["job"] == first and (top / "current" / "m.pt").read_bytes() == b"first"
    with pytest.raises(AgentFailed, match="no earlier version"):
        ask(host, "rollback", to="models/a")
    newest = sorted(os.listdir(top / "versions"))[-1]
    assert ask(host, "rollback", to="models/a", version=newest)["current"]["job"] == better
    found = ask(host, "promoted", to=["models/a", "models/none"])["promoted"]
    assert [kept["job"] for kept in found["models/a"]["versions"]] == [first, better]
    assert (
        found["models/a"]["current"] == newest and found["models/a"]["since"] > found["models/a"]["versions"][1]["at"]
    )
    assert Path(found["models/a"]["versions"][0]["path"]).read_bytes() == b"first"
    assert found["models/none"] == {"versions": [], "current": None, "since": None}


def test_folders_links_and_old_versions(host: AgentHost, tmp_path: Path) -> None:
    id_, _ = model(host, b"x", "ckpt/deep-1/a/w.bin")
    [found] = ask(host, "checkpoints", id=id_)["checkpoints"]
    to = str(tmp_path / "abs")
    promote(host, id_, found["path"], 1.0, to=to)
    assert (tmp_path / "abs" / "current" / "deep-1" / "a" / "w.bin").read_bytes() == b"x"
    for count in range(11):
        promote(host, *model(host), 2.0 + count, to=to)
    names = sorted(os.listdir(tmp_path / "abs" / "versions"))
    assert len(names) == 10 and os.readlink(tmp_path / "abs" / "current") == f"versions/{names[-1]}"


def test_left_overs_of_a_killed_copy_are_cleaned_and_never_current(host: AgentHost, tmp_path: Path) -> None:
    half = tmp_path / "t" / "versions" / ".20200101T000000Z-job00001"
    half.mkdir(parents=True)
    (half / "m.pt").write_bytes(b"ha")
    promote(host, *model(host), 1.0, to=str(tmp_path / "t"))
    assert not half.exists() and (tmp_path / "t" / "current" / "m.pt").read_bytes() == b"model"


def test_two_at_once_leave_the_better_one(host: AgentHost, tmp_path: Path) -> None:
    made = [(model(host, b"%d" % k), float(k)) for k in range(4)]
    ask_for = {**ASK, "to": str(tmp_path / "t")}
    threads = [
        threading.Thread(
            target=lambda i, p, v: host.channel().ask("promote", id=i, path=p, value=v, **ask_for), args=(*ids, value)
        )
        for ids, value in made
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (tmp_path / "t" / "current" / "m.pt").read_bytes() == b"3"


@pytest.mark.parametrize("to", ["../x", "/", "", "a/../../b", 5])
def test_folders_that_cannot_be_are_refused(host: AgentHost, to: Any) -> None:
    with pytest.raises(AgentFailed, match="bad_path"):
        promote(host, *model(host), 1.0, to=to)


def test_what_is_no_model_is_refused(host: AgentHost, tmp_path: Path) -> None:
    id_, path = model(host)
    (tmp_path / "t" / "current").mkdir(parents=True)
    with pytest.raises(AgentFailed, match="not_ours"):
        promote(host, id_, path, 1.0, to=str(tmp_path / "t"))
    with pytest.raises(AgentFailed, match="no_such_checkpoint"):
        promote(host, id_, "/etc/passwd", 1.0)
    with pytest.raises(AgentFailed, match="bad_request"):
        promote(host, id_, path, float("nan"))
