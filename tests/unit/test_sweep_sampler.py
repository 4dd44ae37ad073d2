"""TPE and CMA-ES: a function of what is known; better than chance, by the numbers."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import pytest

from jobrunner.core.errors import UsageError
from jobrunner.core.points import point_id, points
from jobrunner.core.sweepspec import Sweep
from jobrunner.service.sweeps.sampler import Seen, ask, place_of, ranks, require

LR = {"min": 1e-5, "max": 1e-1, "scale": "log"}


def sweep(method: str = "tpe", trials: int = 40, objective: str = "loss min", **more: Any) -> Sweep:
    parameters = more.pop("parameters", {"lr": LR, "width": {"min": 0.0, "max": 1.0}})
    return Sweep.model_validate(
        {"method": method, "trials": trials, "objective": objective, "parameters": parameters, **more}
    )


def loss(point: dict[str, str]) -> float:
    """Least, 0, at lr 1e-3 and width 0.3."""
    return (math.log10(float(point["lr"])) + 3) ** 2 + 4 * (float(point["width"]) - 0.3) ** 2


def searched(chosen: Sweep, at_once: int = 4, told: Callable[[dict[str, str]], float] = loss) -> list[Seen]:
    """A whole sweep, a few trials at a time."""
    seen: list[Seen] = []
    while len(seen) < (chosen.trials or 0):
        numbers = list(range(len(seen) + 1, len(seen) + 1 + at_once))
        found = ask(chosen, seen, numbers)
        seen += [Seen(n, p, "completed", told(p)) for n, p in zip(numbers, found, strict=False)]
        if len(found) < at_once:
            break
    return seen


@pytest.mark.parametrize("method", ["tpe", "cmaes"])
def test_it_finds_more_than_chance_does(method: str) -> None:
    """Eight seeds, 40 trials each: the later half lies far nearer to the optimum than chance does, for every seed; and
    the best found is better for nearly all."""
    better = 0
    for seed in range(8):
        found = [trial.value or 0.0 for trial in searched(sweep(method, seed=seed))]
        chance = [loss(point) for point in points(sweep("random", seed=seed))]
        assert sum(found[20:]) < 0.6 * sum(chance[20:]), (seed, found, chance)
        better += min(found) < min(chance)
    assert better >= 6


@pytest.mark.parametrize("method", ["tpe", "cmaes"])
def test_the_same_trials_and_number_give_the_same_point(method: str) -> None:
    chosen = sweep(method, trials=20, seed=3)
    seen = searched(chosen)
    [one] = ask(chosen, seen, [21])
    assert ask(chosen, list(reversed(seen)), [21]) == [one]
    assert ask(chosen, seen, [22]) != [one]
    assert ask(chosen.model_copy(update={"seed": 4}), seen, [21]) != [one]


def test_what_runs_is_kept_away_from() -> None:
    """Eight asked at once after the same history are eight different places, not one good one eight times."""
    chosen = sweep(trials=40, seed=1)
    found = ask(chosen, searched(sweep(trials=24, seed=1)), range(25, 33))
    assert len({point_id(point) for point in found}) == 8
    spread = [math.log10(float(point["lr"])) for point in found]
    assert max(spread) - min(spread) > 0.3


@pytest.mark.parametrize("method", ["tpe", "cmaes"])
def test_a_finite_space_is_tried_out_and_no_point_twice(method: str) -> None:
    parameters = {"a": {"min": 1, "max": 2}, "b": {"min": 0.0, "max": 0.2, "step": 0.1}, "c": ["x", "y"]}
    seen = searched(sweep(method, 100, parameters=parameters), 5, lambda p: float(p["a"]))
    assert len(seen) == 12 == len({point_id(trial.parameters) for trial in seen})
    assert {trial.parameters["b"] for trial in seen} == {"0.0", "0.1", "0.2"}
    assert {trial.parameters["a"] for trial in seen} == {"1", "2"}


@pytest.mark.parametrize("method", ["tpe", "cmaes"])
def test_numbers_stay_in_their_range_and_are_read_back_exactly(method: str) -> None:
    parameters = {
        "lr": LR,
        "layers": {"min": 1, "max": 100, "scale": "log"},
        "units": {"min": 16, "max": 100, "step": 16},
        "drop": {"min": 0.1, "max": 0.75, "step": 0.2},
    }
    seen = searched(sweep(method, 32, parameters=parameters), 8, lambda p: -float(p["layers"]))
    for trial in seen:
        assert 1e-5 <= float(trial.parameters["lr"]) <= 1e-1
        assert 1 <= int(trial.parameters["layers"]) <= 100
        assert trial.parameters["units"] in ("16", "32", "48", "64", "80", "96")
        assert trial.parameters["drop"] in ("0.1", "0.3", "0.5", "0.7")
    assert max(int(trial.parameters["layers"]) for trial in seen) > 50


def test_places_and_values_are_each_other_backwards() -> None:
    from jobrunner.core.points import value_at

    for values in ({"min": 1, "max": 60, "scale": "log"}, {"min": 3, "max": 9}, {"min": 0.0, "max": 1.0, "step": 0.1}):
        known = sweep(parameters={"x": values, "y": LR}).parameters
        assert isinstance(known, dict)
        space = known["x"]
        for place in (0.0, 0.1, 0.33, 0.5, 0.77, 0.999):
            text = value_at(space, place)
            assert value_at(space, place_of(space, float(text))) == text  # type: ignore[arg-type]


def test_ranks_have_nan_last_whatever_the_direction() -> None:
    values = [1.0, math.nan, -math.inf, math.inf, 1.0, None]
    seen = [Seen(n, {}, "completed", value) for n, value in enumerate(values)]
    assert ranks(sweep(), seen) == {0: 1, 1: 3, 2: 0, 3: 2, 4: 1}
    assert ranks(sweep(objective="acc max best"), seen) == {0: 1, 1: 3, 2: 2, 3: 0, 4: 1}
    assert ranks(sweep(), [Seen(1, {}, "failed", 1.0)]) == {}


@pytest.mark.parametrize("method", ["tpe", "cmaes"])
def test_nan_failures_and_stopped_trials_teach_what_they_can(method: str) -> None:
    """NaN above lr 1e-3: what is asked later lies below it. Failed ones and those without a value do no harm."""

    def told(point: dict[str, str]) -> float:
        lr = float(point["lr"])
        return math.nan if lr > 1e-3 else (math.log10(lr) + 4) ** 2

    seen = searched(sweep(method, 36), 6, told)
    seen += [
        Seen(98, {"lr": "0.002", "width": "0.5"}, "failed"),
        Seen(99, {"lr": "0.003", "width": "0.5"}, "completed"),
    ]
    seen += [Seen(97, {"lr": "1e-05", "width": "0.9"}, "stopped", 9.0, 1.0), Seen(96, {"lr": "0.0009", "width": "0.1"})]
    found = ask(sweep(method, 60), seen, range(100, 108))
    assert sum(float(point["lr"]) <= 1e-3 for point in found) >= 7, found


def test_a_trial_outside_the_space_is_passed_over() -> None:
    old = [Seen(n, {"lr": "0.5", "width": "0.5"}, "completed", 0.0) for n in range(20)]
    assert len(ask(sweep(), old, [21])) == 1


def test_a_missing_package_is_named_with_the_command_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UsageError) as caught:
        ask(sweep(), [], [1])
    assert caught.value.code == "extra_missing" and "pip install 'jobrunner[sweep]'" in caught.value.remedy
    require("cmaes")
