"""Many small files come in batches: what breaks in the middle of one leaves whole files and parts, and the next pull
goes on."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.lab.processes import carrying
from jobrunner.service import download
from tests.support.hosts import end_shared
from tests.support.lab import SCOPE, Lab
from tests.support.quick import QuickClient
from tests.support.relay import Relay, relayed
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
COUNT = 300
SHELL = (
    "cd $JOBRUNNER_OUTPUT_DIR; mkdir d; "
    f"for i in $(seq 1 {COUNT}); do head -c $((i * 3)) /dev/urandom > f$i; head -c 20000 /dev/urandom > d/g$i; done"
)
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as host:
        yield host


@pytest.fixture(scope="module")
def id_(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job with many outputs."""
    client = QuickClient(tmp_path_factory.mktemp("submitter"), lab)
    id_ = client.submit(f"device: cpu\ncommand: {SHELL}\n", "small")
    client.run("wait", id_)
    return id_


@pytest.fixture
def there(lab: Lab, id_: str) -> Files:
    return files_in(lab.job_folder(id_) / "out")


@pytest.fixture(params=["fabric", "openssh"])
def quick(request: pytest.FixtureRequest, lab: Lab, id_: str, tmp_path: Path) -> Iterator[QuickClient]:
    """A client that knows the job, over each transport."""
    client = QuickClient(tmp_path / "quick", lab, lab={"transport": request.param})
    client.run("adopt")
    yield client
    end_shared(client.folder / "state" / "ssh")


@pytest.fixture
def relay(quick: QuickClient, lab: Lab) -> Iterator[Relay]:
    """The way to the host."""
    end_shared(quick.folder / "state" / "ssh")
    with relayed(quick, lab) as relay:
        yield relay


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def under_way(quick: QuickClient, relay: Relay, id_: str, to: Path, count: int = 3) -> subprocess.Popen[bytes]:
    """A slow pull of which so many files are there."""
    relay.delay = 0.002
    process = quick.start("pull", id_, "--to", str(to))
    eventually(lambda: len(list(to.glob("d/g*"))) >= count, 30, "the first files")
    return process


def goes_on(quick: QuickClient, relay: Relay | None, id_: str, to: Path, there: Files) -> int:
    """Only whole files and parts are left; the next pull brings the rest, and nothing else. What it fetched."""
    if relay is not None:
        relay.heal()
    left = (
        {name: data for name, data in files_in(to).items() if not Path(name).name.startswith(".")}
        if to.exists()
        else {}
    )
    assert left.items() <= there.items()
    data = quick.json("pull", id_, "--to", str(to))
    assert files_in(to) == there
    fetched = sum(item["fetched"] for item in data["files"])
    assert fetched <= sum(map(len, there.values())) - sum(map(len, left.values()))
    return fetched


def test_a_pull_goes_on_over_cuts_at_any_stage(
    quick: QuickClient, relay: Relay, id_: str, tmp_path: Path, there: Files
) -> None:
    relay.direction = "down"
    for number, limit in enumerate((3000, 120_000, 5_900_000)):
        end_shared(quick.folder / "state" / "ssh")
        relay.limit, relay.cuts = limit, 1
        done = quick.run("pull", id_, "--to", str(tmp_path / str(number)), code=None)
        assert relay.cuts == 0
        if done.returncode:  # it was cut before anything was asked for
            assert number == 0 and "lost" in done.stderr
            quick.run("pull", id_, "--to", str(tmp_path / str(number)))
        assert files_in(tmp_path / str(number)) == there, limit


def test_a_killed_pull(quick: QuickClient, relay: Relay, id_: str, tmp_path: Path, there: Files) -> None:
    process = under_way(quick, relay, id_, tmp_path / "to", COUNT // 2)
    process.kill()
    process.communicate()
    assert goes_on(quick, relay, id_, tmp_path / "to", there) < sum(map(len, there.values())) * 0.6


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_an_agent_that_is_killed_or_held(
    quick: QuickClient, lab: Lab, relay: Relay, id_: str, tmp_path: Path, there: Files, how: signal.Signals
) -> None:
    process = under_way(quick, relay, id_, tmp_path / "to")
    [pid] = [pid for pid in carrying(SCOPE, lab.scope) if b"\0collect\0" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(pid, how)
    relay.heal()
    if how == signal.SIGSTOP:
        eventually(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", 5, "it is held")
        os.kill(pid, signal.SIGCONT)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, b"by a signal" in err) == ((3, True) if how == signal.SIGKILL else (0, False)), err
    goes_on(quick, relay, id_, tmp_path / "to", there)


@pytest.mark.root
@pytest.mark.parametrize("room", ["size=300k", "nr_inodes=200"])
def test_a_disk_that_is_full_in_the_middle(
    quick: QuickClient, id_: str, tmp_path: Path, there: Files, monkeypatch: pytest.MonkeyPatch, room: str
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", room, "faults", str(disk)], check=True)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(download, "check_space", lambda *_: None)  # somebody else takes the room meanwhile
            failed = quick.json("pull", id_, "--to", str(disk / "to"), code=2)
        assert [error["code"] for error in failed["errors"]] == ["disk_full"]
        assert len(files_in(disk / "to")) > 10
        subprocess.run(["mount", "-o", "remount,size=20m,nr_inodes=2000", str(disk)], check=True)
        goes_on(quick, None, id_, disk / "to", there)
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.mark.parametrize("what", ["removed", "a file", "a link", "without a folder"])
def test_a_folder_that_goes_away(
    quick: QuickClient, relay: Relay, id_: str, tmp_path: Path, there: Files, what: str
) -> None:
    to, outside = tmp_path / "to", tmp_path / "outside"
    outside.mkdir()
    process = under_way(quick, relay, id_, to)
    gone = to / "d" if what == "without a folder" else to
    gone.rename(tmp_path / "gone")
    if what == "a file":
        to.write_text("x")
    elif what == "a link":
        to.symlink_to(outside)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 2 and err.count(b"error:") == 1 and str(to).encode() in err, err
    assert not list(outside.iterdir())
    if what in ("a file", "a link"):
        to.unlink()
    shutil.rmtree(tmp_path / "gone")
    goes_on(quick, relay, id_, to, there)


def test_several_pulls_into_one_folder(
    quick: QuickClient, relay: Relay, id_: str, tmp_path: Path, there: Files
) -> None:
    first = under_way(quick, relay, id_, tmp_path / "to")
    first.send_signal(signal.SIGSTOP)
    relay.heal()
    failed = quick.json("pull", id_, "--to", str(tmp_path / "to"), code=2)
    first.send_signal(signal.SIGCONT)
    assert [error["code"] for error in failed["errors"]] == ["busy"]
    _, err = first.communicate(timeout=30)
    assert first.returncode == 0, err
    assert files_in(tmp_path / "to") == there
