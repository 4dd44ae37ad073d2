"""Retries on the host alone: by reason, with back-off, from the pristine tree, from the newest whole checkpoint."""

from __future__ import annotations

import io
import json
import os
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import ckptcheck, worktree
from jobrunner.agent.clock import seconds
from tests.support.agentproc import Tree, agent_host, until
from tests.support.running import Runs, kill, of_job

ALL = ["exit", "signal", "oom", "lost", "timeout"]


@pytest.fixture
def runs(tmp_path: Path) -> Iterator[Runs]:
    with agent_host(tmp_path) as host:
        yield Runs(host)


def verdict(runs: Runs, job_id: str) -> dict[str, Any]:
    """The verdict as it lies on the host, waited for without asking anybody."""
    path = runs.host.job(job_id) / "final.json"
    until(path.exists, 30, what="the verdict")
    return json.loads(path.read_bytes())


@pytest.mark.parametrize(
    ("shell", "more", "on", "attempts"),
    [
        ("exit 3", {}, ["exit"], 3),
        ("exit 3", {}, ["signal", "oom", "lost", "timeout"], 1),
        ("kill -9 $$", {}, ["signal"], 3),
        ("kill -9 $$", {}, ["exit", "oom"], 1),
        ("sleep 600", {"timeout_s": 0.2}, ["timeout"], 3),
        ("sleep 600", {"timeout_s": 0.2}, ["exit", "signal"], 1),
        ("true", {"runtime": {"setup": ["exit 7"]}}, ALL, 1),
        ("true", {"command": {"argv": ["/not/there"]}}, ALL, 1),
        ("true", {}, ALL, 1),
    ],
)
def test_by_reason_without_a_client(runs: Runs, shell: str, more: dict[str, Any], on: list[str], attempts: int) -> None:
    retry = {"max": 2, "on": on, "backoff_s": 0.05}
    runs.submit("areason01", retry=retry, **{"command": {"shell": shell}, **more})
    runs.channel.close()
    assert verdict(runs, "areason01")["attempt"] in (attempts, None)
    assert sorted(path.name for path in runs.host.job("areason01").glob("[0-9]")) == [
        str(number) for number in range(1, attempts + 1)
    ]


def test_back_off_doubles_and_nobody_is_connected(runs: Runs) -> None:
    runs.submit("abackoff9", "exit 1", retry={"max": 2, "on": ["exit"], "backoff_s": 0.4})
    runs.channel.close()
    verdict(runs, "abackoff9")
    records = [
        json.loads((runs.host.job("abackoff9") / str(number) / name).read_bytes())
        for number, name in ((1, "exit.json"), (2, "start.json"), (2, "exit.json"), (3, "start.json"))
    ]
    times = [seconds(record["at"]) for record in records]
    assert 0.4 <= times[1] - times[0] < 3 and 0.8 <= times[3] - times[2] < 4


def test_what_is_carried_survives_an_attempt_that_never_came_so_far(runs: Runs) -> None:
    """Attempt 2 was lost before it had a folder: attempt 3 carries from attempt 1, over a pristine tree."""
    runs.channel.ask("drain", on=True)
    tree = Tree().file("t.py", b"pristine").file("cache/seed", b"seed")
    runs.submit("acarryon1", "true", tree=tree, carry=["cache/"])
    first = runs.host.job("acarryon1") / "1" / "work"
    (first / "cache").mkdir(parents=True)
    (first / "cache" / "seen").write_text("1")
    (first / "t.py").write_text("changed")
    (runs.host.job("acarryon1") / "2").mkdir()
    path = worktree.materialise(runs.host.layout, "acarryon1", 3, carry_from=2)
    made = Path(os.fsdecode(path))
    found = {str(item.relative_to(made)): item.read_text() for item in made.rglob("*") if item.is_file()}
    assert found == {"t.py": "pristine", "cache/seed": "seed", "cache/seen": "1"}


def zipped() -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("data.pkl", os.urandom(5000))
    return packed.getvalue()


TRAIN = b"""
import os, sys
attempt = int(os.environ["JOBRUNNER_ATTEMPT"])
print(os.environ.get("JOBRUNNER_RESUME_FROM"), sys.argv[1:], flush=True)
os.makedirs("ckpt", exist_ok=True)
good = open("good.bin", "rb").read()
if attempt == 1:
    open("ckpt/step-100.pt", "wb").write(good)
    open("ckpt/step-200.pt", "wb").write(good)
    open("ckpt/step-300.pt", "wb").write(good[:-700])
    open("ckpt/step-400.pt", "wb").write(b"")
    os.kill(os.getpid(), 9)
sys.exit(0)
"""


