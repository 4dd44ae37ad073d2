"""How much each parameter of a sweep matters.

With Optuna and scikit-learn (the extra `sweep`) by fANOVA: a forest of regression trees is fitted to the trials, and
its variance taken apart. Without them by each parameter alone. Both see ranks in place of values, so that one trial
that came to nothing does not outweigh all others; NaN is the worst.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, Literal

from jobrunner.core.values import dataclass

if TYPE_CHECKING:
    from jobrunner.service.sweeps.report import Parameter
    from jobrunner.service.sweeps.view import TrialView

LEAST = 20
"""With fewer trials nothing is said: it would be chance."""
ROUGH = 50
"""With fewer trials it is said that the shares are rough."""
MOST = 250
"""Of more trials so many are looked at, spread evenly over their numbers: the time goes with their square."""
TREES = 32
BINS = 5


@dataclass(frozen=True)
class Importance:
    """The share of each parameter, most first. `method` is `fanova` (shares sum to 1), `alone` (each is the share of
    the ranks' variance that the parameter explains by itself), or None: `note` says why there are none."""

    method: Literal["fanova", "alone"] | None
    trials: int
    note: str
    shares: Mapping[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """`method trials note shares`."""
        shares = [{"name": name, "share": round(share, 6)} for name, share in self.shares.items()]
        return {"method": self.method, "trials": self.trials, "note": self.note, "shares": shares}


def importance(parameters: Sequence[Parameter], trials: Sequence[TrialView], direction: str) -> Importance:
    """How much each parameter matters, by trials that ran to their end or were stopped early."""
    known = [item for item in trials if item.completed and item.objective is not None]
    known = [item for item in known if set(item.trial.parameters) == {parameter.name for parameter in parameters}]
    known.sort(key=lambda item: item.trial.number)
    if len(known) > MOST:
        known = [known[at * (len(known) - 1) // (MOST - 1)] for at in range(MOST)]
    points = [{name: str(text) for name, text in item.trial.parameters.items()} for item in known]
    values = ranks([item.objective.value if item.objective else math.nan for item in known], direction)
    varied = [item for item in parameters if len({point[item.name] for point in points}) > 1]
    if len(known) < LEAST:
        return Importance(None, len(known), f"needs {LEAST} trials that told their objective; there are {len(known)}")
    if len(set(values)) < 2 or not varied:
        return Importance(None, len(known), "nothing to compare: every trial has the same objective or parameters")
    shares = _fanova(varied, points, values)
    if shares is not None:
        note = f"fANOVA of the trials' ranks, {len(known)} trials{_rough(len(known))}"
        return Importance("fanova", len(known), note, _ordered(parameters, shares))
    alone = {item.name: explained(_groups(item, points), values) for item in varied}
    note = (
        f"by each parameter alone, {len(known)} trials{_rough(len(known))}; pip install 'jobrunner[sweep]' for fANOVA"
    )
    return Importance("alone", len(known), note, _ordered(parameters, alone))


def _rough(count: int) -> str:
    return ", so roughly" if count < ROUGH else ""


def ranks(values: Sequence[float], direction: str = "min") -> list[float]:
    """The place of each value, 0 for the best; equal ones share the middle of theirs. NaN is the worst. Pure."""
    sign = -1.0 if direction == "max" else 1.0
    keys = [(math.isnan(value), 0.0 if math.isnan(value) else sign * value) for value in values]
    order = sorted(range(len(keys)), key=keys.__getitem__)
    places = [0.0] * len(keys)
    at = 0
    while at < len(order):
        end = at
        while end + 1 < len(order) and keys[order[end + 1]] == keys[order[at]]:
            end += 1
        for place in range(at, end + 1):
            places[order[place]] = (at + end) / 2
        at = end + 1
    return places


def explained(groups: Sequence[Any], values: Sequence[float]) -> float:
    """The share of the values' variance that knowing the group explains, less what chance would (epsilon squared)."""
    mean = sum(values) / len(values)
    total = sum((value - mean) ** 2 for value in values)
    members: dict[Any, list[float]] = {}
    for group, value in zip(groups, values, strict=True):
        members.setdefault(group, []).append(value)
    within = sum(sum((value - sum(part) / len(part)) ** 2 for value in part) for part in members.values())
    free = len(values) - len(members)
    if total <= 0 or free <= 0:
        return 0.0
    return max(0.0, (total - within - (len(members) - 1) * within / free) / total)


def _groups(parameter: Parameter, points: Sequence[Mapping[str, str]]) -> list[Any]:
    """Kinds as they are; numbers in a few groups of the same size."""
    texts = [point[parameter.name] for point in points]
    if parameter.kind == "category":
        return list(texts)
    places = ranks([float(text) for text in texts])
    count = max(2, min(BINS, len(texts) // 5))
    return [int(place * count / len(texts)) for place in places]


def _ordered(parameters: Sequence[Parameter], shares: Mapping[str, float]) -> dict[str, float]:
    """Every parameter, most important first; what never varied has 0."""
    whole = {item.name: shares.get(item.name, 0.0) for item in parameters}
    return dict(sorted(whole.items(), key=lambda pair: -pair[1]))


def _fanova(
    parameters: Sequence[Parameter], points: Sequence[Mapping[str, str]], values: Sequence[float]
) -> dict[str, float] | None:
    """Shares that sum to 1; None where the packages are missing."""
    from importlib.util import find_spec

    if find_spec("optuna") is None or find_spec("sklearn") is None:
        return None
    if len(parameters) == 1:
        return {parameters[0].name: 1.0}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import optuna
        from optuna.importance import FanovaImportanceEvaluator

        level = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            study = optuna.create_study(direction="minimize")
            study.add_trials(_trials(parameters, points, values))
            evaluator = FanovaImportanceEvaluator(n_trees=TREES, seed=0)
            found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        finally:
            optuna.logging.set_verbosity(level)
    return {name: float(share) for name, share in found.items()}


def _trials(parameters: Sequence[Parameter], points: Sequence[Mapping[str, str]], values: Sequence[float]) -> list[Any]:
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution
    from optuna.trial import create_trial

    space: dict[str, BaseDistribution] = {
        item.name: FloatDistribution(item.low, item.high, log=item.scale == "log")
        if item.kind == "number"
        else CategoricalDistribution(item.values)
        for item in parameters
    }

    def read(item: Parameter, point: Mapping[str, str]) -> Any:
        return float(point[item.name]) if item.kind == "number" else point[item.name]

    return [
        create_trial(params={item.name: read(item, point) for item in parameters}, distributions=space, value=value)
        for point, value in zip(points, values, strict=True)
    ]
