"""Two Unix users, two dispatchers, one set of cards: nothing twice, in fair turns, and everybody sees who has what."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.agent import clock
from jobrunner.agent.accelerators import KINDS
from jobrunner.lab.simcards import tools_dir
from tests.support.agentproc import load, until
from tests.support.users import HOLD, SharedHost, go, shared_host, up

pytestmark = pytest.mark.root
ANN, BOB = 61001, 61002


@pytest.fixture
def host() -> Iterator[SharedHost]:
    with shared_host(2, ANN, BOB) as made:
        yield made


def test_everybody_sees_who_has_what_and_who_waits(host: SharedHost) -> None:
    ann, bob = host.users
    ann.submit("aannjob01", HOLD, device="npu", cards=2)
    assert up(ann, "aannjob01") == [0, 1]
    bob.submit("abobjob01", HOLD, device="npu", cards=1)
    bob.submit("abobjob02", HOLD, device="npu", cards=2)
    until((host.hosts[1].shown / "ticket.json").exists, what="bob's ticket")
    ann.submit("aannjob02", "true", device="npu", cards=1)
    until(lambda: len(look(ann)["waiting"]) == 3, what="the line of all")
    report = look(bob)
    leases = [card["lease"] for card in report["cards"]]
    since = ann.start("aannjob01")["at"]
    assert leases == [{"user": str(ANN), "job": "aannjob01", "name": "aannjob01", "since": since}] * 2
    assert report["cards"][0]["why_busy"] == f"leased by {ANN} for job aannjob01 since {since}"
    line = [(entry["user"], entry["job"], entry["cards"], entry["mine"]) for entry in report["waiting"]]
    assert line == [
        (str(BOB), "abobjob01", 1, True),
        (str(BOB), "abobjob02", 2, True),
        (str(ANN), "aannjob02", 1, False),
    ]
    findings = {finding["code"]: finding for finding in ann.channel.ask("why", id="aannjob02")["findings"]}
    assert findings["place"]["summary"] == "it is number 3 of 3 that wait for npu cards here"
    assert f"{BOB}'s job abobjob01: 1 card since " in findings["place"]["evidence"]
    go(ann, "aannjob01")
    assert up(bob, "abobjob01") == [0], "who used less comes first"
    for runs, job_id in ((bob, "abobjob01"), (bob, "abobjob02")):
        up(runs, job_id)
        go(runs, job_id)
        assert runs.final(job_id, within=40)["state"] == "COMPLETED"
    assert ann.final("aannjob02", within=40)["state"] == "COMPLETED"


def look(runs) -> dict:
    report = runs.channel.ask("look", jobs=[], cards=True, max_age_s=0)["cards"]
    assert report["error"] is None
    return report


def test_a_card_is_read_again_after_a_colleague_had_it(host: SharedHost) -> None:
    """What the tool said before a colleague took a card says nothing of what its job left there."""
    ann, bob = host.users
    ann.submit("aannjob01", HOLD, device="npu", cards=2)
    assert up(ann, "aannjob01") == [0, 1]
    bob.submit("abobjob01", HOLD, device="npu", cards=1)
    until(lambda: any(load(path)["report"] for path in host.hosts[1].home.glob("cards-npu.json")), what="bob's reading")
    until(lambda: all_asleep(bob.agents("jr-dispatch")), what="the end of who read, and that bob knows the answer")
    # ann's job ends, but something of it that bob cannot see into stays on card 0.
    left = {"pid": 1, "name": "python", "memory_mb": 9000}
    host.cards(cards={0: {"processes": [left]}})
    go(ann, "aannjob01")
    assert up(bob, "abobjob01") == [1]
    go(bob, "abobjob01")


def all_asleep(pids: list[int]) -> bool:
    """One process, and nothing for it to do just now."""
    stat = Path(f"/proc/{pids[0]}/stat").read_bytes() if len(pids) == 1 else b""
    return stat.rpartition(b")")[2].split()[:1] == [b"S"]


class Watch(threading.Thread):
    """Asks the vendor's tool again and again, as root, who is on the cards: more than one job on one is noted."""

    def __init__(self, lab: Path) -> None:
        super().__init__(daemon=True)
        self.lab, self.twice, self.looks, self.busy, self.ended = lab, [], 0, 0, threading.Event()

    def run(self) -> None:
        kind = KINDS["npu"]
        environ = dict(os.environ, JOBRUNNER_LAB=str(self.lab))
        while not self.ended.wait(0.4):
            asked = {}
            for command in kind.commands:
                words = [str(tools_dir() / kind.tool), *command.args]
                asked[command.key] = subprocess.run(words, capture_output=True, text=True, env=environ).stdout
            self.looks += 1
            for card in kind.parse(asked).cards:
                jobs = {job for process in card["processes"] if (job := job_of(process["pid"]))}
                self.busy += bool(card["processes"])
                if len(jobs) > 1:
                    self.twice.append((card["index"], sorted(jobs)))


