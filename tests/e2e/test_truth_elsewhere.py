"""A job whose host is gone goes on elsewhere: the old one is cancelled before anything else, and nothing runs twice."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.lab import Lab, gone
from tests.support.quick import QuickClient
from tests.support.relay import relayed
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
SPEC = "device: cpu\nhosts: [one, two]\ngrace: 1s\nscript: t.py\nenv: {OUT: %s}\n"
SCRIPT = (
    "import os, time\n"
    "with open(os.environ['OUT'], 'a') as out:\n"
    "    out.write(os.environ['JOBRUNNER_JOB_ID'] + '\\n')\n"
    "while not os.path.exists(os.environ['OUT'] + '.go'):\n"
    "    time.sleep(0.05)\n"
)


@pytest.fixture
def labs(tmp_path: Path) -> Iterator[tuple[Lab, Lab]]:
    with Lab(tmp_path / "one", alias="one") as one, Lab(tmp_path / "two", alias="two") as two:
        yield one, two


@pytest.fixture
def client(labs: tuple[Lab, Lab], tmp_path: Path) -> QuickClient:
    return QuickClient(tmp_path / "client", *labs)


def runs(out: Path) -> list[str]:
    """The ids of the jobs that ran, in order, one for each start."""
    return out.read_text().split() if out.exists() else []


def host_of(client: QuickClient, labs: tuple[Lab, Lab], id_: str) -> tuple[Lab, Lab]:
    """The host that a job is on, and the other one."""
    first, second = labs
    return (first, second) if client.row(id_)["host"] == first.alias else (second, first)


def test_lost_host_old_job_ends_when_it_is_back(client: QuickClient, labs: tuple[Lab, Lab], tmp_path: Path) -> None:
    out = tmp_path / "out"
    old = client.submit(SPEC % out, "away", t__py=SCRIPT)
    client.until(old, "RUNNING")
    eventually(lambda: runs(out) == [old], what="the first run")
    here, there = host_of(client, labs, old)
    here.sshd.stop()
    refused = client.json("retry", old, code=3)
    assert "--elsewhere" in refused["errors"][0]["remedy"]
    [row] = client.json("retry", old, "--elsewhere")["jobs"]
    new = row["id"]
    assert row["host"] == there.alias and row["retry_of"] == old
    before = client.json("ls", code=None)["jobs"]
    assert {job["id"]: (job["state"], job["unreachable"]) for job in before}[old] == ("RUNNING", True)
    assert next(job for job in before if job["id"] == old)["cancel_requested_at"]
    here.sshd.start()
    client.run("cards", here.alias)  # any command: the first contact carries the wish
    final = here.job_folder(old) / "final.json"
    eventually(final.exists, what="the old job's end, asked for by nobody again")
    gone(lambda: here.carriers(old), 1.0)
    assert client.row(old)["state"] == "CANCELLED"
    Path(f"{out}.go").touch()
    client.run("wait", new)
    assert client.row(new)["state"] == "COMPLETED"
    assert runs(out) == [old, new]


def test_job_that_would_be_tried_again_is_not(client: QuickClient, labs: tuple[Lab, Lab], tmp_path: Path) -> None:
    """The old host crashed with a job that is to be tried again: at the first contact the wish comes first."""
    out = tmp_path / "out"
    old = client.submit(SPEC % out + "retry: {max: 3, on: [lost], backoff: 0s}\n", "crashed", t__py=SCRIPT)
    client.until(old, "RUNNING")
    here, there = host_of(client, labs, old)
    here.sshd.stop()
    start = json.loads((here.job_folder(old) / "1" / "start.json").read_bytes())
    for pid in (start["supervisor"]["pid"], *here.carriers(old)):
        os.kill(pid, signal.SIGKILL)
    [row] = client.json("retry", old, "--elsewhere")["jobs"]
    here.sshd.start()
    client.run("ls")
    assert client.row(old)["state"] == "CANCELLED"
    Path(f"{out}.go").touch()
    client.run("wait", row["id"])
    assert runs(out) == [old, row["id"]]
    assert client.row(row["id"])["host"] == there.alias


def test_reachable_host_is_left_only_once_the_job_has_ended(
    client: QuickClient, labs: tuple[Lab, Lab], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    old = client.submit(SPEC % out, "moves", t__py=SCRIPT)
    client.until(old, "RUNNING")
    here, there = host_of(client, labs, old)
    [row] = client.json("retry", old, "--elsewhere")["jobs"]
    assert client.row(old)["state"] == "CANCELLED" and not here.carriers(old) and row["host"] == there.alias
    Path(f"{out}.go").touch()
    client.run("wait", row["id"])


def test_what_cannot_go_elsewhere_keeps_its_job(client: QuickClient, labs: tuple[Lab, Lab], tmp_path: Path) -> None:
    """Sending fails for sure: the wish to cancel is withdrawn with it."""
    out = tmp_path / "out"
    old = client.submit(SPEC % out, "stays", t__py=SCRIPT)
    client.until(old, "RUNNING")
    here, there = host_of(client, labs, old)
    here.sshd.stop()
    root = there.root
    root.mkdir(parents=True, exist_ok=True)
    (root / "blobs").write_text("in the way")
    client.run("retry", old, "--elsewhere", code=3)
    (root / "blobs").unlink()
    here.sshd.start()
    row = client.row(old)
    assert (row["state"], row["cancel_requested_at"]) == ("RUNNING", None)
    assert [job["id"] for job in client.json("ls", "--all")["jobs"]] == [old]
    Path(f"{out}.go").touch()
    client.run("wait", old)


@pytest.mark.parametrize("missing", [200, 1200])
def test_a_retry_whose_answer_was_lost_is_gone_on_with(lab: Lab, tmp_path: Path, missing: int) -> None:
    """So many bytes before the end of the answer the link is cut; the same retry again is the same job."""
    client = QuickClient(tmp_path / "client", lab)
    out = tmp_path / "out"
    Path(f"{out}.go").touch()
    old = client.submit((SPEC % out).replace("[one, two]", "[lab]"), "cut", t__py=SCRIPT)
    client.run("wait", old)
    with relayed(client, lab) as relay:
        first = client.json("retry", old)["jobs"][0]["id"]
        relay.direction, relay.limit = "down", relay.passed["down"] - missing
        client.run("retry", old, code=3)
        relay.heal()
        second = client.json("retry", old)["jobs"][0]["id"]
        rows = client.json("ls", "--all")["jobs"]
        assert {row["id"] for row in rows} == {old, first, second}
        client.run("wait", first, second)
    assert sorted(runs(out)) == sorted([old, first, second])
    assert {path.name for path in lab.root.glob("hosts/*/jobs/*")} >= {old, first, second}


def test_a_submit_with_a_choice_of_hosts_is_gone_on_with(
    client: QuickClient, labs: tuple[Lab, Lab], tmp_path: Path
) -> None:
    """The host had the job when the link broke; the same submit looks at all its hosts again, and is the same job."""
    out = tmp_path / "out"
    Path(f"{out}.go").touch()
    one, two = labs
    client.run("hosts", "drain", two.alias)
    client.run("hosts", "check", one.alias)
    spec = client.spec(SPEC % out, "chosen", t__py=SCRIPT)
    with relayed(client, one) as relay:

        def cut_after_commit() -> None:
            eventually(lambda: list(one.root.glob("hosts/*/jobs/[a-z]*")), what="the job's folder")
            relay.limit = 0
            relay.cut()

        relay.delay = 0.05  # so that the answer is still under way then
        cutter = threading.Thread(target=cut_after_commit)
        cutter.start()
        client.run("submit", str(spec), code=3)
        cutter.join()
        relay.heal()
        [row] = client.json("submit", str(spec))["jobs"]
        client.run("wait", row["id"])
        assert [job["id"] for job in client.json("ls", "--all")["jobs"]] == [row["id"]]
    assert runs(out) == [row["id"]]


def test_a_host_that_is_off_gets_nothing(client: QuickClient, labs: tuple[Lab, Lab], tmp_path: Path) -> None:
    """Of two hosts one is switched off: the job goes to the other."""
    labs[0].sshd.stop()
    client.run("submit", str(client.spec(SPEC % (tmp_path / "out"), "away", t__py="")))
    [row] = client.json("ls", "--all")["jobs"]
    assert row["host"] == "two"
