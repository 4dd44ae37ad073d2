"""The points of a sweep: the parameters of each trial, told beforehand. Pure; the same sweep gives the same points."""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fractions import Fraction

from jobrunner.core.errors import UsageError
from jobrunner.core.sweepspec import Range, Sweep

Point = dict[str, str]
Values = tuple[str, ...] | Range
Draw = Iterator[Sequence[float]]

DIGITS = 6
"""Numbers drawn from a range have so many digits that count: enough to tell trials apart, few enough to read."""

MOST = 100_000
"""A sweep has no more points than these."""

MISSES = 1000
"""After so many draws in a row that gave nothing new, the rest of a finite space is told out in order."""


def points(sweep: Sweep) -> list[Point]:
    """Every point of a grid, random, list or qmc sweep, each once.

    For random and qmc the first points stay the same when `trials` grows. Raises UsageError for a method whose points
    depend on results (tpe, cmaes), and for qmc where scipy is missing.
    """
    if sweep.method == "list" or isinstance(sweep.parameters, tuple):
        return _distinct(rows(sweep))
    space = dict(sweep.parameters)
    if sweep.method == "grid":
        return _distinct(_told_out(space))
    if sweep.method == "random":
        return _drawn(space, _random(sweep.seed, len(space)), sweep.trials or 0)
    if sweep.method == "qmc":
        return _drawn(space, _quasi_random(sweep.seed, len(space), sweep.trials or 0), sweep.trials or 0)
    raise UsageError(f"the points of method {sweep.method} are not known beforehand: each follows from results")


def rows(sweep: Sweep) -> list[Point]:
    """The points of method list as they are written, whether each is there once or not."""
    if isinstance(sweep.parameters, tuple):
        return [dict(point) for point in sweep.parameters]
    columns = [tuple(values) for values in sweep.parameters.values() if not isinstance(values, Range)]
    return [dict(zip(sweep.parameters, row, strict=True)) for row in zip(*columns, strict=True)]


def point_id(parameters: Mapping[str, str]) -> str:
    """What a trial is known by: twelve signs that follow from its parameters' names and texts alone."""
    plain = json.dumps(sorted(parameters.items()), separators=(",", ":"))
    return hashlib.sha256(plain.encode()).hexdigest()[:12]


def text_of(number: int | float) -> str:
    """A number as a trial gets it: the shortest text that means it."""
    return str(number) if isinstance(number, int) else repr(number)


def size(parameters: Mapping[str, Values]) -> int | None:
    """How many different points a space has; None if a range in it has no steps."""
    total = 1
    for values in parameters.values():
        count = _count(values)
        if count is None:
            return None
        total *= count
    return total


def value_at(values: Values, place: float) -> str:
    """The value at a place from 0 (the first, or least) up to but without 1 (the last, or greatest)."""
    count = _count(values)
    if isinstance(values, tuple):
        return values[min(int(place * len(values)), len(values) - 1)]
    low, high = values.min, values.max
    if values.scale == "log":
        top = high + 1 if count is not None else high
        number = math.exp(math.log(low) + place * (math.log(top) - math.log(low)))
        return text_of(min(max(math.floor(number), low), high) if count is not None else rounded(number, values))
    if count is not None:
        return _step(values, min(int(place * count), count - 1))
    return text_of(rounded(low + place * (high - low), values))


def rounded(number: float, values: Range) -> int | float:
    """A number of a range with the digits that count there, never out of it; whole if both ends are whole."""
    if _whole(values):
        return int(min(max(round(number), values.min), values.max))
    if values.scale == "log" and values.max / values.min > 2:
        near = float(f"{number:.{DIGITS}g}")
    else:
        near = round(float(number), DIGITS - math.floor(math.log10(values.max - values.min)))
    return float(min(max(near, values.min), values.max))


def shares(parallel: int, counts: Mapping[str, int]) -> dict[str, int]:
    """How many trials each host may run at once, `parallel` in all, by how many each has.

    Each has at least one; where hosts outnumber `parallel`, those with the fewest are left out: they may have none.
    """
    able = sorted((host for host in counts if counts[host] > 0), key=lambda host: -counts[host])[:parallel]
    given = dict.fromkeys(able, 1)
    for _ in range(parallel - len(able) if able else 0):
        given[max(able, key=lambda host: counts[host] / (given[host] + 1))] += 1
    return {host: given[host] for host in counts if host in given}


def _whole(values: Range) -> bool:
    return isinstance(values.min, int) and isinstance(values.max, int)


def _count(values: Values) -> int | None:
    """How many values there are; None for a range of numbers without steps."""
    if isinstance(values, tuple):
        return len(values)
    if values.step is not None:
        return int((_exact(values.max) - _exact(values.min)) / _exact(values.step)) + 1
    return int(values.max) - int(values.min) + 1 if _whole(values) else None


def _exact(number: int | float) -> Fraction:
    """The number as it was written: 0.1 is a tenth."""
    return Fraction(repr(number))


def _step(values: Range, place: int) -> str:
    step = values.step if values.step is not None else 1
    number = _exact(values.min) + place * _exact(step)
    return text_of(int(number) if _whole(values) and isinstance(step, int) else float(number))


def _all_of(values: Values) -> tuple[str, ...]:
    if isinstance(values, tuple):
        return values
    return tuple(_step(values, place) for place in range(_count(values) or 0))


def _told_out(space: Mapping[str, Values]) -> Iterator[Point]:
    """Every point of a finite space; the last parameter changes fastest."""
    for row in itertools.product(*(_all_of(values) for values in space.values())):
        yield dict(zip(space, row, strict=True))


def _distinct(found: Iterable[Point]) -> list[Point]:
    return list({point_id(point): point for point in found}.values())


def _drawn(space: Mapping[str, Values], places: Draw, wanted: int) -> list[Point]:
    """The first distinct points of a sequence, as many as are wanted and there are."""
    total = size(space)
    wanted = wanted if total is None else min(wanted, total)
    known: dict[str, Point] = {}
    misses = 0
    while len(known) < wanted and misses < MISSES:
        row = next(places, None)
        if row is None:
            break
        point = {name: value_at(values, place) for (name, values), place in zip(space.items(), row, strict=True)}
        id_ = point_id(point)
        misses = misses + 1 if id_ in known else 0
        known.setdefault(id_, point)
    if len(known) < wanted and total is not None:
        for point in _told_out(space):
            known.setdefault(point_id(point), point)
    return list(known.values())[:wanted]


def _random(seed: int, width: int) -> Draw:
    source = random.Random(seed)
    while True:
        yield [source.random() for _ in range(width)]


def _quasi_random(seed: int, width: int, wanted: int) -> Draw:
    """Scrambled Sobol points: they fill the space evenly. Whole powers of two, as the sequence wants it."""
    sobol = _sobol()
    sequence = sobol(width, seed)
    drawn, block = 0, max(64, 1 << max(0, wanted - 1).bit_length())
    while drawn < 1 << 22:
        yield from sequence(block)
        drawn += block
        block = drawn  # so that what was drawn stays a power of two


def _sobol() -> Callable[[int, int], Callable[[int], Iterable[Sequence[float]]]]:
    try:
        from scipy.stats import qmc
    except ImportError as error:
        raise UsageError(
            "sweep method qmc needs scipy, which is not installed",
            code="extra_missing",
            remedy="pip install 'jobrunner[sweep]', or use `method: random`",
        ) from error

    def begin(width: int, seed: int) -> Callable[[int], Iterable[Sequence[float]]]:
        engine = qmc.Sobol(width, scramble=True, seed=seed)
        return lambda count: engine.random(count).tolist()

    return begin
