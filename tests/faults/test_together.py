"""Many at once, ledgers that cannot be written, keys that change, interrupts."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.commands import Laptop
from tests.faults.host import BreakableHost
from tests.faults.play import through_relay
from tests.support.relay import Relay
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
QUICK = "device: cpu\ncommand: echo run >> ~/ran-$JOBRUNNER_JOB_ID\n"


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakableHost]:
    with BreakableHost(tmp_path_factory.mktemp("together")) as host:
        yield host


@pytest.fixture
def laptop(host: BreakableHost, tmp_path: Path) -> Laptop:
    return Laptop(tmp_path / "laptop", host)


def starts(host: BreakableHost, id_: str) -> int:
    marker = host.folder / "home" / f"ran-{id_}"
    return len(marker.read_text().splitlines()) if marker.exists() else 0


def test_the_same_spec_twice_at_once_is_two_jobs(host: BreakableHost, laptop: Laptop) -> None:
    spec = str(laptop.spec(QUICK, "twice"))
    for command in [laptop.begin("submit", spec, "--json") for _ in range(2)]:
        assert command.wait(60) == 0, command.told()
    rows = laptop.json("ls", "--all")["jobs"]
    assert len({row["id"] for row in rows}) == 2
    laptop.run("wait", *(row["id"] for row in rows))
    assert [starts(host, row["id"]) for row in rows] == [1, 1]


def test_ten_commands_at_once(host: BreakableHost, laptop: Laptop) -> None:
    """No "database is locked", no lost row, whatever they are."""
    first = laptop.submit(QUICK, "first")
    spec = str(laptop.spec(QUICK, "more"))
    words = [("submit", spec), ("ls",), ("show", first), ("submit", spec), ("logs", first), ("ls", "--all"),
             ("adopt",), ("submit", spec), ("cards",), ("ls", "--offline")]  # fmt: skip
    for command in [laptop.begin(*each, "--json") for each in words]:
        assert command.wait(60) == 0, command.told()
        assert "locked" not in command.told()
    rows = laptop.json("ls", "--all")["jobs"]
    ours = [row["id"] for row in rows if row["name"] in ("first", "more")]
    assert len(ours) == 4
    laptop.run("wait", *ours)
    assert {starts(host, id_) for id_ in ours} == {1}


@pytest.mark.root
def test_a_ledger_that_cannot_be_written(laptop: Laptop) -> None:
    """The folder is read-only: what only reads may work, a submit says what is wrong before anything is sent."""
    id_ = laptop.submit(QUICK, "before")
    laptop.run("wait", id_)
    state = laptop.folder / "state"
    subprocess.run(["mount", "--bind", "-o", "ro", str(state), str(state)], check=True)
    try:
        for words in (("submit", str(laptop.spec(QUICK, "after"))), ("ls",), ("ls", "--offline"), ("show", id_)):
            done = laptop.run(*words, code=None)
            assert done.returncode in (0, 4), done
            assert "Traceback" not in done.stderr and (done.returncode == 0 or "→" in done.stderr), done.stderr
        assert laptop.run("submit", str(laptop.spec(QUICK, "after")), code=4).stderr
    finally:
        subprocess.run(["umount", "-l", str(state)], check=True)
    assert [row["id"] for row in laptop.json("ls", "--all")["jobs"]] == [id_]


def test_a_swapped_host_key_is_refused_before_anything(host: BreakableHost, laptop: Laptop) -> None:
    id_ = laptop.submit(QUICK, "keys")
    laptop.run("wait", id_)
    known = host.sshd.known_hosts
    right = known.read_text()
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAILM+rvN+ot98qgEN796jTiQfZfG1KaT0PtFDJ/XFSqti"
    known.write_text(f"[127.0.0.1]:{host.sshd.port} {other}\n")
    logins = host.sshd.log.read_text(errors="replace").count("Accepted publickey")
    jobs = len(list(host.root.glob("hosts/*/jobs/*")))
    try:
        for words in (("ls",), ("submit", str(laptop.spec(QUICK, "keys2"))), ("hosts", "check"), ("logs", id_)):
            began = time.monotonic()
            done = laptop.run(*words, code=None)
            if words == ("ls",):
                continue  # all its jobs are final: no host is asked
            assert done.returncode == 3 and time.monotonic() - began < 10, done
            assert "SHA256:" in done.stderr and str(known) in done.stderr, done.stderr
        assert laptop.run("hosts", "add", "lab", "--yes", code=None).returncode == 3
    finally:
        assert known.read_text().split()[-1] == other.split()[-1], "nothing pins a changed key"
        known.write_text(right)
    assert host.sshd.log.read_text(errors="replace").count("Accepted publickey") == logins
    assert len(list(host.root.glob("hosts/*/jobs/*"))) == jobs


def arrived(host: BreakableHost) -> int:
    """Bytes of code that lie on the host."""
    return sum(path.stat().st_size for path in (host.root / "blobs").rglob("*") if path.is_file())


def test_interrupted_while_sending(host: BreakableHost, laptop: Laptop) -> None:
    """Ctrl-C in the middle of an upload: exit 130 at once; the same submit goes on under the same id and runs once."""
    relay = Relay(host.sshd.port)
    try:
        through_relay(laptop, host, relay)
        laptop.run("hosts", "check")
        # Random bytes: what is sent is not made smaller on the way.
        path = laptop.spec(QUICK, "interrupted")
        (path.parent / "data.bin").write_bytes(os.urandom(12_000_000))
        before = arrived(host)
        relay.delay = 0.005
        command = laptop.begin("submit", str(path))
        eventually(lambda: arrived(host) > before + 500_000, 30, "some of it has arrived")
        began = time.monotonic()
        command.signal(signal.SIGINT)
        assert command.wait(20) == 130, command.told()
        assert time.monotonic() - began < 3
        assert "interrupted" in command.told() and "lost while sending" not in command.told()
        [row] = laptop.json("ls", "--all", "--offline")["jobs"]
        assert row["state"] == "STAGING"
        relay.heal()
        again = laptop.json("submit", str(path))
        assert again["jobs"][0]["id"] == row["id"]
        laptop.run("wait", row["id"])
        assert starts(host, row["id"]) == 1
    finally:
        relay.close()


TICKING = "device: cpu\ngrace: 1s\ncommand: while true; do echo tick; sleep 0.05; done\n"


@pytest.mark.parametrize("how", ["logs", "submit"])
def test_interrupted_while_following(host: BreakableHost, laptop: Laptop, how: str) -> None:
    """Ctrl-C ends only the looking: 130, and the job goes on."""
    if how == "logs":
        id_ = laptop.submit(TICKING, "ticking")
        command = laptop.begin("logs", id_, "-f")
    else:
        command = laptop.begin("submit", str(laptop.spec(TICKING, "ticking")), "--follow")
    eventually(lambda: command.out.read_bytes().count(b"tick\n") > 3, 20)
    [row] = laptop.json("ls")["jobs"]
    id_, began = row["id"], time.monotonic()
    command.signal(signal.SIGINT)
    assert command.wait(10) == 130 and time.monotonic() - began < 2, command.told()
    assert laptop.row(id_)["state"] == "RUNNING"
    laptop.run("cancel", id_)
    assert not host.carriers(id_)


def test_a_laptop_that_sleeps_while_following(host: BreakableHost, laptop: Laptop) -> None:
    """It stands still while the server drops its sessions; awake again, it goes on at the next byte."""
    id_ = laptop.submit("device: cpu\ncommand: for n in $(seq 80); do echo line $n; sleep 0.03; done\n", "sleeps")
    command = laptop.begin("logs", id_, "-f", "--raw")
    eventually(lambda: command.out.read_bytes().count(b"\n") > 3, 20)
    command.signal(signal.SIGSTOP)
    host.sshd_down()
    eventually((host.job_folder(id_) / "final.json").exists, 20, "the end of the job, which nobody watches")
    host.sshd_up()
    command.signal(signal.SIGCONT)
    assert command.wait(40) == 0, command.told()
    assert command.out.read_bytes() == host.log_of(id_, 1) and host.log_of(id_, 1).count(b"\n") == 80
