"""Which point an adaptive sweep tries next: Optuna's TPE, and CMA-ES. A function of what is known; it keeps nothing.

What was learnt is rebuilt from the trials each time, so the ledger is the only store. The same trials and the same
number give the same point. Both methods see ranks in place of values: NaN is the worst, and infinity is no trouble.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from jobrunner.core.errors import UsageError
from jobrunner.core.points import Point, point_id, points, rounded, size, text_of, value_at
from jobrunner.core.sweepspec import Range, Sweep
from jobrunner.core.values import dataclass

if TYPE_CHECKING:
    from cmaes import CMA
    from optuna.distributions import BaseDistribution

PACKAGES = {"tpe": ("optuna",), "cmaes": ("cmaes",)}
AGAIN = 30
"""So many times a point that was tried already is asked for anew, before any untried one is taken."""
STARTUP = 10
"""At most so many first points of TPE are random."""
SIGMA = 0.3
"""How wide CMA-ES begins, as a part of each range."""


@dataclass(frozen=True)
class Seen:
    """A trial as the method sees it. `value` is its objective (None: it told none), `step` how far a stopped one came.

    `running` includes what waits; `failed` everything that ended without a result.
    """

    number: int
    parameters: Mapping[str, str]
    status: Literal["running", "completed", "stopped", "failed"] = "running"
    value: float | None = None
    step: float | None = None


def require(method: str) -> None:
    """UsageError if a method's packages are not installed, with the command that brings them."""
    from importlib.util import find_spec

    missing = [name for name in PACKAGES.get(method, ()) if find_spec(name) is None]
    if missing:
        raise UsageError(
            f"sweep method {method} needs {' and '.join(missing)}, which is not installed",
            code="extra_missing",
            remedy="pip install 'jobrunner[sweep]', or use `method: random`",
        )


def ask(sweep: Sweep, seen: Sequence[Seen], numbers: Sequence[int]) -> list[Point]:
    """The points of trials with these numbers, in turn; fewer if the space has no more.

    None of them was tried before, and no two are equal.
    """
    require(sweep.method)
    method = _Tpe(sweep, seen) if sweep.method == "tpe" else _Cmaes(sweep, seen)
    known = {point_id(trial.parameters) for trial in seen}
    found: list[Point] = []
    for number in numbers:
        tries = (method.draw(_seed(sweep.seed, number, again)) for again in range(AGAIN))
        point = next((item for item in tries if point_id(item) not in known), None) or _untried(sweep, known)
        if point is None:
            break
        known.add(point_id(point))
        found.append(point)
        method.begun(point)
    return found


def _seed(seed: int, number: int, again: int) -> int:
    digest = hashlib.sha256(f"{seed} {number} {again}".encode()).digest()
    return int.from_bytes(digest[:4], "big")


def _untried(sweep: Sweep, known: Collection[str]) -> Point | None:
    """Any point that was not tried; None if there is none left."""
    total = size(_space(sweep))
    some = sweep.model_copy(update={"method": "random", "trials": total or len(known) + 1000})
    return next((point for point in points(some) if point_id(point) not in known), None)


def _space(sweep: Sweep) -> dict[str, tuple[str, ...] | Range]:
    assert isinstance(sweep.parameters, dict)
    return dict(sweep.parameters)


def ranks(sweep: Sweep, seen: Sequence[Seen]) -> dict[int, float]:
    """How good each trial's objective is: 0 for the best, equals alike; by number. NaN is the worst."""
    assert sweep.objective is not None
    downwards = sweep.objective.split()[1] == "max"
    keys = {
        trial.number: (True, 0.0) if math.isnan(trial.value) else (False, -trial.value if downwards else trial.value)
        for trial in seen
        if trial.value is not None and trial.status != "failed"
    }
    places = {key: float(place) for place, key in enumerate(sorted(set(keys.values())))}
    return {number: places[key] for number, key in keys.items()}