def test_a_torn_checkpoint_is_passed_over(runs: Runs) -> None:
    tree = Tree().file("t.py", TRAIN).file("good.bin", zipped())
    runs.submit(
        "atornckpt",
        tree=tree,
        command={"script": "t.py", "args": ["--lr", "5e-5"]},
        resume_args=["--resume", "{checkpoint}"],
        checkpoints={"paths": ["ckpt/*.pt"], "keep": None},
        retry={"max": 1, "on": ["signal"], "backoff_s": 0},
    )
    assert runs.final("atornckpt")["attempt"] == 2
    newest = str(runs.host.job("atornckpt") / "1" / "work" / "ckpt" / "step-200.pt")
    assert runs.log("atornckpt") == "None ['--lr', '5e-5']\n"
    assert runs.log("atornckpt", 2) == f"{newest} ['--lr', '5e-5', '--resume', {newest!r}]\n"
    shown = runs.channel.ask("checkpoints", id="atornckpt")["checkpoints"]
    assert {item["step"]: item["complete"] for item in shown} == {100: True, 200: True, 300: False, 400: False}


SAVES_AT_TERM = b"""
import os, signal, sys, time
def save(number, frame):
    open("ckpt/step-%s.pt" % os.environ["JOBRUNNER_ATTEMPT"], "wb").write(open("good.bin", "rb").read())
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
os.makedirs("ckpt", exist_ok=True)
print(os.environ.get("JOBRUNNER_RESUME_FROM"), flush=True)
time.sleep(600)
"""


def saver(runs: Runs, job_id: str, **more: Any) -> Path:
    tree = Tree().file("t.py", SAVES_AT_TERM).file("good.bin", zipped())
    where = {"paths": ["ckpt/*.pt"], "keep": None}
    runs.submit(job_id, tree=tree, command={"script": "t.py", "args": []}, checkpoints=where, grace_s=20, **more)
    return runs.host.job(job_id)


def test_a_checkpoint_of_the_grace_counts_at_the_time_limit(runs: Runs) -> None:
    folder = saver(runs, "agracetim", timeout_s=1.0, retry={"max": 1, "on": ["timeout"], "backoff_s": 0})
    view = runs.final("agracetim", within=20)
    assert (view["state"], view["attempt"]) == ("TIMEOUT", 2), view
    assert runs.log("agracetim", 2) == f"{folder / '1' / 'work' / 'ckpt' / 'step-1.pt'}\n"


def test_a_checkpoint_of_the_grace_counts_at_a_cancel(runs: Runs) -> None:
    saver(runs, "agracecan")
    runs.logged("agracecan", "None")
    assert runs.channel.ask("stop", ids=["agracecan"], wait_s=10)["jobs"]["agracecan"]["state"] == "CANCELLED"
    [item] = runs.channel.ask("checkpoints", id="agracecan")["checkpoints"]
    assert (item["step"], item["complete"]) == (1, True)


def test_a_lost_job_is_tried_again_at_the_next_visit(runs: Runs) -> None:
    """Supervisor, job and dispatcher killed together, as by a crash; whoever looks next sets it going."""
    runs.submit(
        "alostagai",
        "test $JOBRUNNER_ATTEMPT = 2 || sleep 600",
        retry={"max": 1, "on": ["lost"], "backoff_s": 0},
    )
    start = runs.running("alostagai")
    for pid in (runs.dispatcher(), start["supervisor"]["pid"], *of_job("alostagai")):
        if pid:
            kill(pid)
    view = runs.final("alostagai")
    assert (view["state"], view["attempt"]) == ("COMPLETED", 2)
    assert view["attempts"][0]["reason"] == "killed"


def test_a_distributed_checkpoint_is_whole_with_its_metadata(tmp_path: Path) -> None:
    """torch.distributed writes its shards first and `.metadata` last."""
    folder = tmp_path / "step-10"
    folder.mkdir()
    (folder / "__0_0.distcp").write_bytes(b"shard")
    assert not ckptcheck.whole(os.fsencode(folder))
    (folder / ".metadata").write_bytes(b"index")
    assert ckptcheck.whole(os.fsencode(folder))
