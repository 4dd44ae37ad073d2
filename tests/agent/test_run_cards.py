"""No card twice: with simulated cards, several users' dispatchers, strangers, and holders whose lease is gone."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import clock
from jobrunner.lab.simcards import tools_dir, write_lab
from tests.support.agentproc import agent_host, until
from tests.support.running import Runs, kill, of_job

# Writes what it was given and when, holds it, and lets go when told.
HOLD = (
    'echo "$JOBRUNNER_CARDS $ASCEND_RT_VISIBLE_DEVICES"; : > $JOBRUNNER_OUTPUT_DIR/up; '
    "while [ ! -e $JOBRUNNER_OUTPUT_DIR/go ]; do sleep 0.01; done"
)


class CardHost:
    """A host with simulated cards."""

    def __init__(self, host: Any, lab: Path, device: str = "npu", count: int = 4, **overrides: Any) -> None:
        self.lab = lab
        write_lab(lab, device, count, **overrides)
        self.env = {"PATH": f"{tools_dir()}:{os.environ['PATH']}", "JOBRUNNER_LAB": str(lab)}
        self.runs = Runs(host, **self.env)
        self.host = host

    def go(self, job_id: str) -> None:
        (self.host.job(job_id) / "out" / "go").touch()

    def up(self, job_id: str) -> list[int]:
        """Wait until the job runs; its cards."""
        until((self.host.job(job_id) / "out" / "up").exists, timeout=60, what=f"{job_id} is up")
        return self.runs.view(job_id)["cards"]


@pytest.fixture
def cards(tmp_path: Path):
    with agent_host(tmp_path) as host:
        yield CardHost(host, tmp_path / "lab")


def test_cards_are_set_held_and_passed_on(cards: CardHost) -> None:
    runs = cards.runs
    for number in range(3):
        runs.submit(f"acards00{number}", HOLD, device="npu", cards=2)
    first, second = cards.up("acards000"), cards.up("acards001")
    assert sorted(first + second) == [0, 1, 2, 3]
    text = ",".join(str(card) for card in first)
    assert runs.log("acards000") == f"{text} {text}\n"
    assert runs.view("acards002")["state"] == "QUEUED"
    report = runs.channel.ask("look", jobs=[], cards=True, max_age_s=0)["cards"]
    assert [card["lease"]["job"] for card in report["cards"] if card["index"] in first] == ["acards000"] * 2
    assert not any(card["free"] for card in report["cards"])
    cards.go("acards000")
    assert cards.up("acards002") == first
    for job_id in ("acards001", "acards002"):
        cards.go(job_id)
        assert runs.final(job_id)["state"] == "COMPLETED"


def test_next_job_starts_at_once(cards: CardHost) -> None:
    """A card that comes free goes to the next job without a new reading of the tool."""
    runs = cards.runs
    for number in range(6):
        runs.submit(f"ahandov0{number}", "sleep 0.2", device="npu", cards=4)
    for number in range(6):
        assert runs.final(f"ahandov0{number}", within=60)["state"] == "COMPLETED"
    gaps = []
    for number in range(1, 6):
        ended = json.loads((cards.host.job(f"ahandov0{number - 1}") / "final.json").read_bytes())["at"]
        gaps.append(clock.seconds(runs.start(f"ahandov0{number}")["at"]) - clock.seconds(ended))
    # About 20 ms on an idle machine; a new reading would come after 5 s at the earliest.
    assert min(gaps) < 0.1 and max(gaps) < 2, gaps


def test_explicit_cards_only_cards_max_cards(cards: CardHost) -> None:
    runs = cards.runs
    runs.submit("aexplicit", HOLD, device="npu", cards=2, card_ids=[3, 1])
    assert cards.up("aexplicit") == [1, 3] and runs.log("aexplicit").startswith("1,3 1,3")
    limits = {"only_cards": [0, 1], "max_cards": 3}
    runs.submit("aonly0001", HOLD, device="npu", cards=1, limits=limits)
    assert cards.up("aonly0001") == [0]
    runs.submit("aonly0002", "true", device="npu", cards=1, limits={"max_cards": 3})
    (found,) = runs.channel.ask("why", id="aonly0002")["findings"][:1]
    assert found["code"] == "max_cards" and runs.view("aonly0002")["state"] == "QUEUED"
    cards.go("aonly0001")
    assert runs.final("aonly0002")["state"] == "COMPLETED"
    cards.go("aexplicit")
    runs.final("aexplicit")


def test_strangers_keep_their_cards(cards: CardHost) -> None:
    """A process that the tool shows keeps a card from us; once it is gone, the job starts by itself."""
    stranger = {"pid": 999999, "name": "python", "memory_mb": 9000}
    write_lab(cards.lab, "npu", 2, cards={0: {"processes": [stranger]}, 1: {"health": "Alarm"}})
    cards.runs.submit("astranger", HOLD, device="npu", cards=1)
    findings = until(
        lambda: (f := cards.runs.channel.ask("why", id="astranger")["findings"]) and f[0]["code"] == "cards" and f
    )
    texts = " | ".join(finding["summary"] for finding in findings)
    assert "999999" in texts and "not healthy" in texts
    write_lab(cards.lab, "npu", 2, cards={1: {"health": "Alarm"}})
    assert cards.up("astranger") == [0]
    cards.go("astranger")
    cards.runs.final("astranger")


def test_holder_without_a_lease_keeps_its_card(tmp_path: Path) -> None:
    """A job whose processes let the lease go, and whose supervisor was killed, still has its card."""
    with agent_host(tmp_path) as host:
        cards = CardHost(host, tmp_path / "lab", count=1, show_jobs=False)
        close = "import os, time; os.closerange(3, 99); open(os.environ['JOBRUNNER_OUTPUT_DIR'] + '/up', 'w'); "
        close += "time.sleep(60)"
        cards.runs.submit("aholder01", command={"argv": ["python3", "-c", close]}, device="npu", cards=1)
        assert cards.up("aholder01") == [0]
        cards.runs.submit("aholder02", HOLD, device="npu", cards=1)
        for pid in cards.runs.agents("jr-dispatch", "jr-supervise"):
            kill(pid)
        assert of_job("aholder01")
        names = Path("/proc/net/unix").read_text()
        assert f"jobrunner/1/card/npu/0@{host.scope}" not in names
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            views = cards.runs.channel.ask("look", jobs=["aholder01", "aholder02"])["jobs"]
            assert (views["aholder01"]["state"], views["aholder02"]["state"]) == ("RUNNING", "QUEUED")
        for pid in of_job("aholder01"):
            kill(pid)
        assert cards.runs.final("aholder01")["reason"] == "unobserved"
        assert cards.up("aholder02") == [0]
        cards.go("aholder02")
        cards.runs.final("aholder02")


def test_two_queues_never_share_a_card(tmp_path: Path) -> None:
    """Two roots on one machine, as two users have: forty short jobs, each card used by one at a time."""
    with agent_host(tmp_path / "a") as one, agent_host(tmp_path / "b") as two:
        two.scope = one.scope
        left, right = CardHost(one, tmp_path / "lab", count=3), CardHost(two, tmp_path / "lab", count=3)
        spans = tmp_path / "spans"
        spans.mkdir()
        body = (
            f"for c in ${{JOBRUNNER_CARDS//,/ }}; do mkdir {spans}/$c || touch {spans}/TWICE; done; sleep 0.05; "
            f"for c in ${{JOBRUNNER_CARDS//,/ }}; do rmdir {spans}/$c; done"
        )
        ids = []
        for number in range(10):
            for cards in (left, right):
                ids.append((cards, f"ashared{number:02d}" + ("a" if cards is left else "b")))
                cards.runs.submit(ids[-1][1], body, device="npu", cards=1 + number % 2)
        for cards, job_id in ids:
            assert cards.runs.final(job_id, within=40)["state"] == "COMPLETED", cards.runs.log(job_id)
        assert list(spans.iterdir()) == []


@pytest.mark.root
def test_two_real_users_share_by_usage(tmp_path: Path) -> None:
    """Leases of another user count although we may not look into its processes."""
    with agent_host(tmp_path) as host:
        cards = CardHost(host, tmp_path / "lab", count=2)
        cards.runs.submit("abefore01", "true", device="npu", cards=1)
        cards.runs.final("abefore01")
        code = (
            "import os,sys,time,_socket; os.setuid(65534); s=_socket.socket(_socket.AF_UNIX,_socket.SOCK_DGRAM);"
            f"s.bind(b'\\0jobrunner/1/card/npu/0@{host.scope}'); print('up', flush=True); time.sleep(60)"
        )
        with subprocess.Popen(["python3", "-c", code], stdout=subprocess.PIPE) as other:
            assert other.stdout and other.stdout.readline() == b"up\n"
            try:
                cards.runs.submit("auser0001", HOLD, device="npu", cards=1)
                assert cards.up("auser0001") == [1]
                cards.runs.submit("auser0002", HOLD, device="npu", cards=1)
                texts = [finding["summary"] for finding in cards.runs.channel.ask("why", id="auser0002")["findings"]]
                assert any("card 0: leased by somebody" in text for text in texts), texts
            finally:
                other.kill()
        assert cards.up("auser0002") == [0]
        for job_id in ("auser0001", "auser0002"):
            cards.go(job_id)
            cards.runs.final(job_id)


def test_host_whose_tool_cannot_be_asked(tmp_path: Path) -> None:
    """`cards: N` in the hosts file: leases alone decide."""
    with agent_host(tmp_path) as host:
        runs = Runs(host)
        runs.submit("aassumed1", "echo $MLU_VISIBLE_DEVICES", device="mlu", cards=2, limits={"cards": 2})
        assert runs.final("aassumed1")["state"] == "COMPLETED"
        assert runs.log("aassumed1") == "0,1\n"
