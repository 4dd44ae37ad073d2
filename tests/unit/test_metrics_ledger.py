"""Metrics in the ledger: what is appended, and what is asked of it."""

import math
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import Ledger
from jobrunner.ledger.metrics import Sample

AT = "2026-12-01T09:30:00.000000Z"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as opened:
        yield opened


def job(ledger: Ledger, id_: str, metrics: dict | None = None) -> str:
    row = JobRow(id=id_, name="train", state=JobState.STAGING, host="npu-a", submitted_at=AT)
    ledger.insert_staging(row, {"id": id_, "run": {"metrics": metrics or {}}}, "d", None, {})
    return id_


def loss(*values: float) -> list[Sample]:
    return [Sample("loss", float(step), value, AT) for step, value in enumerate(values, 1)]


def test_series_names_last_and_best(ledger):
    id_ = job(ledger, "aaaaaaaa", {"loss": "x"})
    told = [*loss(0.5, math.nan, 0.25, 0.3, 0.25), Sample("acc", None, math.inf, None, 2)]
    assert ledger.metrics.add(id_, 0, 100, told)
    assert ledger.metrics.names(id_) == ["loss", "acc"]
    series = ledger.metrics.series(id_, "loss")
    assert [sample.step for sample in series] == [1, 2, 3, 4, 5]
    assert math.isnan(series[1].value)
    assert ledger.metrics.series(id_, "acc") == [Sample("acc", None, math.inf, None, 2)]
    assert ledger.metrics.last([id_, "nosuchjob"], "loss") == {id_: Sample("loss", 5.0, 0.25, AT)}
    assert ledger.metrics.best([id_], "loss", "min")[id_].step == 3  # the earliest of equals
    assert ledger.metrics.best([id_], "loss", "max")[id_].value == 0.5
    assert ledger.metrics.count(id_, "loss") == 5


def test_nan_is_a_last_value_and_never_the_best(ledger):
    id_ = job(ledger, "aaaaaaaa", {"loss": "x"})
    ledger.metrics.add(id_, 0, 10, loss(math.nan))
    assert math.isnan(ledger.metrics.last([id_], "loss")[id_].value)
    assert ledger.metrics.best([id_], "loss", "min") == {}
    ledger.metrics.add(id_, 10, 20, loss(-math.inf))
    assert ledger.metrics.best([id_], "loss", "min")[id_].value == -math.inf


def test_only_a_batch_that_goes_on_is_taken(ledger):
    id_ = job(ledger, "aaaaaaaa", {"loss": "x"})
    add = ledger.metrics.add
    assert add(id_, 0, 10, loss(1.0))
    assert not add(id_, 5, 15, loss(9.0))  # overlaps
    assert not add(id_, 20, 30, loss(9.0))  # leaves a gap
    assert add(id_, 10, 20, loss(2.0))
    assert not add(id_, 10, 20, loss(2.0))  # the same answer, read by two commands at once
    assert [sample.value for sample in ledger.metrics.series(id_, "loss")] == [1.0, 2.0]
    assert add(id_, 0, 40, loss(7.0))  # read anew from the beginning
    assert [sample.value for sample in ledger.metrics.series(id_, "loss")] == [7.0]
    assert ledger.metrics.best([id_], "loss", "min")[id_].value == 7.0


def test_which_journals_are_open(ledger):
    told, untold = job(ledger, "aaaaaaaa", {"loss": "x"}), job(ledger, "bbbbbbbb")
    (journal,) = ledger.metrics.open_by_host()["npu-a"]
    assert (journal.job, journal.offset, journal.final) == (told, 0, False)
    assert untold not in str(ledger.metrics.open_by_host())
    ledger.metrics.add(told, 0, 10, loss(1.0), done=True)
    assert ledger.metrics.open_by_host() == {}
    ledger.place(told, "npu-b", None, AT)  # it moves: a journal that begins anew
    assert ledger.metrics.open_by_host()["npu-b"][0].offset == 0
    ledger.forget([told])
    assert ledger.metrics.open_by_host() == {}
    assert ledger.metrics.series(told, "loss") == []


def test_a_thousand_jobs_are_ranked_at_once(ledger):
    ids = [f"a{number:07d}" for number in range(1000)]
    for id_ in ids:
        ledger.metrics.add(id_, 0, 10, loss(*(1 / step for step in range(1, 21))))
    begun = time.perf_counter()
    assert len(ledger.metrics.last(ids, "loss")) == 1000
    assert {sample.value for sample in ledger.metrics.best(ids, "loss", "min").values()} == {1 / 20}
    assert time.perf_counter() - begun < 0.2
