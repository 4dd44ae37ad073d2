"""What users of other tools ran into, once through whole commands. The host's TMPDIR cannot be used by anybody."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.transport.link import HostLink
from tests.support.lab import Lab
from tests.support.quick import QuickClient
from tests.support.relay import relayed
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd
CPU = "device: cpu\ngrace: 1s\ncode: null\n"
FULL = os.environ.get("FULL") == "1"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("reports"), env={"TMPDIR": "/dev/null/not/there"}) as made:
        yield made


@pytest.fixture
def client(lab: Lab, tmp_path: Path) -> QuickClient:
    return QuickClient(tmp_path / "client", lab, lab={"cpu_jobs": 8})


def test_a_pull_says_how_the_job_ended(client: QuickClient, lab: Lab, tmp_path: Path) -> None:
    """The job was killed by hand on its host; after a pull the list knows, with no host asked again."""
    id_ = client.submit(f"{CPU}outputs: ['o']\ncommand: echo 1 > $JOBRUNNER_OUTPUT_DIR/o; exec sleep 600\n", "pulled")
    client.until(id_, "RUNNING")
    eventually(lambda: list(lab.job_folder(id_).glob("out/o")), what="its output")
    for pid in lab.carriers(id_):
        os.kill(pid, 9)
    eventually((lab.job_folder(id_) / "final.json").exists, what="the verdict")
    client.run("pull", id_, "--to", str(tmp_path / "here"))
    [row] = [row for row in client.json("ls", "--all", "--offline")["jobs"] if row["id"] == id_]
    assert (row["state"], row["signal"]) == ("FAILED", "SIGKILL")


def test_who_was_killed_with_its_supervisor_is_told_of_logouts(client: QuickClient, lab: Lab) -> None:
    """As some hosts do at the end of a session: LOST, and the hint that ends it."""
    id_ = client.submit(f"{CPU}command: sleep 600\n", "loggedout")
    client.until(id_, "RUNNING")
    start = json.loads((lab.job_folder(id_) / "1" / "start.json").read_bytes())
    for pid in (start["supervisor"]["pid"], *lab.carriers(id_)):
        os.kill(pid, 9)
    assert "enable-linger" in client.run("explain", id_).stdout
    assert client.row(id_)["reason"] == "killed"


def test_long_words_arrive_or_are_refused_with_a_reason(client: QuickClient) -> None:
    long = " ".join(f"word{n} 'it''s' $n" for n in range(400))
    spec = {"name": "long", "device": "cpu", "code": None, "command": ["sh", "-c", 'printf %s "$1"', "sh", long]}
    path = client.folder / "long.yaml"
    path.write_text(json.dumps(spec))
    id_ = client.json("submit", str(path))["jobs"][0]["id"]
    client.run("wait", id_)
    assert len(long) > 5000 and hashlib.sha256(client.log(id_)).digest() == hashlib.sha256(long.encode()).digest()
    spec["command"] = ["true", "x" * 300_000]  # Linux takes no single word of more than 128 KiB
    path.write_text(json.dumps(spec))
    id_ = client.json("submit", str(path))["jobs"][0]["id"]
    client.run("wait", id_, code=1)
    row = client.json("show", id_)
    assert (row["job"]["state"], row["job"]["reason"]) == ("FAILED", "launch") and "long" in row["job"][
        "evidence"
    ].lower()
    spec["command"] = ["true", "a\0b"]
    path.write_text(json.dumps(spec))
    refused = client.json("submit", str(path), code=2)
    assert "command" in json.dumps(refused["errors"])


def test_what_a_job_made_stays_when_the_next_one_is_sent(client: QuickClient, lab: Lab) -> None:
    """Sending code removes nothing on the host, whatever an ignore file says of it."""
    text = "device: cpu\ncommand: mkdir -p outputs; date > outputs/made; test -e t\n"
    first = client.submit(text, "builds", t="1")
    (client.folder / "builds" / ".gitignore").write_text("outputs/\n")
    client.run("wait", first)
    made = lab.job_folder(first) / "1" / "work" / "outputs" / "made"
    before = made.read_bytes()
    second = client.json("submit", str(client.folder / "builds" / "spec.yaml"))["jobs"][0]["id"]
    client.run("wait", second)
    assert second != first and made.read_bytes() == before


def test_fifty_jobs_are_one_question(client: QuickClient, lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the way to the host takes, a list costs it once."""
    specs = []
    for number in range(50):
        path = client.folder / f"j{number}.yaml"
        path.write_text(f"name: j{number}\ndevice: npu\ncards: 4\ncode: null\ngrace: 1s\ncommand: sleep 600\n")
        specs.append(str(path))
    ids = [row["id"] for row in client.json("submit", *specs)["jobs"]]
    asked: list[str] = []
    real = HostLink.request

    def counted(self: HostLink, op: str, *args: object, **more: object) -> object:
        asked.append(op)
        return real(self, op, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(HostLink, "request", counted)
    with relayed(client, lab) as relay:
        relay.delay = 0.025  # a round trip of 50 ms
        began = time.monotonic()
        rows = client.json("ls")["jobs"]
        took, questions = time.monotonic() - began, list(asked)
        relay.delay = 0.0
        client.run("cancel", *ids)
    assert (
        sorted(row["state"] for row in rows)[:-1] == ["QUEUED"] * 49
        and len(rows) == 50
        and questions == ["look"]
        and took < 4
    )


def test_thousands_of_small_files_over_a_long_way(client: QuickClient, lab: Lab) -> None:
    """2,000 files at a round trip of 50 ms take seconds. (FULL=1: 20,000.)"""
    count = 20_000 if FULL else 2000
    code = client.folder / "many" / "deep"
    code.mkdir(parents=True)
    for number in range(count):
        (code / f"{number}.py").write_text(f"x = {number}\n")
    with relayed(client, lab) as relay:
        relay.delay = 0.025
        began = time.monotonic()
        id_ = client.submit(f"device: cpu\ncommand: test $(ls deep | wc -l) = {count}\n", "many")
        took = time.monotonic() - began
        client.run("wait", id_)
    assert took < (60 if FULL else 10), took


def test_a_candidate_that_is_silent_is_told_while_another_takes_the_job(client: QuickClient) -> None:
    sent = client.run("submit", str(client.spec(f"{CPU}command: 'true'\nhosts: [silent, lab]\n", "either")), "--json")
    [row], [warning] = json.loads(sent.stdout)["data"]["jobs"], sent.stderr.splitlines()
    assert row["host"] == "lab" and warning.startswith("warning: silent was left out: "), warning
