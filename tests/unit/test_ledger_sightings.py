"""Which sightings change a row: order, finality, identity of the machine, odd values."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jobrunner.core.jobs import JobRow
from jobrunner.core.states import FINAL, JobState
from jobrunner.ledger import EventBatch, Ledger, Outcome
from jobrunner.ledger.sightings import Sighting, merge

JOB = "aaaaaaaa"


def at(second: int) -> str:
    return f"2026-12-01T{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}.000000Z"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "ledger.db") as opened:
        row = JobRow(JOB, "train", JobState.STAGING, host="npu-a", submitted_at=at(0))
        opened.insert_staging(row, {}, "spec", None, {})
        yield opened


def view(state: str, ended: int = 0, **more: Any) -> dict[str, Any]:
    attempts = [{"number": n + 1, "exit_code": 1, "ended_at": at(1)} for n in range(ended)]
    if state == "RUNNING":
        attempts.append({"number": ended + 1, "exit_code": None, "ended_at": None})
    return {"id": JOB, "state": state, "attempt": max(1, len(attempts)), "attempts": attempts, **more}


def test_a_job_goes_through_its_states_and_back_for_a_retry(ledger: Ledger) -> None:
    steps = [view("QUEUED"), view("RUNNING"), view("QUEUED", 1), view("RUNNING", 1), view("COMPLETED", 2)]
    for second, step in enumerate(steps):
        assert ledger.apply_view("npu-a", "m1", step, at(second + 1)) is Outcome.APPLIED
        assert ledger.get(JOB).state.value == step["state"]
    assert [attempt.number for attempt in ledger.attempts(JOB)] == [1, 2]


@pytest.mark.parametrize(
    ("newer", "older"),
    [
        (view("RUNNING"), view("QUEUED")),
        (view("QUEUED", 1), view("RUNNING")),
        (view("RUNNING", 1), view("QUEUED", 1)),
    ],
)
def test_an_answer_that_arrives_late_changes_nothing(
    ledger: Ledger, newer: dict[str, Any], older: dict[str, Any]
) -> None:
    ledger.apply_view("npu-a", "m1", newer, at(10))
    before = ledger.detail(JOB)
    assert ledger.apply_view("npu-a", "m1", older, at(11)) is Outcome.PAST
    assert ledger.detail(JOB) == before


def test_of_two_equal_states_the_later_sighting_wins(ledger: Ledger) -> None:
    ledger.apply_view("npu-a", "m1", view("QUEUED", priority=5), at(10))
    assert ledger.apply_view("npu-a", "m1", view("QUEUED", priority=1), at(9)) is Outcome.PAST
    assert ledger.detail(JOB).priority == 5
    ledger.apply_view("npu-a", "m1", view("QUEUED", priority=1, hold=True), at(11))
    assert (ledger.detail(JOB).priority, ledger.detail(JOB).hold) == (1, True)


def test_the_journal_decides_where_its_length_is_known(ledger: Ledger) -> None:
    ledger.apply_view("npu-a", "m1", view("RUNNING"), at(10), EventBatch(0, 100, [{"kind": "started"}]))
    short = EventBatch(0, 50, [{"kind": "queued"}])
    assert ledger.apply_view("npu-a", "m1", view("COMPLETED"), at(11), short) is Outcome.PAST
    longer = EventBatch(100, 150, [{"kind": "requeued"}])
    assert ledger.apply_view("npu-a", "m1", view("QUEUED"), at(10), longer) is Outcome.APPLIED
    assert ledger.get(JOB).state is JobState.QUEUED


def test_much_later_the_host_is_right_whatever_the_ledger_thought(ledger: Ledger) -> None:
    ledger.apply_view("npu-a", "m1", view("RUNNING"), at(10))
    assert ledger.apply_view("npu-a", "m1", view("QUEUED"), at(10 + 299)) is Outcome.PAST
    assert ledger.apply_view("npu-a", "m1", view("QUEUED"), at(10 + 301)) is Outcome.APPLIED


@pytest.mark.parametrize("final", sorted(state.value for state in FINAL))
@pytest.mark.parametrize("later", [state.value for state in JobState])
def test_final_is_final(ledger: Ledger, final: str, later: str) -> None:
    ledger.apply_view("npu-a", "m1", view(final, 1, reason="exit", exit_code=2, ended_at=at(5)), at(10))
    outcome = ledger.apply_view("npu-a", "m1", view(later, 2, reason="oom", exit_code=9, log_bytes=70), at(9999))
    row = ledger.get(JOB)
    assert outcome is Outcome.FINAL
    assert (row.state.value, row.reason, row.exit_code, row.ended_at) == (final, "exit", 2, at(5))
    assert row.last_seen == at(9999)
    assert ledger.detail(JOB).log_bytes == (70 if later == final else None)


def test_another_machine_under_the_same_alias_has_no_say(ledger: Ledger) -> None:
    ledger.apply_view("npu-a", "m1", view("RUNNING"), at(1))
    before = ledger.detail(JOB)
    assert ledger.apply_view("npu-a", "m2", view("LOST"), at(2)) is Outcome.OTHER_MACHINE
    assert ledger.detail(JOB) == before


def test_the_same_machine_under_another_alias_has(ledger: Ledger) -> None:
    ledger.apply_view("npu-a", "m1", view("RUNNING"), at(1))
    assert ledger.apply_view("by-ip", "m1", view("COMPLETED"), at(2)) is Outcome.APPLIED


def test_a_staged_job_listens_only_to_the_host_that_it_was_sent_to(ledger: Ledger) -> None:
    assert ledger.apply_view("gpu-b", "m9", view("RUNNING"), at(1)) is Outcome.OTHER_MACHINE
    assert ledger.get(JOB).state is JobState.STAGING


def test_an_unknown_state_is_kept_out_and_an_unknown_job_too(ledger: Ledger) -> None:
    ledger.apply_view("npu-a", "m1", view("RUNNING"), at(1))
    assert ledger.apply_view("npu-a", "m1", view("HIBERNATING"), at(2)) is Outcome.UNKNOWN_STATE
    assert (ledger.get(JOB).state, ledger.get(JOB).last_seen) == (JobState.RUNNING, at(2))
    answers = ledger.apply_views("npu-a", "m1", {"bbbbbbbb": view("RUNNING"), JOB: None}, at(3))
    assert answers == {"bbbbbbbb": Outcome.UNKNOWN_JOB}


def test_the_same_events_twice_are_there_once(ledger: Ledger) -> None:
    first = EventBatch(0, 60, [{"at": at(1), "kind": "submitted"}, {"at": at(2), "kind": "queued", "position": 3}])
    second = EventBatch(60, 90, [{"at": at(3), "kind": "started"}])
    for batch in (first, first, second, second, EventBatch(0, 60, first.items)):
        ledger.apply_view("npu-a", "m1", view("QUEUED"), at(10), batch)
    ledger.apply_view("npu-a", "m1", view("QUEUED"), at(10), EventBatch(95, 120, [{"kind": "after a gap"}]))
    ledger.add_event(JOB, "unreachable", at(2), {"why": "timeout"})
    assert [(e.kind, e.source) for e in ledger.events(JOB)] == [
        ("submitted", "host"), ("queued", "host"), ("unreachable", "client"), ("started", "host"),
    ]  # fmt: skip
    assert ledger.live_by_host()["npu-a"][0].offset == 90
    whole = EventBatch(0, 120, [*first.items, *second.items, {"at": at(4), "kind": "phase"}])
    ledger.apply_view("npu-a", "m1", view("RUNNING"), at(11), whole)
    assert [e.kind for e in ledger.events(JOB) if e.source == "host"] == ["submitted", "queued", "started", "phase"]


def test_odd_values_from_a_host_do_no_harm(ledger: Ledger) -> None:
    odd = view(
        "RUNNING", phase="\udcff\x1b", cards=[1, "x", None, True, 2**70], exit_code=2**80, log_bytes="many",
        evidence={"\ud800": ["\udcfe"]}, warnings="no list", started_at=["?"],
    )  # fmt: skip
    odd["attempts"] = [7, {"number": "x"}, {"number": 1, "cards": "all", "reason": "\udcff"}]
    assert ledger.apply_view("npu-a", "m1", odd, at(1)) is Outcome.APPLIED
    row = ledger.get(JOB)
    assert (row.cards, row.exit_code, row.started_at, row.phase) == ([1], None, None, "\\udcff\x1b")
    assert ledger.detail(JOB).evidence == {"\ud800": ["\udcfe"]}
    assert [(a.number, a.cards, a.reason) for a in ledger.attempts(JOB)] == [(1, [], "\\udcff")]


_STORED = {
    **dict.fromkeys(("phase", "reason", "signal", "last_seen", "cancel_requested_at", "log_bytes", "started_at")),
    "evidence": None, "launcher": None, "instance": "m1", "host": "npu-a", "final": 0, "confirmed": 1, "progress": 0,
    "offset": 0, "state": "QUEUED",
}  # fmt: skip


@settings(max_examples=200, suppress_health_check=[HealthCheck.too_slow])
@given(st.permutations(range(7)), st.lists(st.integers(0, 6), max_size=8))
def test_in_whatever_order_answers_arrive_the_furthest_one_stays(order: list[int], again: list[int]) -> None:
    story = [
        view("QUEUED"), view("RUNNING"), view("QUEUED", 1), view("RUNNING", 1), view("QUEUED", 2), view("RUNNING", 2),
        view("FAILED", 3),
    ]  # fmt: skip
    row: dict[str, Any] = dict(_STORED)
    furthest = -1
    for second, step in enumerate([*order, *again]):
        _, changes = merge(row, story[step], Sighting("npu-a", "m1", at(second)))
        row.update(changes)
        furthest = max(furthest, step)
        assert row["state"] == story[furthest]["state"]
