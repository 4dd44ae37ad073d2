"""Adaptive sweeps on a real host: they learn, and whatever is killed, each point runs once."""

from __future__ import annotations

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.core.points import point_id
from tests.support.lab import ROOT, Lab, end
from tests.support.sweeping import Sweeper, dying

pytestmark = pytest.mark.needs_sshd

SCRIPT = """
import os, sys, math
with open(os.environ["RAN"], "a") as file:
    file.write(os.environ["JOBRUNNER_PARAMS"] + "\\n")
lr, width = float(sys.argv[1]), float(sys.argv[2])
if len(sys.argv) > 3:
    sys.exit(int(sys.argv[3]))
print("loss=%r" % ((math.log10(lr) + 3) ** 2 + 4 * (width - 0.3) ** 2))
"""
SPACE = "parameters: {lr: {min: 1e-5, max: 1e-1, scale: log}, width: {min: 0.0, max: 1.0}}"
VISIT = """
import sys
from pathlib import Path
from tests.support.sweeping import Sweeper
laptop = Sweeper.__new__(Sweeper)
laptop.folder, laptop.env = Path(sys.argv[1]), dict(__import__("os").environ)
while True:
    laptop.visit()
"""


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab(tmp_path_factory.mktemp("lab")) as host:
        yield host


@pytest.fixture
def laptop(lab: Lab, tmp_path: Path) -> Sweeper:
    return Sweeper(tmp_path / "laptop", lab)


def begin(laptop: Sweeper, sweep: str, more: str = "") -> str:
    text = f"""
args: ["{{lr}}", "{{width}}"{more}]
env: {{RAN: {laptop.folder / "ran"}}}
metrics: {{loss: 'loss=(\\S+)'}}
sweep: {{{sweep}, {SPACE}, objective: loss min}}
"""
    return laptop.begin(text, SCRIPT)


def ran(laptop: Sweeper) -> Counter[str]:
    return Counter((laptop.folder / "ran").read_text().splitlines())


def check_each_once(laptop: Sweeper, sweep: str, count: int) -> None:
    shown = laptop.shown(sweep)
    assert [trial["state"] for trial in shown["trials"]] == ["COMPLETED"] * count
    assert sorted(trial["number"] for trial in shown["trials"]) == list(range(count))
    assert len({point_id(trial["parameters"]) for trial in shown["trials"]}) == count
    runs = ran(laptop)
    assert len(runs) == count and set(runs.values()) == {1}, runs


def _at_once(trials: list[dict[str, Any]]) -> Iterator[str]:
    """For each trial the name of every trial that began while it ran."""
    for one in trials:
        yield one["job"]
        for other in trials:
            if other is not one and other["started_at"] <= one["started_at"] < other["ended_at"]:
                yield one["job"]


def test_tpe_asks_as_many_at_once_as_may_run_and_learns(laptop: Sweeper) -> None:
    sweep = begin(laptop, "method: tpe, trials: 12, parallel: 4, seed: 5")
    assert len(laptop.shown(sweep)["trials"]) == 4  # with nobody looking it gets no further than this
    told = laptop.to_the_end(sweep, at_once=2)  # two visits at once get in nobody's way
    check_each_once(laptop, sweep, 12)
    assert sum("sent trial" in text for text in told) >= 2
    assert max(Counter(_at_once(laptop.shown(sweep)["trials"])).values()) <= 4
    best, *others = laptop.shown(sweep)["trials"]
    assert best["rank"] == 1 and all(best["objective"] <= trial["objective"] for trial in others)


def test_a_visit_that_dies_anywhere_is_finished_by_the_next(laptop: Sweeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty-four visits die at random edges of what they write; then others bring it to its end."""
    sweep = begin(laptop, "method: cmaes, trials: 12, parallel: 3, seed: 2")
    chance = random.Random(11)
    for _ in range(24):
        with dying(monkeypatch, chance.randint(1, 14)):
            laptop.visit()
    laptop.to_the_end(sweep)
    check_each_once(laptop, sweep, 12)


def test_a_submit_and_visits_that_are_killed(laptop: Sweeper, monkeypatch: pytest.MonkeyPatch) -> None:
    """A submit that dies while it sends is gone on with under the same sweep; then whole processes are killed."""
    for at in range(1, 50):
        with dying(monkeypatch, at) as left:
            sweep = begin(laptop, "method: tpe, trials: 12, parallel: 3")
        if left[0] > 0:
            break
    assert len(laptop.json("sweep", "ls")["sweeps"]) == 1
    for seconds in (0.5, 1.1):
        process = subprocess.Popen(
            [sys.executable, "-c", VISIT, str(laptop.folder)],
            env=laptop.env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=seconds)
        end(process)
    laptop.to_the_end(sweep)
    check_each_once(laptop, sweep, 12)


def test_a_sweep_that_never_tells_its_objective_stops_and_says_so(laptop: Sweeper) -> None:
    sweep = begin(laptop, "method: tpe, trials: 30, parallel: 5", ', "0"')
    laptop.visit_until(lambda: laptop.shown(sweep)["sweep"]["state"] == "stopped", "the end of a silent sweep")
    shown = laptop.shown(sweep)
    assert "trials have completed and none told loss" in shown["sweep"]["why"]
    assert len(shown["trials"]) < 30


def test_failed_trials_teach_nothing_and_the_sweep_goes_on(laptop: Sweeper) -> None:
    sweep = begin(laptop, "method: tpe, trials: 6", ', "3"')
    assert len(laptop.shown(sweep)["trials"]) == 4  # what the host runs at once
    laptop.to_the_end(sweep)
    shown = laptop.shown(sweep)
    assert [trial["state"] for trial in shown["trials"]] == ["FAILED"] * 6 and shown["sweep"]["failed"] == 6
    assert len(ran(laptop)) == 6


def test_without_the_extra_a_submit_is_refused_and_names_it(laptop: Sweeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    text = f"args: ['{{lr}}', '{{width}}']\nmetrics: {{loss: 'loss=(x)'}}\nsweep: {{method: tpe, trials: 3, {SPACE}, objective: loss min}}\n"
    spec = laptop.spec(f"device: cpu\nscript: train.py\n{text}", "none", train__py=SCRIPT)
    data = laptop.json("submit", str(spec), code=2)
    [error] = data["errors"]
    assert error["code"] == "extra_missing" and "pip install 'jobrunner[sweep]'" in error["remedy"]
    assert laptop.json("sweep", "ls")["sweeps"] == []
