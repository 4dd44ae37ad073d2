"""What others put where users show things to each other: nothing of it hands out a card twice, or runs."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import holders, leases, share, situation
from jobrunner.agent.accelerators.seen import read_leases
from jobrunner.agent.layout import card_name, lock_name
from tests.support.agentproc import until
from tests.support.users import HOLD, PYTHON, SharedHost, go, shared_host, up

MALLORY, VICTIM = 61666, 61001
NOW = 1796117400.0  # 2026-12-01T09:30:00Z
SINCE = "2026-12-01T09:00:00.000000Z"


@pytest.fixture
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A /tmp of its own, and a lease scope of its own."""
    monkeypatch.setattr(share, "BASE", os.fsencode(tmp_path))
    monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", f"a{os.getpid()}")
    return tmp_path


def folder_of(tmp: Path, uid: int) -> Path:
    path = tmp / os.fsdecode(share.folder_name(uid))
    path.mkdir(mode=0o755)
    os.chown(path, uid, uid)
    return path


def put(folder: Path, name: str, text: str | bytes, uid: int) -> Path:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.chown(path, uid, uid)
    return path


def ticket(**more: Any) -> dict[str, Any]:
    waiting = [{"job": "amallory1", "cards": 1, "device": "npu", "since": SINCE}]
    return {"v": 1, "lock": "imallory", "usage": 1.0, "at": SINCE, "held": 0, "waiting": waiting, **more}


@pytest.fixture
def lock(tmp: Path) -> Iterator[None]:
    held = leases.bind(lock_name("dispatcher", "imallory"))
    assert held is not None
    yield
    leases.release([held])


@pytest.mark.root
def test_tickets_count_only_while_their_lock_is_held(tmp: Path) -> None:
    folder = folder_of(tmp, MALLORY)
    put(folder, "ticket.json", json.dumps(ticket()), MALLORY)
    assert situation.colleagues(NOW) == []
    held = leases.bind(lock_name("dispatcher", "imallory"))
    assert held is not None
    (found,) = situation.colleagues(NOW)
    assert (found["uid"], found["waiting"][0]["waited_s"]) == (MALLORY, 1800.0)
    leases.release([held])
    assert situation.colleagues(NOW) == []


ODD = [
    "", "[]", "{", "[" * 100_000, '{"a":' * 50_000, '{"lock": 5, "waiting": []}', '{"lock": "imallory", "waiting": 7}',
    '{"lock": "imallory", "waiting": [1, null, {"cards": "2", "device": "npu"}, {"cards": true, "device": "npu"}]}',
    '{"lock": "imallory", "waiting": [{"cards": 1e30, "device": "npu"}, {"cards": -4, "device": "npu"}]}',
    '{"lock": "imallory", "usage": ' + "9" * 200_000 + "}", '{"lock": "imallory", "usage": 1e999}',
    '{"lock": "imallory", "usage": NaN, "waiting": []}', b"\xff\xfe\x00", '{"a": "' + "x" * share.LIMIT + '"}',
]  # fmt: skip


@pytest.mark.root
@pytest.mark.parametrize("text", ODD, ids=range(len(ODD)))
def test_odd_tickets_are_passed_over_quickly(tmp: Path, lock: None, text: str | bytes) -> None:
    put(folder_of(tmp, MALLORY), "ticket.json", text, MALLORY)
    put(tmp / os.fsdecode(share.folder_name(MALLORY)), "leases.json", text, MALLORY)
    began = time.monotonic()
    assert situation.colleagues(NOW) == [] and situation.ends_of_others(NOW) == []
    assert time.monotonic() - began < 1


