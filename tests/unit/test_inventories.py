"""What was made of a hosts file is kept for a file of the same text, and for no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jobrunner.core.errors import SpecError, UsageError
from jobrunner.core.hosts import load_hosts
from jobrunner.core.inventory import Inventory
from jobrunner.service import inventories

FULL = """
hosts:
  npu-a:
    address: "ml@[::1]:2222"
    transport: openssh
    device: npu
    cards: 8
    only_cards: [0, 2]
    max_cards: 2
    cpu_jobs: 3
    tags: [910b, room2]
    root: ~/elsewhere
    python: /opt/python 3/bin/python
    setup: ["source a.sh", "umask 077"]
    env: {A: "1", B: ü}
    launcher: tmux
    on_reboot: crontab
  bare:
ssh_config: ~/cfg
settings: {connect_timeout: 3s, request_timeout: 2m, retry_for: 1h}
"""


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "hosts.yaml"


@pytest.mark.parametrize("text", [FULL, "hosts: {a: }\n", "settings: {retry_for: 5s}\n", "ssh_config: x\n"])
def test_what_is_kept_is_what_was_read(file: Path, home: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(text, encoding="utf-8")
    first = inventories.read(file, home)
    kept = home / "cache" / "hosts.json"
    assert kept.stat().st_mode & 0o077 == 0 and list(kept.parent.iterdir()) == [kept]
    monkeypatch.setattr("jobrunner.core.hosts.load_hosts", None)
    again = inventories.read(file, home)
    assert again == first == Inventory.from_json(json.loads(json.dumps(first.as_json())))
    for alias in ("npu-a", "bare", "other"):
        one, other = first.get(alias), again.get(alias)
        assert (one.where, one.limits(), one.env, one.setup) == (other.where, other.limits(), other.env, other.setup)
    assert again.settings.retry_for.seconds == first.settings.retry_for.seconds


def test_any_other_text_is_read_and_checked(file: Path, home: Path) -> None:
    file.write_text("hosts: {a: {cpu_jobs: 1}}\n")
    assert inventories.read(file, home).get("a").cpu_jobs == 1
    seen = file.stat()
    file.write_text("hosts: {a: {cpu_jobs: 2}}\n")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))  # as long and as old as before
    assert inventories.read(file, home).get("a").cpu_jobs == 2
    file.write_text("hosts: {a: {cpu_jobs: x}}\n")
    for _ in range(2):
        with pytest.raises(SpecError, match="cpu_jobs"):
            inventories.read(file, home)
    file.write_bytes(b"\xff")
    with pytest.raises(UsageError, match="cannot be read"):
        inventories.read(file, home)
    file.unlink()
    assert inventories.read(file, home) == Inventory()


@pytest.mark.parametrize(
    "damage", ["", "{", "[]", "null", '{"of": 1}', "of", "hosts", "a", "b", "\udcff", "[" * 200_000]
)
def test_what_is_damaged_counts_for_nothing(file: Path, home: Path, damage: str) -> None:
    file.write_text("hosts: {a: {cpu_jobs: 1}}\n")
    right = inventories.read(file, home)
    kept = home / "cache" / "hosts.json"
    data = json.loads(kept.read_text())
    wrong = {"hosts": None, "a": {"a": {"unknown": 1}}, "b": {"a": 3}}.get(damage)
    if damage in ("hosts", "a", "b"):
        damage = json.dumps({**data, "hosts": {**data["hosts"], "hosts": wrong}})
    elif damage == "of":
        damage = json.dumps({**data, "of": {**data["of"], "version": "0"}})
    kept.write_text(damage, errors="surrogateescape")
    assert inventories.read(file, home) == right
    assert json.loads(kept.read_text()) == data, "it was kept anew"


def test_where_nothing_can_be_kept(file: Path, tmp_path: Path, home: Path) -> None:
    file.write_text(FULL, encoding="utf-8")
    assert inventories.read(file, tmp_path / "none").get("npu-a").cards == 8
    assert not (tmp_path / "none").exists(), "to look makes no state folder"
    (home / "cache").write_text("a file in its place")
    assert inventories.read(file, home).get("npu-a").cards == 8


def test_a_pipe_in_its_place_is_not_waited_for(file: Path, home: Path) -> None:
    file.write_text(FULL, encoding="utf-8")
    (home / "cache").mkdir()
    os.mkfifo(home / "cache" / "hosts.json")
    assert inventories.read(file, home).get("npu-a").cards == 8


def test_what_cannot_be_kept_leaves_nothing_behind(file: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(FULL, encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert inventories.read(file, home).get("npu-a").cards == 8
    assert list((home / "cache").iterdir()) == []


def test_what_is_kept_is_used_without_what_checks(file: Path, home: Path) -> None:
    file.write_text(FULL, encoding="utf-8")
    program = (
        "import sys; from pathlib import Path; from jobrunner.service.inventories import read\n"
        "read(*map(Path, sys.argv[1:])).get('x'); print(*({'pydantic', 'ruamel', 'jobrunner.core.hosts'} & set(sys.modules)))"
    )
    argv = [sys.executable, "-c", program, str(file), str(home)]
    said = [subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split() for _ in range(2)]
    assert (len(said[0]), said[1]) == (3, [])
    assert load_hosts(FULL, "f").get("npu-a") == inventories.read(file, home).get("npu-a")
