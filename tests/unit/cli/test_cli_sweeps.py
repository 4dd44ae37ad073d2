"""Sweeps as text: what a host that does not answer means for its trials is said beside them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

from jobrunner.cli.sweepviews import trial_table
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger.sweeps import SweepRow, Tally, Trial
from jobrunner.service.sweeps.view import SweepView, TrialView

NOW = datetime(2026, 12, 1, 9, 30, tzinfo=timezone.utc)


def view(*rows: JobRow) -> SweepView:
    trials = [TrialView(Trial("s", n, f"p{n}", {"lr": str(n)}, row.id), row) for n, row in enumerate(rows)]
    return SweepView(SweepRow("s", "s", "grid", "running", "2026-12-01T09:00:00.000000Z", {}), Tally(), trials)


def test_trials_of_a_host_that_does_not_answer() -> None:
    seen: dict[str, Any] = {"host": "b", "unreachable": True, "last_seen": "2026-12-01T09:25:00.000000Z"}
    away, over = JobRow("j1", "s-1", JobState.QUEUED, **seen), JobRow("j2", "s-2", JobState.COMPLETED, **seen)
    fine = JobRow("j0", "s-0", JobState.RUNNING, host="a")
    lines = [" ".join(line.split()) for line in trial_table(view(fine, away, over), NOW).plain().splitlines()]
    assert lines[0].endswith("JOB NOTE") and lines[2].endswith("j1 no answer, seen 5 min ago")
    assert lines[1].endswith("j0") and lines[3].endswith("j2"), "what is over needs no answer any more"
    assert [item.as_json()["unreachable"] for item in view(fine, away, over).trials] == [False, True, False]
    assert "NOTE" not in trial_table(view(fine), NOW).plain(), "no column for nothing"
