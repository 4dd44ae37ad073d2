"""Who holds cards: what the kernel lists, what users say about it, and what is not believed."""

import json
import os
import socket

import pytest

from jobrunner.agent.accelerators.seen import name_processes, user_name
from jobrunner.agent.cards import read_leases
from jobrunner.agent.layout import card_name

ME = user_name(os.getuid())


@pytest.fixture(params=["", "labx"])
def scope(request, monkeypatch):
    name = f"{request.param}{os.getpid()}" if request.param else f"t{os.getpid()}"
    monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", name)
    return name


def held(device, index):
    lease = socket.socket(socket.AF_UNIX)
    lease.bind(card_name(device, index))
    return lease


def show(tmp, scope, leases, uid=None):
    folder = tmp / f".jobrunner-1-{os.getuid() if uid is None else uid}-{scope}"
    folder.mkdir(exist_ok=True)
    (folder / "leases.json").write_text(leases if isinstance(leases, str) else json.dumps({"v": 1, "leases": leases}))
    return folder


def entry(index, **more):
    return {
        "device": "npu",
        "index": index,
        "job": "abc12345",
        "name": "train",
        "since": "2026-12-01T09:30:00Z",
        **more,
    }


def test_held_names_are_leases_and_owners_are_shown(scope, tmp_path):
    show(tmp_path, scope, [entry(3), entry(4), entry(11, device="mlu")])
    with held("npu", 3), held("npu", 11), held("mlu", 5):
        found = read_leases("npu", tmp=os.fsencode(tmp_path))
    assert found == [
        {"index": 3, "user": ME, "job": "abc12345", "name": "train", "since": "2026-12-01T09:30:00Z"},
        {"index": 11, "user": None, "job": None, "name": None, "since": None},
    ]
    assert read_leases("npu", tmp=os.fsencode(tmp_path)) == [], "a free name is no lease, whatever a file says"


def test_other_scopes_are_other_hosts(scope, tmp_path, monkeypatch):
    with held("npu", 3):
        monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", scope + "x")
        assert read_leases("npu", tmp=os.fsencode(tmp_path)) == []
        monkeypatch.delenv("JOBRUNNER_LEASE_SCOPE")
        assert 3 not in [lease["index"] for lease in read_leases("npu", tmp=os.fsencode(tmp_path))]


def test_without_a_scope(monkeypatch, tmp_path):
    monkeypatch.delenv("JOBRUNNER_LEASE_SCOPE", raising=False)
    with held("npu", 7654321):
        assert 7654321 in [lease["index"] for lease in read_leases("npu", tmp=os.fsencode(tmp_path))]


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"leases": 3}', '{"leases": [3, null, {"device": "npu", "index": "3"}]}', "[" * 100000]
)
def test_odd_files_say_nothing(scope, tmp_path, text):
    show(tmp_path, scope, text)
    with held("npu", 3):
        assert read_leases("npu", tmp=os.fsencode(tmp_path))[0]["user"] is None


def test_files_of_the_wrong_owner_links_and_large_ones_are_not_believed(scope, tmp_path):
    mine = show(tmp_path, scope, [entry(3)])
    with held("npu", 3):
        tmp = os.fsencode(tmp_path)
        assert read_leases("npu", tmp=tmp)[0]["user"] == ME
        other = mine.rename(tmp_path / f".jobrunner-1-{os.getuid() + 1}-{scope}")
        assert read_leases("npu", tmp=tmp)[0]["user"] is None, "the folder is not of the user in its name"
        mine.symlink_to(other)
        assert read_leases("npu", tmp=tmp)[0]["user"] is None, "a linked folder"
        mine.unlink()
        other.rename(mine)
        file = mine / "leases.json"
        file.rename(tmp_path / "elsewhere")
        file.symlink_to(tmp_path / "elsewhere")
        assert read_leases("npu", tmp=tmp)[0]["user"] is None, "a linked file"
        file.unlink()
        os.mkfifo(file)
        assert read_leases("npu", tmp=tmp)[0]["user"] is None, "a pipe, which must not be waited for"
        file.unlink()
        file.write_text(json.dumps({"leases": [entry(3)], "more": "x" * 300_000}))
        assert read_leases("npu", tmp=tmp)[0]["user"] is None, "a file without end"


def test_text_of_others_is_cleaned(scope, tmp_path):
    show(tmp_path, scope, [entry(3, name="evil\x1b[2Jname" + "x" * 500, job=["a"], user="root")])
    with held("npu", 3):
        (lease,) = read_leases("npu", tmp=os.fsencode(tmp_path))
    assert lease["name"].startswith("evil?[2Jname") and len(lease["name"]) == 100
    assert (lease["job"], lease["user"]) == (None, ME), "the user is the owner of the file, not what it says"


def fake_proc(tmp, own_space, processes):
    (tmp / "self/ns").mkdir(parents=True)
    (tmp / "self/ns/pid").symlink_to("pid:[4026531836]" if own_space else "pid:[4026532000]")
    for pid, (comm, cmdline) in processes.items():
        (tmp / str(pid)).mkdir()
        (tmp / str(pid) / "comm").write_text(comm + "\n")
        (tmp / str(pid) / "cmdline").write_bytes(cmdline)
    return os.fsencode(tmp)


def named(proc, *processes):
    cards = [{"processes": [{"pid": pid, "user": None, "name": name, "memory_mb": 1} for pid, name in processes]}]
    name_processes(cards, proc)
    return [(found["name"], found["user"]) for found in cards[0]["processes"]]


def test_users_and_missing_names_come_from_proc(tmp_path):
    proc = fake_proc(tmp_path, True, {5: ("python3.10", b"/opt/bin/python3.10\0train.py\0"), 6: ("sh", b"")})
    assert named(proc, (5, None), (6, None), (7, None), (5, "python3.1")) == [
        ("python3.10", ME), ("sh", ME), (None, None), ("python3.1", ME),
    ]  # fmt: skip


def test_in_a_container_a_number_alone_says_nothing(tmp_path):
    proc = fake_proc(tmp_path, False, {5: ("python3", b"/opt/bin/python3\0train.py\0"), 6: ("nginx", b"nginx\0")})
    assert named(proc, (5, None), (6, "python")) == [(None, None), ("python", None)]
    assert named(proc, (5, "python3"), (5, "/opt/bin/python3"), (5, "/opt/bin/python3 train.py"), (6, "nginx")) == [
        ("python3", ME), ("/opt/bin/python3", ME), ("/opt/bin/python3 train.py", ME), ("nginx", ME),
    ]  # fmt: skip
