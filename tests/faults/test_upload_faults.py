"""Big contents on their way to a host whose disk fills up, or some of whose agents are killed."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.lab.processes import carrying
from jobrunner.service import uplanes
from tests.support.hosts import end_shared
from tests.support.lab import SCOPE, Lab
from tests.support.quick import QuickClient
from tests.support.relay import Relay, relayed
from tests.support.waiting import eventually

pytestmark = [pytest.mark.needs_sshd, pytest.mark.root]
SIZE = 24_000_000
ROOM = 5_000_000
SPEC = "device: cpu\ncommand: sha256sum m.bin\n"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A host with a small disk."""
    lab = Lab(tmp_path_factory.mktemp("lab"))
    lab.root.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=120m", "faults", str(lab.root)], check=True)
    try:
        with lab:
            yield lab
    finally:
        subprocess.run(["umount", "-l", str(lab.root)], check=True)


@pytest.fixture(params=["fabric", "openssh"])
def quick(
    request: pytest.FixtureRequest, lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[QuickClient]:
    monkeypatch.setattr(uplanes, "LEAST", SIZE // 2)
    monkeypatch.setattr(uplanes, "NEAR", 3)
    client = QuickClient(tmp_path / "quick", lab, lab={"transport": request.param})
    client.spec(SPEC, "big").with_name("m.bin").write_bytes(os.urandom(SIZE))
    client.run("adopt")
    end_shared(client.folder / "state" / "ssh")
    yield client
    end_shared(client.folder / "state" / "ssh")
    for path in (*lab.root.glob("blobs/*/*"), *lab.root.glob("hosts/*/jobs/*/1/work/m.bin")):
        path.unlink()


@pytest.fixture
def relay(quick: QuickClient, lab: Lab) -> Iterator[Relay]:
    """The way to the host."""
    with relayed(quick, lab) as relay:
        yield relay


def free(lab: Lab) -> int:
    seen = os.statvfs(lab.root)
    return seen.f_bavail * seen.f_frsize


def parts(lab: Lab) -> list[Path]:
    """What gathers beside the contents."""
    return list(lab.root.glob("blobs/*/.tmp-*"))


def runs(quick: QuickClient, lab: Lab) -> None:
    """The next submit succeeds, and the job finds what was sent."""
    id_ = quick.submit(SPEC, "big")
    quick.run("wait", id_)
    assert len((lab.job_folder(id_) / "1" / "log").read_text().split()[0]) == 64


@pytest.mark.parametrize("least", [SIZE // 2, SIZE * 2])
def test_a_disk_that_fills_up(
    quick: QuickClient, lab: Lab, relay: Relay, monkeypatch: pytest.MonkeyPatch, least: int
) -> None:
    """Over several channels or one: it is told soon, the room is given back, and the next submit works."""
    monkeypatch.setattr(uplanes, "LEAST", least)
    real, ballast, before = uplanes.Uploads.send, lab.root / "ballast", free(lab)

    def send(self: uplanes.Uploads, index: int) -> bool:
        ballast.write_bytes(b"x" * (free(lab) - ROOM))
        return real(self, index)

    with monkeypatch.context() as patch:
        patch.setattr(uplanes.Uploads, "send", send)
        failed = quick.json("submit", str(quick.folder / "big" / "spec.yaml"), code=3)
    assert [error["code"] for error in failed["errors"]] == ["no_space"]
    assert relay.passed["up"] < SIZE * 0.8, "not all of it was sent in vain"
    ballast.unlink()
    eventually(lambda: free(lab) > before - 2_000_000, 10, f"the room is free again: {parts(lab)}")
    assert {row["state"] for row in quick.json("ls", "--all")["jobs"]} <= {"COMPLETED"} and not parts(lab)
    runs(quick, lab)


@pytest.mark.parametrize("which", range(4))
def test_an_agent_that_is_killed(quick: QuickClient, lab: Lab, relay: Relay, which: int) -> None:
    """That which makes the job, the keeper, or one that brings ranges."""
    relay.delay = 0.001
    killed = threading.Thread(target=_kill, args=(lab, relay, which))
    killed.start()
    done = quick.json("submit", str(quick.folder / "big" / "spec.yaml"), code=None)
    killed.join()
    # A server that gets data for a channel that it has just closed may end the link, and that is gone on after.
    assert [error["code"] for error in done["errors"]] in (["agent_died"], [])
    before = relay.passed["up"]
    runs(quick, lab)
    assert relay.passed["up"] - before < SIZE * 0.6, "what had come was kept"
    for path in parts(lab):  # the folder of contents of the agent that was killed, until it is cleaned
        assert which == 0 and not path.name.startswith(".tmp-part-")
        path.unlink()


def _kill(lab: Lab, relay: Relay, which: int) -> None:
    eventually(lambda: sum(path.stat().st_blocks * 512 for path in parts(lab)) > SIZE // 2, 30, "half of it")
    agents = [pid for pid in carrying(SCOPE, lab.scope) if b"exec(" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(sorted(agents)[which], signal.SIGKILL)
    relay.heal()
