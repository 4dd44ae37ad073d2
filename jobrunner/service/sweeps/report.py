"""What a sweep has found, as data: best so far, curves, importance, and its trials by rank. `sweep plot` draws it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from datetime import datetime
from typing import Any, Literal

from jobrunner.core.values import dataclass
from jobrunner.service.metrics import spelled
from jobrunner.service.session import Session
from jobrunner.service.submitresult import Result
from jobrunner.service.sweeps import view as views
from jobrunner.service.sweeps.importance import Importance, importance
from jobrunner.service.sweeps.view import ENDED_EARLY, SweepView, TrialView

MOST_CURVES = 150
"""So many trials' curves are kept: the best, and of the others some from the best to the worst."""
MOST_POINTS = 120
"""So many points of a curve are kept."""
FEW_VALUES = 8
"""So many different numbers of a list still are kinds, and more of them a range."""

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Parameter:
    """A parameter as an axis: a range of numbers from `low` to `high`, or the texts `values` in their order."""

    name: str
    kind: Literal["number", "category"]
    scale: Literal["linear", "log"] = "linear"
    low: float = 0.0
    high: float = 1.0
    values: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """`name kind`, and `scale low high` of numbers or `values` of kinds."""
        if self.kind == "category":
            return {"name": self.name, "kind": self.kind, "values": list(self.values)}
        ends = {"low": spelled(self.low), "high": spelled(self.high)}
        return {"name": self.name, "kind": self.kind, "scale": self.scale, **ends}


@dataclass(frozen=True)
class Step:
    """A trial that ran to its end (or was stopped early), and the best value of all up to it, by trials' numbers."""

    number: int
    value: float
    best: float | None
    early: bool = False

    def as_json(self) -> dict[str, Any]:
        """`number value best stopped_early`."""
        numbers = {"value": spelled(self.value), "best": spelled(self.best)}
        return {"number": self.number, **numbers, "stopped_early": self.early}


@dataclass(frozen=True)
class TrialCurve:
    """The objective's metric over one trial's steps, all of its jobs together; `whole` of so many are kept."""

    number: int
    points: Points
    whole: int

    def as_json(self) -> dict[str, Any]:
        """`number`, `points` as pairs of step and value, `whole`."""
        points = [[spelled(step), spelled(value)] for step, value in self.points]
        return {"number": self.number, "points": points, "whole": self.whole}


@dataclass(frozen=True)
class SweepReport(Result):
    """All that a report of a sweep shows. `told`: how many trials have a curve, of which `curves` are some or all."""

    view: SweepView
    parameters: list[Parameter] = field(default_factory=list)
    history: list[Step] = field(default_factory=list)
    curves: list[TrialCurve] = field(default_factory=list)
    told: int = 0
    importance: Importance | None = None
    metric: str | None = None
    direction: str = "min"

    def as_json(self) -> dict[str, Any]:
        """`data` of `sweep plot`. The values of slices and parallel coordinates are those of `trials`."""
        return {
            "sweep": views.sweep_json(self.view.sweep, self.view.tally),
            "metric": self.metric,
            "direction": self.direction if self.metric else None,
            "parameters": [parameter.as_json() for parameter in self.parameters],
            "history": [step.as_json() for step in self.history],
            "importance": self.importance.as_json() if self.importance else None,
            "curves": {"told": self.told, "shown": [curve.as_json() for curve in self.curves]},
            "trials": [
                {**item.as_json(), "outcome": outcome(item), "seconds": seconds(item)} for item in self.view.trials
            ],
        }


def report(session: Session, word: str, *, offline: bool = False, whole: bool = True) -> SweepReport:
    """A sweep's report. Without `whole` there are no curves and no importance, which take time. NotFoundError."""
    view = views.show(session, word, offline=offline)
    metric, direction = (view.sweep.objective or "").split()[:2] or (None, "min")
    space = (view.sweep.spec.get("sweep") or {}).get("parameters")
    parameters = parameters_of(space, view.trials)
    found: dict[str, Any] = {}
    if whole:
        told = [item for item in view.trials if item.objective is not None]
        found = {"told": len(told), "importance": importance(parameters, view.trials, direction)}
        found["curves"] = _curves(session, view, chosen(told), metric) if metric else []
    return SweepReport(
        view=view,
        parameters=parameters,
        history=history(view.trials, direction),
        metric=metric,
        direction=direction,
        errors=view.errors,
        warnings=session.warnings,
        hosts_asked=view.hosts_asked,
        hosts_answered=view.hosts_answered,
        **found,
    )


def outcome(item: TrialView) -> str:
    """How a trial is, in one word: its state in small letters, or that early stopping has `stopped` or `paused` it."""
    if item.trial.status in ENDED_EARLY and item.state == "CANCELLED":
        return str(item.trial.status)
    return item.state.lower()


