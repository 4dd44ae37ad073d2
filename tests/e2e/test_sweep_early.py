"""Early stopping on a real host: bad trials are stopped, paused ones go on from their checkpoints."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.errors import LinkLostError
from jobrunner.transport.link import HostLink
from tests.support.lab import Lab
from tests.support.sweeping import Sweeper, dying
from tests.support.waiting import eventually

pytestmark = pytest.mark.needs_sshd

SCRIPT = """
import os, sys, time
lr, resume = float(sys.argv[1]), os.environ.get("JOBRUNNER_RESUME_FROM")
first = int(open(resume).read()) + 1 if resume else 1
if resume:
    print("goes on from", os.path.basename(resume), flush=True)
os.makedirs("ckpt", exist_ok=True)
for epoch in range(first, 5):
    with open("ckpt/e%d.pt" % epoch, "w") as file:
        file.write(str(epoch))
    with open(os.environ["RAN"], "a") as file:
        file.write("%s %d\\n" % (sys.argv[1], epoch))
    print("epoch=%d loss=%g" % (epoch, lr + 1.0 / epoch), flush=True)
    while not resume and epoch == 1 and not os.path.exists(os.environ["GO"] + sys.argv[1]):
        time.sleep(0.01)
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as host:
        yield host


class Laptop(Sweeper):
    """A client with sweeps of trials that wait at their first epoch."""

    def start_sweep(self, sweep: str) -> str:
        text = f"""
args: ["{{lr}}"]
env: {{GO: {self.folder / "go"}, RAN: {self.folder / "ran"}}}
metrics: {{loss: 'loss=(\\S+)', epoch: 'epoch=(\\d+)'}}
checkpoints: {{paths: ["ckpt/*.pt"]}}
sweep: {{objective: loss min, {sweep}}}
"""
        return self.begin(text, SCRIPT)

    def go(self, *lrs: str) -> None:
        """Let trials go on from their first epoch."""
        for lr in lrs:
            (self.folder / f"go{lr}").touch()

    def told(self, sweep: str, count: int) -> None:
        """Wait until so many trials have told their loss."""

        def enough() -> bool:
            self.look()
            return sum(trial["objective"] is not None for trial in self.trials(sweep).values()) >= count

        eventually(enough, 30, f"{count} trials that told their loss")

    def why(self, job: str) -> list[tuple[str, str]]:
        """The decisions in a job's timeline."""
        events = self.json("show", job)["job"]["events"]
        return [(event["verdict"], event["why"]) for event in events if event["kind"] == "early_stop"]


@pytest.fixture
def laptop(lab: Lab, tmp_path: Path) -> Laptop:
    return Laptop(tmp_path / "laptop", lab)


def test_asha_stops_bad_trials_and_says_why(laptop: Laptop) -> None:
    sweep = laptop.start_sweep("parameters: {lr: [1, 2, 3]}, early_stop: {method: asha, step: epoch, max: 4}")
    laptop.told(sweep, 3)
    told = laptop.visit()
    assert len(told) == 2 and all("is stopped: asha, epoch 1: loss" in text for text in told), told
    laptop.go("1")
    laptop.to_the_end(sweep)
    trials = laptop.trials(sweep)
    assert {lr: (trial["state"], trial["status"]) for lr, trial in trials.items()} == {
        "1": ("COMPLETED", None), "2": ("CANCELLED", "stopped"), "3": ("CANCELLED", "stopped"),
    }  # fmt: skip
    [(verdict, why)] = laptop.why(trials["2"]["job"])
    assert (verdict, why) == ("stop", "asha, epoch 1: loss 3 is not among the best 1 of 3 (2)")
    shown = laptop.json("show", trials["2"]["job"])["job"]
    assert f"early stopping (stop, rung 0; {why})" in shown["evidence"]  # the host tells it as well
    assert {item[0] for item in laptop.why(trials["1"]["job"])} == {"go_on"}
    assert laptop.shown(sweep)["sweep"]["stopped_early"] == 2


def test_a_paused_trial_that_is_promoted_goes_on_from_its_checkpoint(laptop: Laptop) -> None:
    sweep = laptop.start_sweep(
        "parameters: {lr: [1, 2, 3]}, parallel: 1, early_stop: {method: asha, step: epoch, max: 3, pause: true}"
    )
    first = {lr: trial["job"] for lr, trial in laptop.trials(sweep).items()}
    told = laptop.to_the_end(sweep)
    trials = laptop.trials(sweep)
    best = trials["1"]
    assert best["state"] == "COMPLETED" and best["status"] == "promoted" and best["job"] != first["1"], told
    assert (best["objective"], best["step"]) == (1.25, 4.0)
    assert b"goes on from e1.pt" in laptop.log(best["job"]) and b"epoch=1 " not in laptop.log(best["job"])
    assert {trials[lr]["status"] for lr in "23"} == {"paused"} and {trials[lr]["job"] for lr in "23"} == {
        first["2"],
        first["3"],
    }
    assert [item[0] for item in laptop.why(first["1"])] == ["pause", "promote"]
    assert laptop.why(best["job"]) == [("promote", "asha, epoch 1: loss 2 is among the best 1 of 3 (2)")]
    assert laptop.json("show", best["job"])["job"]["retry_of"] == first["1"]


