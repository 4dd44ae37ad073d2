"""Which machine this is: one instance a machine, whoever comes first, and clones with one home stay apart."""

from __future__ import annotations

import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from jobrunner.agent import clock, instance
from jobrunner.agent.files import AgentError, read_json
from tests.support.agentproc import REPO, agent_host, load


@pytest.fixture(autouse=True)
def own_local_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    local = tmp_path / "local"
    local.mkdir()
    monkeypatch.setattr(instance, "LOCAL_FOLDERS", (os.fsencode(tmp_path / "missing"), os.fsencode(local)))
    monkeypatch.setattr(instance, "hardware", lambda: [])
    return local


def attach(root: Path) -> str:
    return str(instance.attach(str(root)).id)


def test_an_instance_stays(tmp_path: Path) -> None:
    root = tmp_path / "root"
    first = attach(root)
    assert attach(root) == first
    assert stat.S_IMODE(root.stat().st_mode) == 0o700
    known = load(root / "hosts" / first / "instance.json")
    assert known["id"] == first and known["hostname"] == os.uname().nodename
    assert sorted(path.name for path in (root / "hosts").iterdir()) == [first]


def test_many_first_contacts_make_one_instance(tmp_path: Path) -> None:
    with agent_host(tmp_path) as host:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda _: host.ask("gc", dry_run=True), range(8)))
        assert len(list((host.root / "hosts").iterdir())) == 1


@pytest.mark.parametrize("key", ["hostname", "machine_id", "scope"])
def test_another_name_is_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    root = tmp_path / "root"
    first = attach(root)
    who = instance.identity()
    monkeypatch.setattr(instance, "identity", lambda: {**who, key: "other"})
    second = attach(root)
    assert second != first
    monkeypatch.undo()


def test_a_clone_with_the_same_home_gets_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_local_folders: Path
) -> None:
    root = tmp_path / "root"
    first = attach(root)
    monkeypatch.setattr(instance, "LOCAL_FOLDERS", (os.fsencode(tmp_path),))
    monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
    second = attach(root)
    assert second != first
    assert attach(root) == second
    monkeypatch.setattr(instance, "LOCAL_FOLDERS", (os.fsencode(own_local_folders),))
    assert attach(root) == first


def test_a_cleaned_tmp_does_not_make_another_machine(tmp_path: Path, own_local_folders: Path) -> None:
    first = attach(tmp_path / "root")
    (copy,) = own_local_folders.iterdir()
    copy.unlink()
    assert attach(tmp_path / "root") == first
    assert copy.exists()


def test_a_reboot_does_not_make_another_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = attach(tmp_path / "root")
    monkeypatch.setattr(clock, "boot_id", lambda: "the next boot")
    assert attach(tmp_path / "root") == first
    home = os.fsencode(tmp_path / "root" / "hosts" / first)
    assert read_json(home + b"/boot.json")["boot_id"] == "the next boot"


@pytest.mark.parametrize(
    ("local", "boot", "addresses", "expected"),
    [
        ("b", "boot-x", [], "b"),
        (None, "boot-a", [], "a"),
        (None, "boot-x", ["00:16:3e:00:00:0b"], "b"),
        (None, "boot-x", ["00:16:3e:00:00:0c"], None),
        ("gone", "boot-x", [], None),
        (None, "", [], None),
    ],
)
def test_choice(local: str | None, boot: str, addresses: list[str], expected: str | None) -> None:
    candidates = [
        {"id": "a", "boot_id": "boot-a", "addresses": ["00:16:3e:00:00:0a"]},
        {"id": "b", "boot_id": "", "addresses": ["00:16:3e:00:00:0b"]},
        {"id": "c", "boot_id": None, "addresses": None},
    ]
    assert instance.choose(candidates, local, boot, addresses) == expected


@pytest.mark.parametrize("spoil", ["writable", "link", "folder"])
def test_a_local_copy_that_others_could_have_made_is_not_believed(
    tmp_path: Path, own_local_folders: Path, spoil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "root"
    first = attach(root)
    (copy,) = own_local_folders.iterdir()
    if spoil == "writable":
        copy.chmod(0o666)
    else:
        copy.unlink()
        copy.mkdir() if spoil == "folder" else copy.symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(clock, "boot_id", lambda: "another boot")
    assert attach(root) != first


def test_a_root_that_is_open_to_others_is_closed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    attach(root)
    assert stat.S_IMODE(root.stat().st_mode) == 0o700


def test_a_root_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(AgentError) as failed:
        instance.open_root(str(tmp_path / "file" / "root"))
    assert failed.value.code == "root_not_writable" and str(tmp_path) in failed.value.message


def test_a_root_of_somebody_else_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = tmp_path / "root"
    root.mkdir()
    monkeypatch.setattr(os, "geteuid", lambda: os.stat(root).st_uid + 1)
    with pytest.raises(AgentError) as failed:
        instance.open_root(str(root))
    assert failed.value.code == "root_not_ours"


def test_a_home_sign_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert instance.open_root("~/.jobrunner") == os.fsencode(tmp_path / ".jobrunner")


def test_the_answer_about_a_bad_root_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    code = "import sys; sys.path.insert(0, sys.argv[1]); from jobrunner.agent import rpc; rpc.main(sys.argv[2:])"
    from jobrunner.agent import wire

    done = subprocess.run(
        ["python3", "-I", "-S", "-c", code, str(REPO), str(tmp_path / "file")],
        input=wire.pack_json({"v": 1, "op": "gc"}), capture_output=True, timeout=20,
    )  # fmt: skip
    assert b"root_not_writable" in done.stdout
    assert done.stderr == b""
