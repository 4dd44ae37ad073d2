"""When a trial that does badly is stopped: asynchronous successive halving, and the median rule. Pure.

Successive halving (ASHA) compares trials at rungs: at the steps `min`, `min * reduction`, `min * reduction²`, … Of the
trials that have told their objective at a rung the best one in `reduction` goes on. Nobody waits for anybody: whoever
comes to a rung is compared with those that were there.

* stopping: with fewer than `reduction` trials at the rung everybody goes on; later a trial is stopped there unless it
  is as good as the last of the best `n // reduction`. Each rung decides about a trial once.
* promotion (`pause`): a trial pauses at each rung unless it is among the best `n // reduction` of it; it goes on as
  soon as it is, the highest rung first.

The median rule compares at every step: a trial is stopped if the best that it has told is worse than the median of what
the completed trials told on average up to that step.

Everywhere NaN is worse than any number, and equals do not push each other out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

from jobrunner.core.values import dataclass

Direction = Literal["min", "max"]
Verdict = Literal["go_on", "stop", "pause", "promote", "finish"]
Status = Literal["running", "paused", "completed", "over"]
Samples = Sequence[tuple[float | None, float]]

MEDIAN_OF = 3
"""The median rule waits for so many completed trials."""


@dataclass(frozen=True)
class Rule:
    """What a sweep wants. `least` and `most` are steps, `best`: a trial's best value counts instead of its last."""

    method: Literal["asha", "median"]
    direction: Direction
    least: int = 1
    most: int | None = None
    reduction: int = 3
    pause: bool = False
    best: bool = False

    def step(self, rung: int) -> int:
        """The step of a rung; they count from 0."""
        return self.least * int(self.reduction**rung)

    def key(self, value: float) -> tuple[bool, float]:
        """Orders values, the best first; NaN comes last."""
        if math.isnan(value):
            return True, 0.0
        return False, value if self.direction == "min" else -value

    def best_of(self, values: Iterable[float]) -> float:
        """The best of values; NaN if there are none, or no others."""
        return min(values, key=self.key, default=math.nan)


@dataclass(frozen=True)
class Standing:
    """A trial at the rungs: its objective at each that it has reached, lowest first.

    `decided` is how many of them have been decided about; `paused` means: at the last of these. `over` is a trial that
    ended otherwise than by completing; what it told still counts for the others.
    """

    number: int
    results: tuple[float, ...]
    decided: int = 0
    status: Status = "running"


@dataclass(frozen=True)
class Curve:
    """A trial's objective over its steps, in the order in which it was told."""

    number: int
    samples: Samples
    status: Status = "running"


@dataclass(frozen=True)
class Decision:
    """What is to be done with a trial. `rung` counts from 0 (None for the median rule), `step` is where it was judged,
    `limit` the worst value that is good enough (None if there is none yet), `among` how many were compared, of which
    `best` may go on."""

    number: int
    verdict: Verdict
    rung: int | None
    step: float
    value: float
    limit: float | None
    among: int
    best: int | None = None


def rung_steps(rule: Rule, reached: float) -> list[int]:
    """The rungs up to a step. From `most` on there is nothing left to stop."""
    steps: list[int] = []
    while (step := rule.step(len(steps))) <= reached and (rule.most is None or step < rule.most):
        steps.append(step)
    return steps


def rung_results(samples: Samples, rule: Rule) -> tuple[float, ...]:
    """The objective at each rung that a trial has reached: what it told at the first step there or beyond.

    Values without a step tell nothing about rungs.
    """
    placed = _placed(samples)
    found = []
    for rung in rung_steps(rule, max((step for step, _ in placed), default=-math.inf)):
        place = next(place for place, (step, _) in enumerate(placed) if step >= rung)
        step, value = placed[place]
        if rule.best:
            value = rule.best_of(told for at, told in placed[: place + 1] if at <= step)
        found.append(value)
    return tuple(found)


def halve(standings: Sequence[Standing], rule: Rule) -> list[Decision]:
    """Decisions of successive halving about every rung that is open, and with `pause` about who is promoted."""
    made: list[Decision] = []
    for item in sorted(standings, key=lambda item: item.number):
        if item.status != "running":
            continue
        for rung in range(item.decided, len(item.results)):
            decision = _at_rung(item, rung, standings, rule)
            made.append(decision)
            if decision.verdict != "go_on":
                break
    return made + _promotions(standings, rule) if rule.pause else made


def _at_rung(item: Standing, rung: int, standings: Sequence[Standing], rule: Rule) -> Decision:
    there = sorted((other.results[rung] for other in standings if len(other.results) > rung), key=rule.key)
    best = len(there) // rule.reduction
    limit = there[best - 1] if best else None
    value = item.results[rung]
    good = limit is not None and rule.key(value) <= rule.key(limit)
    verdict: Verdict
    if rule.pause:
        verdict = "go_on" if good and not math.isnan(value) else "pause"
    else:
        verdict = "go_on" if good or limit is None else "stop"
    return Decision(item.number, verdict, rung, rule.step(rung), value, limit, len(there), best)