class _Tpe:
    """Optuna's tree-structured Parzen estimator over a study in memory. What still runs counts as bad: the next trial
    keeps away from it."""

    def __init__(self, sweep: Sweep, seen: Sequence[Seen]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = _space(sweep)
        self._distributions = {name: _distribution(values) for name, values in self._space.items()}
        self._startup = max(3, min(STARTUP, (sweep.trials or STARTUP) // 3))
        self._study = optuna.create_study(direction="minimize")
        places = ranks(sweep, seen)
        for trial in sorted(seen, key=lambda item: item.number):
            self._tell(trial, places.get(trial.number))

    def _tell(self, trial: Seen, rank: float | None) -> None:
        from optuna.trial import TrialState, create_trial

        values = {name: _read(kind, trial.parameters[name]) for name, kind in self._space.items()}
        state, more = TrialState.RUNNING, dict[str, Any]()
        if trial.status == "failed" or (trial.status != "running" and rank is None):
            state = TrialState.FAIL
        elif trial.status == "completed":
            state, more["value"] = TrialState.COMPLETE, rank
        elif trial.status == "stopped":
            state, more["intermediate_values"] = TrialState.PRUNED, {int(trial.step or 0): rank}
        try:
            made = create_trial(state=state, params=values, distributions=self._distributions, **more)
        except ValueError:
            return  # it does not lie in the space as it is now
        self._study.add_trial(made)

    def draw(self, seed: int) -> Point:
        import warnings

        from optuna.exceptions import ExperimentalWarning
        from optuna.samplers import TPESampler
        from optuna.trial import TrialState

        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            self._study.sampler = TPESampler(seed=seed, n_startup_trials=self._startup, constant_liar=True)
        trial = self._study.ask(self._distributions)
        found = {name: _write(self._space[name], value) for name, value in trial.params.items()}
        self._study.tell(trial, state=TrialState.FAIL)
        return found

    def begun(self, point: Point) -> None:
        self._tell(Seen(-1, point), None)


class _Cmaes:
    """CMA-ES over the ranges, each taken to 0..1; lists of values are drawn evenly.

    Results are told in groups of a population, by the trials' numbers. When a search has come to an end, the next one
    begins anew with twice the population.
    """

    def __init__(self, sweep: Sweep, seen: Sequence[Seen]) -> None:
        self._space = _space(sweep)
        self._ranges = {name: values for name, values in self._space.items() if isinstance(values, Range)}
        self._cma = self._begin(0)
        places = ranks(sweep, seen)
        group: list[tuple[Any, float]] = []
        for trial in sorted(seen, key=lambda item: item.number):
            if trial.status == "running" or trial.number not in places:
                continue
            group.append((self._place(trial.parameters), places[trial.number]))
            if len(group) == self._cma.population_size:
                self._cma.tell(group)
                group = []
                if self._cma.should_stop():
                    self._cma = self._begin(self._cma.population_size * 2)

    def _begin(self, population: int) -> CMA:
        import numpy
        from cmaes import CMA

        width = len(self._ranges)
        return CMA(
            mean=numpy.full(width, 0.5), sigma=SIGMA, bounds=numpy.array([[0.0, 1.0]] * width), seed=0,
            population_size=population or None,
        )  # fmt: skip

    def _place(self, parameters: Mapping[str, str]) -> Any:
        import numpy

        return numpy.array([place_of(values, _read(values, parameters[name])) for name, values in self._ranges.items()])

    def draw(self, seed: int) -> Point:
        import random

        self._cma.reseed_rng(seed)
        source, places = random.Random(seed), iter(self._cma.ask().tolist())
        return {
            name: value_at(values, min(next(places) if isinstance(values, Range) else source.random(), 1 - 1e-12))
            for name, values in self._space.items()
        }

    def begun(self, point: Point) -> None:
        """Draws are independent of each other; nothing is to be noted."""


def place_of(values: Range, number: float) -> float:
    """Where a number lies in its range, from 0 to 1; what `value_at` gives there is the number again."""
    low, high = float(values.min), float(values.max)
    count = size({"": values})
    if values.scale == "log":
        if count is None:
            return math.log(number / low) / math.log(high / low)
        return math.log((number + 0.5) / low) / math.log((high + 1) / low)
    if count is None:
        return (number - low) / (high - low)
    return (round((number - low) / float(values.step or 1)) + 0.5) / count


def _distribution(values: tuple[str, ...] | Range) -> BaseDistribution:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(values, tuple):
        return CategoricalDistribution(values)
    count, log = size({"": values}), values.scale == "log"
    if isinstance(values.min, int) and isinstance(values.max, int) and isinstance(values.step, int | None):
        step = values.step or 1
        top = values.max if log else values.min + step * ((count or 1) - 1)
        return IntDistribution(values.min, top, log=log, step=step)
    if values.step is not None and count is not None:  # by place: sums of steps are not exact
        return IntDistribution(0, count - 1)
    return FloatDistribution(values.min, values.max, log=log)


def _read(values: tuple[str, ...] | Range, text: str) -> Any:
    """A trial's text as the value that its distribution knows."""
    if isinstance(values, tuple):
        return text
    if isinstance(values.min, int) and isinstance(values.max, int) and isinstance(values.step, int | None):
        return int(text)
    if values.step is not None:
        return round((float(text) - values.min) / values.step)
    return float(text)


def _write(values: tuple[str, ...] | Range, value: Any) -> str:
    if isinstance(values, tuple):
        return str(value)
    if isinstance(values.min, int) and isinstance(values.max, int) and isinstance(values.step, int | None):
        return text_of(int(value))
    if values.step is not None:
        return value_at(values, (value + 0.5) / (size({"": values}) or 1))
    return text_of(rounded(value, values))
