"""A ledger with a sweep that has run: no host, nothing executed, values by a seed."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from jobrunner.core.jobs import JobRow
from jobrunner.core.points import point_id
from jobrunner.core.states import JobState
from jobrunner.ledger import Ledger
from jobrunner.ledger.metrics import Sample
from jobrunner.ledger.sweeps import SweepRow, Trial

BEGIN = datetime(2026, 11, 30, 8, 0, tzinfo=timezone.utc)
ID = "sweepaaaaa"


@dataclass(frozen=True)
class Ran:
    """A trial: its parameters, the values that it told step by step, how it ended, and what its request says more."""

    parameters: Mapping[str, str]
    values: Sequence[float] = ()
    state: str = "COMPLETED"
    status: str | None = None
    reason: str | None = None
    more: Mapping[str, Any] = field(default_factory=dict)


def stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def write(
    home: Path,
    trials: Sequence[Ran],
    *,
    space: Any,
    objective: str | None = "val_loss min",
    name: str = "digits-sweep",
    method: str = "tpe",
    state: str = "done",
    early_stop: Mapping[str, Any] | None = None,
) -> str:
    """Write the ledger of a state folder; the sweep's id."""
    spec = {"sweep": {"method": method, "parameters": space, "early_stop": early_stop}}
    metric = objective.split()[0] if objective else "val_loss"
    with Ledger(home / "ledger.db") as ledger:
        row = SweepRow(
            ID, name, method, state, stamp(BEGIN), spec, objective=objective, planned=len(trials), file="sweep.yaml"
        )
        ledger.sweeps.add(row)
        kept = []
        for number, ran in enumerate(trials):
            job, begun = f"job{number:07d}", BEGIN + timedelta(seconds=number * 7)
            length = timedelta(seconds=3 + len(ran.values) * 1.7)
            final = ran.state not in ("RUNNING", "QUEUED", "STAGING")
            kept.append(Trial(ID, number, point_id(ran.parameters), ran.parameters, job, ran.status))
            one = JobRow(
                job, f"{name}-{number}", JobState(ran.state), reason=ran.reason, host=f"npu-{'ab'[number % 2]}",
                device="npu", submitted_at=stamp(BEGIN), started_at=stamp(begun), attempt=1,
                ended_at=stamp(begun + length) if final else None, sweep=ID,
            )  # fmt: skip
            ledger.insert_staging(
                one, {"run": {"metrics": {metric: "x"}}, "sweep": {"id": ID, **ran.more}}, "d", None, {}
            )
            samples = [Sample(metric, float(step), value) for step, value in enumerate(ran.values, 1)]
            if samples:
                ledger.metrics.add(job, 0, 10, samples, done=True)
        ledger.sweeps.add_trials(kept, stamp(BEGIN))
    return ID


SPACE = {
    "lr": {"min": 1e-5, "max": 1e-1, "scale": "log"},
    "hidden": ["64", "128", "256"],
    "dropout": {"min": 0.0, "max": 0.6},
    "optimizer": ["adam", "sgd", "lamb"],
}


def digits_like(count: int, seed: int = 1) -> list[Ran]:
    """Trials whose loss depends on `lr` most, then `dropout`; a few diverge or fail, some are stopped early."""
    source, trials = random.Random(seed), []
    for number in range(count):
        lr = 10 ** source.uniform(-5, -1)
        if number > count / 3:  # as a method that learns: nearer to what is good
            lr = 10 ** min(-1.0, max(-5.0, source.gauss(-2.6, 0.7)))
        hidden, optimizer = source.choice(SPACE["hidden"]), source.choice(SPACE["optimizer"])
        dropout = source.uniform(0, 0.6)
        floor = 0.05 + 0.12 * (math.log10(lr) + 2.6) ** 2 + 0.5 * (dropout - 0.2) ** 2
        floor += {"64": 0.05, "128": 0.01, "256": 0.0}[hidden] + {"adam": 0.0, "sgd": 0.03, "lamb": 0.01}[optimizer]
        floor *= source.uniform(0.93, 1.07)
        values = [floor + 2.2 * math.exp(-step * (0.3 + lr * 9)) + source.gauss(0, 0.012) for step in range(1, 28)]
        parameters = {"lr": f"{lr:.6g}", "hidden": hidden, "dropout": f"{dropout:.6g}", "optimizer": optimizer}
        if lr > 0.06:
            trials.append(Ran(parameters, [*values[:4], 40.0, 9e5, math.nan]))
        elif number % 23 == 11:
            trials.append(Ran(parameters, values[:5], "FAILED", reason="oom"))
        elif floor > 0.35 and number % 3:
            trials.append(Ran(parameters, values[: 3 if floor > 0.6 else 9], "CANCELLED", "stopped"))
        elif number % 29 == 28:
            trials.append(Ran(parameters, values[:9], "CANCELLED", "paused"))
        else:
            trials.append(Ran(parameters, values))
    return trials
