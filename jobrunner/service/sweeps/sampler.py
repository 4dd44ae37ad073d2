"""Which point an adaptive sweep tries next: Optuna's TPE, and CMA-ES. A function of what is known; it keeps nothing.

What was learnt is rebuilt from the trials each time, so the ledger is the only store. The same trials and the same
number give the same point. Both methods see ranks in place of values: NaN is the worst, and infinity is no trouble.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from jobrunner.core.errors import UsageError
from jobrunner.core.points import Point, point_id, points, size, text_of, rounded, value_at
from jobrunner.core.sweepspec import Range, Sweep

if TYPE_CHECKING:
    from cmaes import CMA
    from optuna.distributions import BaseDistribution
    from optuna.study import Study

ADAPTIVE = ("tpe", "cmaes")
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
    assert isinstance(sweep.parameters, dict) and sweep.objective is not None
    space = dict(sweep.parameters)
    known = {point_id(trial.parameters) for trial in seen}
    draw = (_tpe if sweep.method == "tpe" else _cmaes)(sweep, space, seen)
    found: list[Point] = []
    for number in numbers:
        tries = (draw(_seed(sweep.seed, number, again)) for again in range(AGAIN))
        point = next((item for item in tries if point_id(item) not in known), None) or _untried(sweep, known)
        if point is None:
            break
        known.add(point_id(point))
        found.append(point)
        draw.add(number, point)
    return found
