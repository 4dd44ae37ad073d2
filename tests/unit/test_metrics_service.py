"""What hosts say of metrics is taken over once, in pages, and whatever it is; what is asked of it afterwards."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobrunner.core.errors import LinkLostError, NotFoundError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import Ledger
from jobrunner.ledger.metrics import Sample
from jobrunner.service import eventfiles, metrics

AT = "2026-12-01T09:30:00.000000Z"
ONE, TWO = "aaaaaaaa", "bbbbbbbb"
SOURCES = {"loss": "loss=(.*)", "board": {"tensorboard": "runs", "tag": "val/loss"}}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Any]:
    with Ledger(tmp_path / "ledger.db") as ledger:
        for id_ in (ONE, TWO):
            row = JobRow(id=id_, name=f"job:{id_[0]}", state=JobState.STAGING, host="npu-a", submitted_at=AT)
            ledger.insert_staging(row, {"id": id_, "run": {"metrics": SOURCES}}, "d", None, {})
        warned: list[str] = []
        yield SimpleNamespace(ledger=ledger, warned=warned, warn=warned.append, link=lambda alias: None, warnings=[])


def items(*values: Any) -> list[dict[str, Any]]:
    return [{"name": "loss", "step": n, "value": value, "at": AT, "attempt": 1} for n, value in enumerate(values, 1)]


def take(session: Any, told: dict[str, Any], instance: str = "m1") -> None:
    journals = session.ledger.metrics.open_by_host().get("npu-a", [])
    metrics.take_over(session, "npu-a", {"host": {"instance": instance}, "metrics": told}, journals)


def values(session: Any, id_: str = ONE, name: str = "loss") -> list[float]:
    return [sample.value for sample in session.ledger.metrics.series(id_, name)]


def test_long_journals_come_in_pages_and_a_cut_goes_on_next_time(session: Any) -> None:
    pages = {10: {"start": 10, "next": 20, "items": items(2), "more": True, "end": False}}
    pages[20] = {"start": 20, "next": 30, "items": items(3), "more": False, "end": True}
    asked = []

    def request(op: str, **more: Any) -> dict[str, Any]:
        asked.append((op, more["metrics"]))
        if len(asked) == 2:
            raise LinkLostError("gone", host="npu-a")
        return {"metrics": {id_: pages[offset] for id_, offset in more["metrics"].items()}}

    session.link = lambda alias: SimpleNamespace(request=request)
    take(session, {ONE: {"start": 0, "next": 10, "items": items(1), "more": True}})
    assert asked == [("look", {ONE: 10}), ("look", {ONE: 20})]
    assert values(session) == [1, 2]
    take(session, {ONE: pages[20]})
    assert values(session) == [1, 2, 3]
    assert [item.job for item in session.ledger.metrics.open_by_host()["npu-a"]] == [TWO]


@pytest.mark.parametrize("end", [True, False])
def test_a_host_that_did_not_get_to_the_end_of_a_job_is_asked_once_more(session: Any, end: bool) -> None:
    asked: list[dict[str, int]] = []

    def request(op: str, **more: Any) -> dict[str, Any]:
        asked.append(more["metrics"])
        return {"metrics": {ONE: {"start": 10, "next": 20, "items": items(2), "more": False, "end": end}}}

    session.link = lambda alias: SimpleNamespace(request=request)
    told = {ONE: {"start": 0, "next": 10, "items": items(1), "more": False, "end": False}}
    told[TWO] = {"start": 0, "next": 0, "items": [], "more": False, "end": False}
    views = {ONE: {"state": "COMPLETED"}, TWO: {"state": "RUNNING"}}
    answer = {"host": {"instance": "m1"}, "jobs": views, "metrics": told}
    metrics.take_over(session, "npu-a", answer, session.ledger.metrics.open_by_host()["npu-a"])
    assert asked == [{ONE: 10}] and values(session) == [1, 2]
    still = [item.job for item in session.ledger.metrics.open_by_host()["npu-a"]]
    assert still == ([TWO] if end else [ONE, TWO]), "the next visit asks for what is missing still"


def test_whatever_a_host_says_is_no_harm(session: Any) -> None:
    odd = [
        {},
        {"name": 5, "value": 1},
        {"name": "x" * 200, "value": 1},
        {"name": "loss"},
        {"name": "loss", "value": "7"},
    ]
    odd += [{"name": "loss", "value": True}, {"name": "loss", "value": 10**400}, {"event": 5, "board": "runs"}]
    odd += [
        {"event": "AAAA", "board": "runs"},
        {"name": "loss", "value": "nan", "step": "inf", "at": 5, "attempt": 10**30},
    ]
    take(session, {ONE: {"next": 10, "items": odd}, TWO: {"next": 1 << 63, "items": items(1)}, "zzzzzzzz": None})
    (sample,) = session.ledger.metrics.series(ONE, "loss")
    assert (math.isnan(sample.value), sample.step, sample.at, sample.attempt) == (True, math.inf, None, 1)
    assert values(session, TWO) == []
    take(session, {TWO: {"start": -5, "next": 10, "items": items(1)}})
    assert values(session, TWO) == []


def test_another_machine_has_no_say_and_a_forgotten_job_is_not_asked_for_again(session: Any) -> None:
    session.ledger.apply_view("npu-a", "m1", {"id": ONE, "state": "RUNNING"}, AT)
    take(session, {ONE: {"next": 10, "items": items(1)}}, "m2")
    assert values(session) == []
    session.ledger.apply_view("npu-a", "m1", {"id": ONE, "state": "COMPLETED", "ended_at": AT}, AT)
    assert metrics.journals(session, [ONE])["npu-a"][0].final
    take(session, {ONE: None})
    assert metrics.journals(session, [ONE]) == {}


def test_a_silent_host_is_not_asked_for_the_numbers_of_jobs_that_have_ended(session: Any) -> None:
    for id_ in (ONE, TWO):
        session.ledger.apply_view("npu-a", "m1", {"id": id_, "state": "COMPLETED", "ended_at": AT}, AT)
    assert len(metrics.journals(session, None)["npu-a"]) == 2
    session.ledger.mark_unreachable("npu-a", "no answer", AT)
    assert metrics.journals(session, None) == {}
    assert len(metrics.journals(session, [ONE])["npu-a"]) == 1


def test_events_are_read_here_and_wait_for_the_extra_that_reads_them(session: Any, monkeypatch: Any) -> None:
    import base64

    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    old = Summary.Value(tag="val/loss", simple_value=0.5)
    new = Summary.Value(tag="val/loss")
    new.tensor.dtype = 1
    new.tensor.tensor_content = b"\0\0\x80\x3e"
    lines = [
        {"board": "runs", "attempt": 2, "event": base64.b64encode(event.SerializeToString()).decode()}
        for event in (
            Event(
                step=3, wall_time=1796117400.5, summary=Summary(value=[old, Summary.Value(tag="other", simple_value=9)])
            ),
            Event(step=4, wall_time=1e300, summary=Summary(value=[new])),
        )
    ]
    told = {ONE: {"next": 10, "items": lines}}
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorboardX.proto.event_pb2", None)
        take(session, told)
    assert values(session, ONE, "board") == []
    assert "jobrunner[sweep]" in session.warned[0]
    take(session, told)
    assert session.ledger.metrics.series(ONE, "board") == [
        Sample("board", 3.0, 0.5, "2026-12-01T09:30:00.500000Z", 2),
        Sample("board", 4.0, 0.25, None, 2),
    ]
    assert eventfiles.readable()


def test_the_objective_is_the_last_value_or_the_best(session: Any) -> None:
    session.ledger.metrics.add(ONE, 0, 10, [Sample("loss", 1.0, 0.1), Sample("loss", 2.0, 0.4)])
    for objective, value in (("loss min", 0.4), ("loss min best", 0.1), ("loss max best", 0.4)):
        found = metrics.objective_of(session, SimpleNamespace(objective=objective, spec={}), [ONE, TWO])  # type: ignore[arg-type]
        assert {job: sample.value for job, sample in found.items()} == {ONE: value}
    assert metrics.objective_of(session, SimpleNamespace(objective=None, spec={}), [ONE]) == {}  # type: ignore[arg-type]
    told = metrics.summary(session, ONE, {"sweep": {"objective": "loss max"}})["loss"]
    assert (told["count"], told["last"]["step"], told["best"]["value"], told["min"]["value"]) == (2, 2, 0.4, 0.1)
    assert metrics.summary(session, ONE, {})["loss"]["best"] is None
    ways = {"checkpoints": {"keep": {"best": "a min"}}, "promote": {"metric": "b max"}}
    assert metrics.wanted_directions(ways) == {"a": "min", "b": "max"}


@pytest.mark.parametrize(
    ("word", "found"),
    [("aaaa:loss", (ONE, "loss")), ("job:a", (ONE, None)), ("job:b:x/y", (TWO, "x/y")), ("bbbb", (TWO, None))],
)
def test_a_job_s_name_may_hold_colons(session: Any, word: str, found: tuple[str, str | None]) -> None:
    assert metrics._asked(session, word) == found


def test_an_unknown_job_is_named(session: Any) -> None:
    with pytest.raises(NotFoundError, match="nosuch"):
        metrics._asked(session, "nosuch:loss")


def test_numbers_as_json() -> None:
    assert [metrics.spelled(v) for v in (None, 1.0, 0.5, math.nan, math.inf, -math.inf, 2.0**60)] == [
        None, 1, 0.5, "nan", "inf", "-inf", 2.0**60,
    ]  # fmt: skip