def seconds(item: TrialView) -> float | None:
    """How long the last attempt of an ended trial took."""
    row = item.row
    if row is None or not row.started_at or not row.ended_at:
        return None
    try:
        begun, ended = (datetime.fromisoformat(at.replace("Z", "+00:00")) for at in (row.started_at, row.ended_at))
        return max(0.0, round((ended - begun).total_seconds(), 3))
    except (ValueError, TypeError):
        return None


def history(trials: Sequence[TrialView], direction: str) -> list[Step]:
    """The best so far over the trials' numbers. NaN is never the best. Pure."""
    better: Callable[[float, float], float] = max if direction == "max" else min
    best: float | None = None
    steps = []
    for item in sorted(trials, key=lambda item: item.trial.number):
        if not item.completed or item.objective is None:
            continue
        value = item.objective.value
        if not math.isnan(value):
            best = value if best is None else better(best, value)
        steps.append(Step(item.trial.number, value, best, outcome(item) == "stopped"))
    return steps


def parameters_of(space: Any, trials: Sequence[TrialView]) -> list[Parameter]:
    """The axes of a sweep: what its spec says of each parameter, and where that says too little, what its trials had.

    An axis reaches over every value that a trial had, whatever the spec says by now. Pure.
    """
    told: dict[str, dict[str, None]] = {name: {} for name in space} if isinstance(space, Mapping) else {}
    for item in sorted(trials, key=lambda item: item.trial.number):
        for name, text in item.trial.parameters.items():
            told.setdefault(name, {})[str(text)] = None
    known = space if isinstance(space, Mapping) else {}
    return [_axis(name, known.get(name), list(texts)) for name, texts in told.items()]


def _axis(name: str, said: Any, texts: list[str]) -> Parameter:
    numbers = [number_of(text) for text in texts]
    finite = [value for value in numbers if value is not None]
    if isinstance(said, Mapping) and len(finite) == len(texts):
        ends = [value for value in (number_of(said.get(key)) for key in ("min", "max")) if value is not None]
        scale: Literal["linear", "log"] = "log" if said.get("scale") == "log" else "linear"
        return _range(name, ends + finite, scale)
    listed = [str(value) for value in said] if isinstance(said, list | tuple) else []
    if not listed and len(finite) == len(texts) > FEW_VALUES:
        return _range(name, finite, "log" if min(finite) > 0 and max(finite) / min(finite) >= 100 else "linear")
    values = list(dict.fromkeys([*listed, *texts]))
    if all(number_of(text) is not None for text in values):
        values.sort(key=lambda text: number_of(text) or 0.0)
    return Parameter(name, "category", values=tuple(values))


def _range(name: str, values: Sequence[float], scale: Literal["linear", "log"]) -> Parameter:
    low, high = min(values, default=0.0), max(values, default=1.0)
    return Parameter(name, "number", "linear" if low <= 0 else scale, low, high)


def number_of(text: Any) -> float | None:
    """A parameter's text as a finite number; None if it is none."""
    try:
        value = float(text)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if math.isfinite(value) else None


def chosen(ranked: Sequence[TrialView], most: int = MOST_CURVES) -> list[TrialView]:
    """Not more than `most` of trials that are in their order: the first third of them, the others spread evenly."""
    if len(ranked) <= most:
        return list(ranked)
    head = most // 3
    rest, left = ranked[head:], most - head
    return [*ranked[:head], *(rest[at * (len(rest) - 1) // max(1, left - 1)] for at in range(left))]


def thinned(points: Points, most: int = MOST_POINTS) -> Points:
    """Not more than `most` points: of each stretch the least and the greatest, in their order, and both ends. Pure."""
    if len(points) <= most:
        return points
    stretches = max(1, (most - 2) // 2)
    inner, kept = points[1:-1], [points[0]]
    for at in range(stretches):
        part = inner[at * len(inner) // stretches : (at + 1) * len(inner) // stretches]
        places = sorted(range(len(part)), key=lambda place: (math.isnan(part[place][1]), part[place][1]))
        kept += [part[place] for place in sorted({places[0], places[-1]})] if places else []
    return [*kept, points[-1]]


def _curves(session: Session, view: SweepView, items: Sequence[TrialView], metric: str) -> list[TrialCurve]:
    """The curves of some trials; what a trial told before it was paused comes first."""
    from jobrunner.service.sweeps.resuming import chain

    pauses = ((view.sweep.spec.get("sweep") or {}).get("early_stop") or {}).get("pause")
    requests = session.ledger.sweeps.requests(view.sweep.id) if pauses else {}
    found = []
    for at in range(0, len(items), 25):  # so that the points of thousands of long trials are never all here at once
        stories = {item.trial.number: chain(item.trial.job, requests) for item in items[at : at + 25]}
        told = session.ledger.metrics.curves([job for jobs in stories.values() for job in jobs], metric)
        for number, jobs in stories.items():
            samples = [sample for job in jobs for sample in told.get(job, ())]
            points = [(float(place) if step is None else step, value) for place, (step, value) in enumerate(samples, 1)]
            if points:
                found.append(TrialCurve(number, thinned(points), len(points)))
    return found