@pytest.mark.root
def test_files_that_are_not_what_they_seem(tmp: Path, lock: None, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(tmp, MALLORY)
    good = json.dumps(ticket())
    path = put(folder, "ticket.json", good, MALLORY)
    assert len(situation.colleagues(NOW)) == 1
    os.chown(path, VICTIM, VICTIM)
    assert situation.colleagues(NOW) == [], "a file of somebody else in a user's folder"
    path.unlink()
    elsewhere = put(tmp, "elsewhere", good, MALLORY)
    path.symlink_to(elsewhere)
    assert situation.colleagues(NOW) == [], "a link"
    path.unlink()
    os.mkfifo(path)
    os.chown(path, MALLORY, MALLORY)
    assert situation.colleagues(NOW) == [], "a pipe, which must not be waited for"
    path.unlink()
    path.mkdir()
    assert situation.colleagues(NOW) == [], "a folder"
    path.rmdir()
    with socket.socket(socket.AF_UNIX) as sock:
        monkeypatch.chdir(path.parent)  # a socket's address is short
        sock.bind(path.name)
        assert situation.colleagues(NOW) == [], "a socket"


@pytest.mark.root
def test_folders_that_are_not_what_they_seem(tmp: Path, lock: None) -> None:
    real = folder_of(tmp, MALLORY)
    put(real, "ticket.json", json.dumps(ticket()), MALLORY)
    assert [uid for uid, _ in share.folders()] == [MALLORY]
    real.chmod(0o777)
    assert share.folders() == [], "whoever likes may write there"
    real.chmod(0o755)
    real.rename(tmp / os.fsdecode(share.folder_name(VICTIM)))
    assert share.folders() == [], "the folder of a name is not of that user"
    real.symlink_to(tmp / os.fsdecode(share.folder_name(VICTIM)))
    assert share.folders() == [], "a linked folder"
    for odd in ("-5", "1e3", "99999999999999999999", "", "0x10"):
        (tmp / f".jobrunner-1-{odd}-a{os.getpid()}").mkdir()
    assert share.folders() == []


@pytest.mark.root
def test_a_squatted_folder_makes_us_unseen_and_nothing_else(tmp: Path) -> None:
    mine = tmp / os.fsdecode(share.folder_name(os.getuid()))
    target = tmp / "target"
    target.mkdir(mode=0o700)
    mine.symlink_to(target)
    assert share.own_folder() is None and not share.publish("ticket.json", {"v": 1})
    assert list(target.iterdir()) == [] and oct(target.stat().st_mode & 0o777) == "0o700"
    mine.unlink()
    mine.mkdir()
    os.chown(mine, MALLORY, MALLORY)
    assert share.own_folder() is None and not share.publish("ticket.json", {"v": 1})
    assert list(mine.iterdir()) == []


def test_what_is_shown_can_be_read_by_others_under_any_umask(tmp: Path) -> None:
    before = os.umask(0o077)
    try:
        assert share.publish("ticket.json", {"v": 1})
    finally:
        os.umask(before)
    mine = tmp / os.fsdecode(share.folder_name(os.getuid()))
    assert oct(mine.stat().st_mode & 0o777) == "0o755"
    assert oct((mine / "ticket.json").stat().st_mode & 0o777) == "0o644"
    assert share.shown("ticket.json")
    share.withdraw("ticket.json")
    assert not share.shown("ticket.json") and list(mine.iterdir()) == []


@pytest.mark.root
def test_made_up_usage_and_age_are_only_numbers(tmp: Path, lock: None) -> None:
    folder = folder_of(tmp, MALLORY)
    ancient = [
        {"job": "x", "name": "e\x1b[2J" + "n" * 500, "cards": 2, "device": "npu", "since": "0001-01-01T00:00:00"}
    ]
    for usage, expected in ((-5, 0.0), ("none", 0.0), (True, 0.0), (None, 0.0), (7, 7.0)):
        put(folder, "ticket.json", json.dumps(ticket(usage=usage, at="2999-01-01T00:00:00", waiting=ancient)), MALLORY)
        (found,) = situation.colleagues(NOW)
        assert found["usage"] == expected
        assert found["waiting"][0]["name"].startswith("e?[2J") and len(found["waiting"][0]["name"]) == 100
        assert found["waiting"][0]["waited_s"] > 6e10
    put(folder, "ticket.json", json.dumps(ticket(waiting=ticket()["waiting"] * 1000)), MALLORY)
    assert len(situation.colleagues(NOW)[0]["waiting"]) <= 200


def test_the_kernel_says_whose_a_name_is() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as mine:
        mine.bind(b"\0jobrunner/1/test/" + os.urandom(6).hex().encode())
        inode = os.fstat(mine.fileno()).st_ino
        assert holders.uids([inode, 999_999_999]) == {inode: os.getuid()}
        found = holders.process(inode)
        assert found is not None and found[0] == os.getpid()
        assert f"(uid {os.getuid()}), process {os.getpid()} (" in holders.described(inode, os.getuid())
    assert holders.uids([inode]) == {} and holders.process(inode) is None


BIND = (
    "import sys, time, _socket; s = _socket.socket(_socket.AF_UNIX, _socket.SOCK_DGRAM); "
    "s.bind(b'\\0' + bytes.fromhex(sys.argv[1])); print('up', flush=True); time.sleep(120)"
)


class Stranger:
    """A process of another user that binds a name."""

    def __init__(self, name: bytes, uid: int = MALLORY) -> None:
        words = [
            "setpriv",
            "--reuid",
            str(uid),
            "--regid",
            str(uid),
            "--clear-groups",
            PYTHON,
            "-c",
            BIND,
            name[1:].hex(),
        ]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, env={"PATH": os.environ["PATH"]})

    def __enter__(self) -> Stranger:
        assert self.process.stdout is not None and self.process.stdout.readline() == b"up\n"
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.root
def test_a_lease_that_another_user_claims_is_not_believed(tmp: Path) -> None:
    """mallory says that she holds the victim's card, and later than he does."""
    for uid, since, job in ((VICTIM, "2026-01-01", "avictim01"), (MALLORY, "2027-01-01", "amallory1")):
        lease = {"device": "npu", "index": 3, "job": job, "name": job, "since": since}
        put(folder_of(tmp, uid), "leases.json", json.dumps({"v": 1, "leases": [lease]}), uid)
    with Stranger(card_name("npu", 3), VICTIM):
        (found,) = read_leases("npu", tmp=os.fsencode(tmp), with_holder=True)
        assert (found["user"], found["job"]) == (str(VICTIM), "avictim01")
    with Stranger(card_name("npu", 3), 61777) as third:
        (found,) = read_leases("npu", tmp=os.fsencode(tmp), with_holder=True)
        assert (found["user"], found["job"]) == ("61777", None)
        assert f"61777 (uid 61777), process {third.process.pid} (" in found["holder"]