def job_of(pid: int) -> str | None:
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    return next((line[17:].decode() for line in environ.split(b"\0") if line.startswith(b"JOBRUNNER_JOB_ID=")), None)


FULL = os.environ.get("FULL") == "1"  # two hundred jobs

MIXES = {
    "alike": (range(40), lambda n: (1 + n % 2, 0.2), range(40), lambda n: (1 + n % 2, 0.2), 600),
    "wide against narrow": (
        range(60 if FULL else 40),
        lambda n: (1 + n % 4, 0.3),
        range(140 if FULL else 90),
        lambda n: (1, 0.2),
        1,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("mix", MIXES)
def test_many_jobs_of_two_users_on_eight_cards(mix: str) -> None:
    """Nothing twice, and card-hours within a tenth of equal while both wait; two hundred jobs at the most (FULL=1)."""
    anns, of_ann, bobs, of_bob, wide_after_s = MIXES[mix]
    with shared_host(8, ANN, BOB) as host:
        spans = host.folder / "spans"
        spans.mkdir()
        spans.chmod(0o777)
        watch = Watch(host.lab)
        watch.start()
        wanted = {
            ANN: [using_cards(f"aann{n:05d}", spans, *of_ann(n)) for n in anns],
            BOB: [using_cards(f"abob{n:05d}", spans, *of_bob(n)) for n in bobs],
        }
        for runs, one in zip(host.users, host.hosts, strict=True):
            runs.channel.ask("drain", on=True)
            host.submit_all(runs, wanted[one.uid])
            (one.root / "settings.json").write_text(json.dumps({"wide_after_s": wide_after_s}))
            (one.root / "settings.json").chmod(0o644)
        for runs in host.users:
            runs.channel.ask("drain", on=False)
        for runs, one in zip(host.users, host.hosts, strict=True):
            ids = [id_ for id_, _, _ in wanted[one.uid]]
            views = runs.channel.ask("wait", ids=ids, timeout_s=90)["jobs"]
            assert {view["state"] for view in views.values()} == {"COMPLETED"}
        watch.ended.set()
        watch.join()
        assert [path.name for path in spans.iterdir()] == []
        assert watch.twice == [] and watch.looks > 0 and watch.busy > 0
        used, both = card_seconds(host, wanted)
        print(f"{mix}: card-seconds while both waited ({both:.1f} s): {used}; the tool was asked {watch.looks} times")
        assert both > 2
        assert abs(used[ANN] - used[BOB]) <= 0.1 * max(used.values()), used


def using_cards(id_: str, spans: Path, cards: int, seconds: float) -> tuple[str, str, dict]:
    """A job that marks its cards in `spans` while it has them; marking one twice leaves a trace."""
    each = "for c in ${JOBRUNNER_CARDS//,/ }; do"
    shell = f"{each} mkdir {spans}/$c || touch {spans}/TWICE-$c; done; sleep {seconds}; {each} rmdir {spans}/$c; done"
    return id_, shell, {"cards": cards}


def card_seconds(host: SharedHost, wanted: dict) -> tuple[dict[int, float], float]:
    """Card-seconds of each user until the first of them had nothing waiting any more, from the start records."""
    spans: dict[int, list[tuple[float, float, int]]] = {}
    for one in host.hosts:
        spans[one.uid] = []
        for id_, _, _ in wanted[one.uid]:
            start, end = load(one.job(id_) / "1/start.json"), load(one.job(id_) / "1/exit.json")
            spans[one.uid].append((start["began"], clock.seconds(end["at"]), len(start["cards"])))
    first = min(began for found in spans.values() for began, _, _ in found)
    until_s = min(max(began for began, _, _ in found) for found in spans.values())
    used = {
        uid: round(sum(max(0.0, min(end, until_s) - began) * cards for began, end, cards in found), 2)
        for uid, found in spans.items()
    }
    return used, until_s - first


def test_each_user_has_the_instance_and_root_of_its_own(host: SharedHost) -> None:
    ann, bob = host.users
    for runs, job_id in ((ann, "aannjob01"), (bob, "abobjob01")):
        runs.submit(job_id, "id -u", device="npu", cards=1)
        assert runs.final(job_id, within=40)["state"] == "COMPLETED"
    assert (ann.log("aannjob01"), bob.log("abobjob01")) == (f"{ANN}\n", f"{BOB}\n")
    for one in host.hosts:
        assert (os.stat(one.root).st_uid, oct(os.stat(one.root).st_mode & 0o777)) == (one.uid, "0o700")
        shown = os.stat(one.shown)
        assert (shown.st_uid, oct(shown.st_mode & 0o777)) == (one.uid, "0o755")
        leases = json.loads((one.shown / "leases.json").read_text())
        assert leases["v"] == 1 and time.time() > 0