def test_the_best_paused_trial_runs_to_its_end_when_nothing_else_would(
    laptop: Laptop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its going on is not lost with the link: neither before the host has it, nor with the answer."""
    sweep = laptop.start_sweep("parameters: {lr: [2, 1]}, early_stop: {method: asha, step: epoch, pause: true}")
    request, cuts = HostLink.request, ["before", "after"]

    def cut(self: HostLink, op: str, **more: Any) -> Any:
        when = cuts.pop(0) if op == "clone" and cuts else None
        answer = None if when == "before" else request(self, op, **more)
        if when:
            raise LinkLostError(f"cut {when} the host had it", host=self.alias)
        return answer

    monkeypatch.setattr(HostLink, "request", cut)
    told = laptop.to_the_end(sweep)
    assert cuts == [] and sum("cut" in text for text in told) == 2, told
    trials = laptop.trials(sweep)
    assert {lr: (trial["state"], trial["status"]) for lr, trial in trials.items()} == {
        "1": ("COMPLETED", "promoted"), "2": ("CANCELLED", "paused"),
    }  # fmt: skip
    assert b"goes on from e1.pt" in laptop.log(trials["1"]["job"])
    runs = Counter((laptop.folder / "ran").read_text().splitlines())
    assert runs == {"2 1": 1, "1 1": 1, "1 2": 1, "1 3": 1, "1 4": 1}


def test_the_median_rule_stops_what_is_worse_than_the_completed(laptop: Laptop) -> None:
    sweep = laptop.start_sweep("parameters: {lr: [1, 2, 3, 9]}, early_stop: {method: median, step: epoch}")
    laptop.go("1", "2", "3")  # the fourth is held at its first epoch
    told = laptop.visit_until(lambda: laptop.trials(sweep)["9"]["state"] == "CANCELLED", "the end of the worst trial")
    assert sum("is worse than" in text for text in told) == 1, told
    [(verdict, why)] = laptop.why(laptop.trials(sweep)["9"]["job"])
    assert verdict == "stop" and why.startswith("median, epoch 1: its best loss 10 is worse than ")


def test_another_laptop_adopts_what_was_decided(laptop: Laptop, lab: Lab, tmp_path: Path) -> None:
    sweep = laptop.start_sweep(
        "parameters: {lr: [1, 2, 3]}, parallel: 1, early_stop: {method: asha, step: epoch, max: 3, pause: true}"
    )
    trials = laptop.trials(sweep)
    laptop.visit_until(lambda: laptop.trials(sweep)["2"]["state"] == "CANCELLED", "the second pause")
    other = Laptop(tmp_path / "other", lab)
    other.run("adopt")
    assert {lr: (trial["status"], trial["rung"]) for lr, trial in other.trials(sweep).items()} == {
        "1": ("paused", 0), "2": ("paused", 0), "3": (None, None),
    }  # fmt: skip
    other.to_the_end(sweep)
    best = other.trials(sweep)["1"]
    assert best["state"] == "COMPLETED" and best["job"] != trials["1"]["job"]
    assert b"goes on from e1.pt" in other.log(best["job"])


def test_visits_that_die_anywhere_lose_no_decision(laptop: Laptop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty visits die at random edges of what they write. Each epoch of each trial runs at most once, and the best
    trial has all of them."""
    sweep = laptop.start_sweep(
        "parameters: {lr: [3, 1, 2, 4]}, early_stop: {method: asha, step: epoch, max: 4, reduction: 2, pause: true}"
    )
    chance = random.Random(7)
    for _ in range(20):
        with dying(monkeypatch, chance.randint(3, 40)):
            laptop.visit()
    laptop.go("1", "2", "3", "4")  # whoever was let go on without a pause
    laptop.to_the_end(sweep)
    runs = Counter((laptop.folder / "ran").read_text().splitlines())
    assert set(runs.values()) == {1} and {f"1 {epoch}" for epoch in (1, 2, 3, 4)} <= set(runs), runs
    trials = laptop.trials(sweep)
    assert trials["1"]["state"] == "COMPLETED" and trials["1"]["rank"] == 1
    assert trials["4"]["status"] == "paused" and trials["4"]["state"] == "CANCELLED"