@pytest.fixture
def host() -> Iterator[SharedHost]:
    with shared_host(2, VICTIM) as made:
        yield made


@pytest.mark.root
def test_a_name_that_a_stranger_binds_blocks_and_is_shown(host: SharedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    (runs,) = host.users
    monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", host.scope)
    with Stranger(card_name("npu", 0)):
        runs.submit("avictim01", HOLD, device="npu", cards=2)
        report = runs.channel.ask("look", jobs=[], cards=True, max_age_s=0)["cards"]
        card = report["cards"][0]
        assert not card["free"] and card["lease"]["user"] == str(MALLORY) and card["lease"]["job"] is None
        assert f"leased by somebody who shows no job for it: {MALLORY} (uid {MALLORY})" in card["why_busy"]
        findings = {finding["code"]: finding for finding in runs.channel.ask("why", id="avictim01")["findings"]}
        assert f"uid {MALLORY}" in findings["unshown"]["summary"] and findings["unshown"]["remedy"]
        assert findings["cards"]["summary"] == "it wants 2 cards, and of those that it may have 1 is free"
    assert up(runs, "avictim01") == [0, 1]
    go(runs, "avictim01")
    assert runs.final("avictim01", within=40)["state"] == "COMPLETED"


@pytest.mark.root
def test_a_liar_gains_a_place_for_some_seconds(host: SharedHost, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ticket that says "nothing used, waiting since ever" and never takes a card is passed over after 15 s."""
    (runs,) = host.users
    runs.submit("awarmup01", "sleep 0.2", device="npu", cards=1)
    assert runs.final("awarmup01", within=40)["state"] == "COMPLETED"
    monkeypatch.setenv("JOBRUNNER_LEASE_SCOPE", host.scope)
    folder = Path(f"/tmp/.jobrunner-1-{MALLORY}-{host.scope}")
    folder.mkdir(mode=0o755)
    os.chown(folder, MALLORY, MALLORY)
    try:
        lie = [{"job": "x", "cards": 1, "device": "npu", "since": "1999-01-01T00:00:00"}] * 2
        put(folder, "ticket.json", json.dumps(ticket(usage=0, waiting=lie)), MALLORY)
        with Stranger(lock_name("dispatcher", "imallory")):
            began = time.monotonic()
            runs.submit("avictim01", HOLD, device="npu", cards=2)
            until(lambda: "colleague" in codes(runs, "avictim01"), what="it is held up")
            assert up(runs, "avictim01") == [0, 1]
            assert 10 < time.monotonic() - began < 40
        go(runs, "avictim01")
    finally:
        (folder / "ticket.json").unlink()
        folder.rmdir()


def codes(runs: Any, job_id: str) -> list[str]:
    return [finding["code"] for finding in runs.channel.ask("why", id=job_id)["findings"]]


def wipe(folder: Path, squatter: str = "") -> None:
    """Remove a folder into which its owner may be writing just now; a link to `squatter` takes its place."""

    def done() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            if squatter:
                folder.symlink_to(squatter)
        except FileExistsError:
            return False
        return folder.is_symlink() or not folder.exists()

    until(done, what="the folder is gone")


@pytest.mark.root
def test_a_wiped_or_squatted_tmp_stops_nobody(host: SharedHost) -> None:
    (runs,) = host.users
    (one,) = host.hosts
    runs.submit("avictim01", HOLD, device="npu", cards=2)
    assert up(runs, "avictim01") == [0, 1]
    runs.submit("avictim02", HOLD, device="npu", cards=1)
    until((one.shown / "ticket.json").exists, what="the ticket")
    wipe(one.shown)
    report = runs.channel.ask("look", jobs=[], cards=True, max_age_s=0)["cards"]
    assert [card["lease"]["job"] for card in report["cards"]] == ["avictim01"] * 2, "it is shown again"
    runs.channel.ask("wish", ids=["avictim02"], kind="priority", value=1)
    until((one.shown / "ticket.json").exists, what="the ticket is shown again")
    wipe(one.shown, squatter="/etc")
    go(runs, "avictim01")
    assert up(runs, "avictim02") == [0]
    go(runs, "avictim02")
    assert runs.final("avictim02", within=40)["state"] == "COMPLETED"
    assert one.shown.is_symlink()


@pytest.mark.root
@pytest.mark.skipif(sys.platform != "linux", reason="mounts")
def test_a_full_tmp_makes_us_unseen_and_nothing_else(tmp: Path) -> None:
    tmp.joinpath("full").mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=3", "none", str(tmp / "full")], check=False)
    if done.returncode:
        pytest.skip("NOT TESTED HERE: nothing can be mounted")
    try:
        share.BASE = os.fsencode(tmp / "full")
        (tmp / "full" / "filler").write_bytes(b"x" * 4096)
        assert not share.publish("ticket.json", ticket(waiting=ticket()["waiting"] * 200))
        assert not share.shown("ticket.json")
        share.withdraw("ticket.json")
    finally:
        subprocess.run(["umount", str(tmp / "full")], check=True)
