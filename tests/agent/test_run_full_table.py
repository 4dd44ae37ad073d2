"""A table of processes that is full, for a user whom its limit binds: jobs wait, and what runs is not lost."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.agentproc import until
from tests.support.running import Runs, gone, parent, settle_down
from tests.support.users import HOLD, go, shared_host, up

pytestmark = pytest.mark.root
ANN = 61007


@pytest.fixture
def ann() -> Iterator[Runs]:
    with shared_host(1, ANN) as host:
        yield host.users[0]


def named(name: str) -> list[int]:
    """The user's live processes of that name, without children of such."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            theirs = entry.name.isdigit() and entry.stat().st_uid == ANN and not gone(int(entry.name))
            if theirs and (entry / "comm").read_text().strip() == name:
                found.append(int(entry.name))
    return [pid for pid in found if parent(pid) not in found]


def allow(pid: int, count: int) -> None:
    """How many processes that one may see of its user when it forks."""
    drop = ["setpriv", "--reuid", str(ANN), "--regid", str(ANN), "--clear-groups", "--inh-caps=-all"]
    subprocess.run([*drop, "prlimit", "--pid", str(pid), f"--nproc={count}:"], check=True)


def failed_forks(runs: Runs) -> int:
    log = runs.host.home / "agent.log"
    return log.read_text().count("Resource temporarily unavailable") if log.exists() else 0


def test_a_start_that_nothing_can_be_forked_for_is_made_later(ann: Runs) -> None:
    ann.submit("afull00001", HOLD, device="npu", cards=1)
    ann.submit("afull00002", "true", device="npu", cards=1)
    up(ann, "afull00001")
    until(lambda: named("jr-spare") and named("jr-setup"), what="what waits for the next start")
    (dispatcher,), (spare,) = named("jr-dispatch"), named("jr-spare")
    allow(dispatcher, 0)
    os.kill(spare, signal.SIGKILL)
    until(lambda: gone(spare))
    known = failed_forks(ann)
    go(ann, "afull00001")
    assert ann.final("afull00001")["state"] == "COMPLETED"
    until(lambda: failed_forks(ann) > known, what="a start that failed")
    open_then = len(os.listdir(f"/proc/{dispatcher}/fd"))
    until(lambda: failed_forks(ann) > known + 1, what="another try")
    assert ann.view("afull00002")["state"] == "QUEUED" and not gone(dispatcher)
    assert len(os.listdir(f"/proc/{dispatcher}/fd")) <= open_then, "no try keeps anything"
    allow(dispatcher, 4000)
    assert ann.final("afull00002", within=40)["state"] == "COMPLETED"


def test_a_supervisor_that_can_have_no_helper_sees_its_job_to_the_end(ann: Runs) -> None:
    ann.channel.ask("probe")
    settings = ann.host.root / "settings.json"
    settings.write_text(json.dumps({"check_s": 0.1}))
    settings.chmod(0o644)
    ann.submit("afull00003", HOLD, device="npu", cards=1, checkpoints={"paths": ["*.pt"]})
    up(ann, "afull00003")
    supervisor = ann.start("afull00003")["supervisor"]["pid"]
    allow(supervisor, 0)
    settle_down(0.5)  # some times of checkpoints being noted
    assert not gone(supervisor)
    allow(supervisor, 4000)
    go(ann, "afull00003")
    view = ann.final("afull00003", within=40)
    assert (view["state"], view["exit_code"]) == ("COMPLETED", 0)
