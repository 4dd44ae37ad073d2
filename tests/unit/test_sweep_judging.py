"""What the ledger's rows mean for adaptive sweeps and early stopping, by values."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobrunner.core.halving import Decision, Rule
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import Ledger
from jobrunner.ledger.metrics import Sample
from jobrunner.ledger.sweeps import SweepRow, Trial
from jobrunner.service.metrics import objective_of
from jobrunner.service.sweeps import early
from jobrunner.service.sweeps.adaptive import State, seen, silent
from jobrunner.service.sweeps.early import Entry, by, decide, how_is
from jobrunner.service.sweeps.resuming import chain
from jobrunner.service.sweeps.sampler import Seen

AT = "2026-12-01T09:30:00.000000Z"


def row(state: str, id_: str = "j", reason: str | None = None) -> JobRow:
    return JobRow(id_, "train", JobState(state), reason=reason)


def trial(number: int = 0, job: str | None = "j", **more: Any) -> Trial:
    return Trial("s", number, f"p{number}", {"lr": "1"}, job, **more)


@pytest.mark.parametrize(
    ("kept", "job", "source", "how"),
    [
        ({}, None, None, "unsent"),
        ({}, row("STAGING"), None, "running"),
        ({}, row("QUEUED"), "before", "running"),
        ({}, row("COMPLETED"), None, "completed"),
        ({}, row("CANCELLED"), None, "over"),
        ({}, row("FAILED", reason="exit"), None, "over"),
        ({}, row("FAILED", reason="interrupted"), None, "unsent"),
        ({"status": "promoted"}, row("FAILED", reason="interrupted"), "before", "broken"),
        ({"status": "paused", "note": {"ended": "j"}}, row("RUNNING"), None, "ending"),
        ({"status": "stopped", "note": {"ended": "j"}}, row("RUNNING"), None, "ending"),
        ({"status": "paused", "note": {"ended": "j"}}, row("CANCELLED"), None, "paused"),
        ({"status": "stopped", "note": {"ended": "j"}}, row("CANCELLED"), None, "over"),
        ({"status": "paused", "note": {"ended": "j"}}, row("COMPLETED"), None, "completed"),
        ({"status": "paused", "note": {"ended": "before"}}, row("RUNNING"), "before", "running"),
        ({"status": "promoted", "note": {"ended": "before"}}, row("CANCELLED"), "before", "over"),  # by somebody
    ],
)
def test_how_a_trial_is(kept: dict[str, Any], job: JobRow | None, source: str | None, how: str) -> None:
    assert how_is(trial(**kept), job, source) == how


def test_the_jobs_of_a_trial_are_one_story() -> None:
    told = {"a": {}, "b": {"goes_on": "a"}, "c": {"goes_on": "b"}, "x": {"goes_on": "x"}}
    assert chain("c", told) == ["a", "b", "c"]
    assert chain("a", told) == ["a"] and chain(None, told) == [] and chain("x", told) == ["x"]
    assert chain("new", told) == ["new"]


@pytest.mark.parametrize(
    ("objective", "wanted"), [("loss min", (0.7, 0.9)), ("loss min best", (0.5, 0.5)), ("loss max best", (0.9, 0.9))]
)
def test_what_was_told_before_a_pause_counts(tmp_path: Path, objective: str, wanted: tuple[float, float]) -> None:
    """Job b goes on from a, and has told something; c goes on from a, and has not."""
    spec = {"sweep": {"early_stop": {"pause": True}}}
    sweep = SweepRow("s", "s", "grid", "running", AT, spec, objective=objective)
    with Ledger(tmp_path / "ledger.db") as ledger:
        for id_, before, values in (("a", None, [0.5, 0.9]), ("b", "ajobaaaaa", [0.8, 0.7]), ("c", "ajobaaaaa", [])):
            request = {"run": {"metrics": {"loss": "x"}}, "sweep": {"id": "s", "goes_on": before}}
            one = JobRow(f"{id_}job{id_ * 5}", "t", JobState.STAGING, host="h", submitted_at=AT, sweep="s")
            ledger.insert_staging(one, request, "d", None, {})
            ledger.metrics.add(one.id, 0, 10, [Sample("loss", float(at), value) for at, value in enumerate(values)])
        found = objective_of(SimpleNamespace(ledger=ledger), sweep, ["bjobbbbbb", "cjobccccc"])  # type: ignore[arg-type]
    assert (found["bjobbbbbb"].value, found["cjobccccc"].value) == wanted


def entry(number: int, how: str, *values: float, **kept: Any) -> Entry:
    samples = [(float(step), value) for step, value in enumerate(values, 1)]
    return Entry(trial(number, **kept), row("RUNNING"), how, samples)  # type: ignore[arg-type]


def test_decisions_go_by_what_was_decided_before() -> None:
    rule = Rule("asha", "max", pause=True)
    entries = [
        entry(0, "paused", 0.9, rung=0, status="paused"),
        entry(1, "ending", 0.8, rung=0, status="paused"),  # not before it has ended
        entry(2, "over", 0.7),
        entry(3, "running", 0.1),
        entry(4, "running", 0.95, 0.5, 0.6, rung=0),
        entry(5, "running", 0.1, 0.1, 0.1, note={"last": True}),
    ]
    made = [(item.number, item.verdict, item.rung) for item in decide(entries, rule)]
    assert made == [(3, "pause", 0), (4, "pause", 1), (0, "promote", 0)]


def test_one_that_runs_to_its_end_is_not_judged_by_the_median_either() -> None:
    done = [entry(number, "completed", 1.0) for number in (0, 1, 2)]
    bad = [entry(3, "running", 9.0, note={"last": True}), entry(4, "running", 9.0), entry(5, "running", math.nan)]
    assert [item.number for item in decide([*done, *bad], Rule("median", "min"))] == [4, 5]


@pytest.mark.parametrize("rung", [None, 0, 12])
def test_what_a_host_is_told_can_be_read_back(rung: int | None) -> None:
    for verdict, status in (("stop", "stopped"), ("pause", "paused")):
        text = by(Decision(1, verdict, rung, 1, 2.0, None, 3), "asha, epoch 1: loss 2")  # type: ignore[arg-type]
        assert early.recalled(text) == (status, rung)
    assert early.recalled("ann") == (None, None)


def state(trials: list[Trial], jobs: list[JobRow], told: dict[str, float], pending: tuple[str, ...] = ()) -> State:
    sweep = SweepRow("s", "s", "tpe", "running", AT, {}, objective="loss min", planned=40)
    samples = {job: Sample("loss", 7.0, value) for job, value in told.items()}
    return State(sweep, None, trials, {job.id: job for job in jobs}, samples, frozenset(pending))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("job", "kept", "told", "pending", "wanted"),
    [
        (row("RUNNING"), {}, 1.0, False, ("running", None, None)),
        (row("QUEUED"), {}, None, False, ("running", None, None)),
        (row("COMPLETED"), {}, 1.0, False, ("completed", 1.0, None)),
        (row("COMPLETED"), {}, None, True, ("running", None, None)),
        (row("COMPLETED"), {}, None, False, ("completed", None, None)),
        (row("CANCELLED"), {"status": "stopped"}, 1.0, False, ("stopped", 1.0, 7.0)),
        (row("CANCELLED"), {"status": "paused"}, 1.0, False, ("stopped", 1.0, 7.0)),
        (row("CANCELLED"), {}, 1.0, False, ("failed", None, None)),
        (row("FAILED", reason="exit"), {}, 1.0, False, ("failed", None, None)),
        (row("FAILED", reason="interrupted"), {}, None, False, ("running", None, None)),
        (row("LOST"), {}, None, False, ("failed", None, None)),
        (row("TIMEOUT"), {}, 1.0, False, ("failed", None, None)),
    ],
)
def test_what_a_trial_teaches(
    job: JobRow, kept: dict[str, Any], told: float | None, pending: bool, wanted: tuple[Any, ...]
) -> None:
    one = trial(**kept)
    known = state([one], [job], {} if told is None else {"j": told}, ("j",) if pending else ())
    assert seen(known, one) == Seen(0, {"lr": "1"}, *wanted)


def test_a_sweep_is_silent_when_five_completed_and_none_told_anything() -> None:
    trials = [trial(number, f"j{number}") for number in range(6)]
    jobs = [row("COMPLETED", f"j{number}") for number in range(5)]
    why = silent(state(trials, jobs, {}))
    assert why is not None and why.startswith("5 trials have completed and none told loss")
    assert silent(state(trials, jobs[:4], {})) is None
    assert silent(state(trials, jobs, {}, ("j0",))) is None  # its numbers may be on their way
    assert silent(state(trials, jobs, {"j3": math.nan})) is None  # NaN is a value
    assert silent(state(trials, [*jobs, row("RUNNING", "j5")], {"j5": 1.0})) is None