def _promotions(standings: Sequence[Standing], rule: Rule) -> list[Decision]:
    """Paused trials that are among the best of their rung by now, the highest rung first."""
    made: list[Decision] = []
    for rung in reversed(range(max((len(item.results) for item in standings), default=0))):
        there = [(rule.key(item.results[rung]), item.number, item) for item in standings if len(item.results) > rung]
        there.sort(key=lambda entry: entry[:2])
        best = len(there) // rule.reduction
        limit = there[best - 1][2].results[rung] if best else None
        for _, number, item in there[:best]:
            value = item.results[rung]
            if item.status == "paused" and item.decided == rung + 1 and not math.isnan(value):
                made.append(Decision(number, "promote", rung, rule.step(rung), value, limit, len(there), best))
    return made


def finish(standings: Sequence[Standing], rule: Rule) -> Decision | None:
    """The one paused trial that goes on to its end when nothing else runs or is to come, and none has completed.

    The best of the highest rung, so that a sweep which pauses does not end without a whole run. None if there is no
    such need, or no such trial.
    """
    if any(item.status in ("running", "completed") for item in standings):
        return None
    paused = [item for item in standings if item.status == "paused" and item.decided]
    paused = [item for item in paused if not math.isnan(item.results[item.decided - 1])]
    if not paused:
        return None
    rung = max(item.decided for item in paused) - 1
    top = [item for item in paused if item.decided == rung + 1]
    chosen = min(top, key=lambda item: (rule.key(item.results[rung]), item.number))
    return Decision(chosen.number, "finish", rung, rule.step(rung), chosen.results[rung], None, len(top), 1)


def median_rule(curves: Sequence[Curve], rule: Rule) -> list[Decision]:
    """Decisions of the median rule about trials that run; with `pause` also about those that wait to go on."""
    done = [curve for curve in curves if curve.status == "completed"]
    made: list[Decision] = []
    for curve in sorted(curves, key=lambda item: item.number):
        placed = _placed(curve.samples)
        step = max((at for at, _ in placed), default=-math.inf)
        if curve.status not in ("running", "paused") or step < rule.least or (rule.most and step >= rule.most):
            continue
        averages = [average for other in done if (average := _average(other.samples, step)) is not None]
        if len(averages) < MEDIAN_OF:
            continue
        limit, value = _median(averages, rule), rule.best_of(told for _, told in placed)
        verdict = _by_median(curve.status, rule.key(value) > rule.key(limit), rule.pause)
        if verdict is not None:
            made.append(Decision(curve.number, verdict, None, step, value, limit, len(averages)))
    return made


def _by_median(status: Status, bad: bool, pause: bool) -> Verdict | None:
    if status == "running" and bad:
        return "pause" if pause else "stop"
    return "promote" if status == "paused" and pause and not bad else None


def _placed(samples: Samples) -> list[tuple[float, float]]:
    return [(step, value) for step, value in samples if step is not None and not math.isnan(step)]


def _average(samples: Samples, step: float) -> float | None:
    """The mean of what was told up to a step, NaN left out; None if nothing was told by then, NaN if only NaN was."""
    told = [value for at, value in _placed(samples) if at <= step]
    if not told:
        return None
    numbers = [value for value in told if not math.isnan(value)]
    return sum(numbers) / len(numbers) if numbers else math.nan


def _median(values: Sequence[float], rule: Rule) -> float:
    """The median; of two in the middle their mean, or the worse one if that is no number."""
    ordered = sorted(values, key=rule.key)
    half = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[half]
    mean = (ordered[half - 1] + ordered[half]) / 2
    return mean if math.isfinite(mean) else ordered[half]


def sentence(decision: Decision, method: str, metric: str, step: str) -> str:
    """A decision for people: what was compared with what."""
    at, told = f"{method}, {step} {decision.step:.6g}", f"{metric} {decision.value:.6g}"
    if decision.verdict == "finish":
        return f"{at}: nothing else runs, so the best that paused ({told}) goes on to its end"
    if decision.limit is None:
        trials = "trial has" if decision.among == 1 else "trials have"
        return f"{at}: {told}; {decision.among} {trials} come so far, too few to tell who is good"
    if decision.rung is None:
        word = "worse than" if decision.verdict in ("stop", "pause") else "no worse than"
        return f"{at}: its best {told} is {word} {decision.limit:.6g}, the median of {decision.among} completed trials"
    word = "is among" if decision.verdict in ("go_on", "promote") else "is not among"
    return f"{at}: {told} {word} the best {decision.best} of {decision.among} ({decision.limit:.6g})"
