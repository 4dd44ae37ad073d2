"""The ledger's rules about due times: one row and one claim each, whoever asks."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from jobrunner.core.errors import NotFoundError, UsageError
from jobrunner.ledger import Ledger
from jobrunner.ledger.promotions import Promotion
from jobrunner.ledger.schedules import ScheduleRow

AT = "2026-12-01T03:00:00.000000Z"
DUE = "2026-12-02T03:00:00.000000Z"


def row(id_: str = "abcdefgh", name: str = "retrain") -> ScheduleRow:
    spec = {"name": name, "schedule": {"cron": "0 3 * * *", "timezone": "UTC"}}
    return ScheduleRow(id_, name, "active", "0 3 * * *", "UTC", AT, AT, spec)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    made = Ledger(tmp_path / "ledger.db")
    made.schedules.add(row())
    return made


def test_schedules_are_found_by_id_name_and_prefix(ledger: Ledger) -> None:
    schedules = ledger.schedules
    assert not schedules.add(row()), "the same id again changes nothing"
    schedules.add(row("abcdzzzz", "retrain"))
    assert schedules.resolve("retrain") == "abcdzzzz" and schedules.resolve("abcdef") == "abcdefgh"
    schedules.set_state("abcdzzzz", "removed", DUE)
    assert schedules.resolve("retrain") == "abcdefgh", "one that is there comes first"
    assert [item.id for item in schedules.list()] == ["abcdefgh"] and len(schedules.list(removed=True)) == 2
    with pytest.raises(UsageError):
        schedules.resolve("abcd")
    with pytest.raises(NotFoundError, match="no schedule 'x'"):
        schedules.resolve("x")


def test_a_due_time_is_decided_once(ledger: Ledger) -> None:
    assert ledger.schedules.consider("abcdefgh", DUE, [(DUE, "waiting", None)], DUE) == 1
    assert ledger.schedules.consider("abcdefgh", AT, [(DUE, "skipped", "again")], DUE) == 0, "the clock was set back"
    [run] = ledger.schedules.runs("abcdefgh")
    assert (run.outcome, run.why) == ("waiting", None)


def test_a_run_is_claimed_by_one_of_many(tmp_path: Path, ledger: Ledger) -> None:
    ledger.schedules.consider("abcdefgh", DUE, [(DUE, "waiting", None)], DUE)
    [run] = ledger.schedules.open_runs()
    won: list[int] = []

    def claim(number: int) -> None:
        with Ledger(tmp_path / "ledger.db") as own:
            if own.schedules.claim(run, {"token": str(number)}, DUE, job=f"job{number:05d}"):
                won.append(number)

    threads = [threading.Thread(target=claim, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(won) == 1
    now = ledger.schedules.run(run.seq)
    assert (now.outcome, now.job) == ("firing", f"job{won[0]:05d}")
    assert not ledger.schedules.settle(run, "waiting", DUE), "who read it before the claim has no say any more"
    assert ledger.schedules.settle(now, "fired", DUE, fired_at=DUE) and not ledger.schedules.open_runs()


def test_one_model_of_a_target_is_current(ledger: Ledger) -> None:
    for job, decision in (("a", "promoted"), ("b", "kept"), ("c", "promoted")):
        ledger.promotions.add(Promotion("m", DUE, decision, job=job, value=0.5, current=decision == "promoted"))
    current = ledger.promotions.current("m")
    assert current is not None and current.job == "c"
    assert [item.job for item in ledger.promotions.list("m")] == ["c", "b", "a"]
    assert ledger.promotions.of_jobs(["b", "x"])["b"].decision == "kept"
