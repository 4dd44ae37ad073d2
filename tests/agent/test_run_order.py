"""Which job starts next, by values."""

from __future__ import annotations

from typing import Any

import pytest

from jobrunner.agent import order


def entry(job_id: str, cards: int = 1, **more: Any) -> dict[str, Any]:
    return {"id": job_id, "cards": cards, "device": "npu", "since": job_id, "priority": 0, "waited_s": 1.0, **more}


def situation(waiting: list[dict[str, Any]], free: set[int] = frozenset(), **more: Any) -> order.Situation:  # type: ignore[assignment]
    return order.Situation(order.own_order(waiting), free={"npu": set(free)}, **more)


def started(made: order.Situation) -> str | None:
    decision = order.decide(made)
    return decision.start["id"] if decision.start else None


def other(uid: int, usage: float, waited_s: float = 1.0, cards: int = 1, **more: Any) -> dict[str, Any]:
    return {"uid": uid, "usage": usage, "waiting": [{"cards": cards, "device": "npu", "waited_s": waited_s, **more}]}


def test_own_order_is_priority_then_age() -> None:
    entries = [entry("b"), entry("a"), entry("c", priority=2)]
    assert [found["id"] for found in order.own_order(entries)] == ["c", "a", "b"]


def test_what_is_left_after_a_start() -> None:
    made = situation([entry("a"), entry("b", card_ids=[0]), entry("c", sweep={"id": "s", "parallel": 1})], {0, 1})
    assert started(made) == "a" and started(made.after(made.waiting[0], [0])) == "c"
    assert started(made.after(made.waiting[0], [1])) == "b" and started(made.after(made.waiting[2], [0])) == "a"
    trials = situation([entry(name, sweep={"id": "s", "parallel": 1}) for name in "ab"], {0, 1})
    assert started(trials) == "a" and started(trials.after(trials.waiting[0], [0])) is None
    assert len(made.waiting) == 3 and made.free == {"npu": {0, 1}} and made.running == []


def test_small_ones_pass_a_wide_one_until_it_has_waited_ten_minutes() -> None:
    young, old = entry("a", 4, waited_s=599), entry("a", 4, waited_s=601)
    assert started(situation([young, entry("b")], {0, 1})) == "b"
    made = situation([old, entry("b")], {0, 1})
    decision = order.decide(made)
    assert decision.start is None and decision.why["b"][0] == "wide" and decision.why["a"][0] == "cards"
    assert started(situation([entry("a", 4, waited_s=61, limits={"wide_after_s": 60}), entry("b")], {0, 1})) is None


@pytest.mark.parametrize(
    ("timeout_s", "lefts", "passes"),
    [(50, [100, 200], True), (150, [100, 200], False), (None, [100, 200], False), (50, [None, None], False)],
)
def test_a_short_one_passes_if_it_is_over_in_time(timeout_s: Any, lefts: list[Any], passes: bool) -> None:
    """The wide job wants four, two are free, and two cards come free at the first end: 100 s."""
    running = [
        {"cards": [2, 3], "device": "npu", "left_s": lefts[0]},
        {"cards": [4, 5], "device": "npu", "left_s": lefts[1]},
    ]
    waiting = [entry("a", 4, waited_s=700), entry("b", timeout_s=timeout_s, grace_s=5)]
    assert (started(situation(waiting, {0, 1}, running=running)) == "b") is passes


def test_fewest_card_seconds_first_between_users() -> None:
    mine = [entry("a")]
    assert started(situation(mine, {0}, usage=100.0, others=[other(7, 50.0)])) is None
    assert started(situation(mine, {0}, usage=100.0, others=[other(7, 200.0)])) == "a"
    assert started(situation(mine, {0, 1}, usage=100.0, others=[other(7, 50.0)])) == "a", "there is one for each"
    assert started(situation(mine, {0}, usage=100.0, others=[other(7, 50.0)], passed={7})) == "a"
    decision = order.decide(situation(mine, {0}, usage=100.0, others=[other(7, 50.0)]))
    assert decision.yields_to == {7} and decision.why["a"][0] == "colleague"


def test_age_decides_between_equal_users() -> None:
    assert started(situation([entry("a", waited_s=9)], {0}, others=[other(7, 0.0, 5)])) == "a"
    assert started(situation([entry("a", waited_s=3)], {0}, others=[other(7, 0.0, 5)])) is None


def test_a_colleague_who_cannot_use_the_card_does_not_hold_it_up() -> None:
    others = [other(7, 0.0, 99, limits={"only_cards": [5]})]
    assert started(situation([entry("a")], {0}, usage=10.0, others=others)) == "a"
    assert started(situation([entry("a")], {0}, usage=10.0, others=[other(7, 0.0, 99, cards=8)])) == "a"
    assert started(situation([entry("a")], {0}, usage=10.0, others=[other(7, 0.0, 999, cards=8)])) is None, "it is wide"


def test_limits() -> None:
    running = [{"cards": [4, 5], "device": "npu", "left_s": None}, {"cards": [], "device": "cpu", "left_s": None}]
    assert started(situation([entry("a", limits={"max_cards": 2})], {0}, running=running)) is None
    assert started(situation([entry("a", limits={"max_cards": 3})], {0}, running=running)) == "a"
    assert started(situation([entry("a", limits={"only_cards": [1]})], {0}, running=running)) is None
    assert started(situation([entry("a", card_ids=[1])], {0}, running=running)) is None
    cpu = entry("a", 0, device="cpu")
    assert started(situation([cpu], running=running, cores=4)) is None
    assert started(situation([cpu], running=running, cores=8)) == "a"
    assert started(situation([dict(cpu, limits={"cpu_jobs": 2})], running=running, cores=1)) == "a"


def test_a_job_at_its_limit_keeps_no_cards() -> None:
    """What `max_cards` holds up is no wide job: the others pass, however long it has waited."""
    running = [{"cards": [4, 5], "device": "npu", "left_s": None}]
    waiting = [entry("a", 2, waited_s=9999, limits={"max_cards": 3}), entry("b", limits={"max_cards": 3})]
    assert started(situation(waiting, {0, 1}, running=running)) == "b"


@pytest.mark.parametrize(
    ("when", "state", "expected"),
    [
        ("ok", None, (False, False)),
        ("ok", "COMPLETED", (True, False)),
        ("ok", "FAILED", (False, True)),
        ("any", "LOST", (True, False)),
        ("failed", "COMPLETED", (False, True)),
        ("failed", "TIMEOUT", (True, False)),
        ("ok", "ok", (True, False)),
        ("ok", "failed", (False, True)),
    ],
)
def test_dependencies(when: str, state: str | None, expected: tuple[bool, bool]) -> None:
    states = {"other": state} if state else {}
    assert order.dependency({"after": [{"job": "other", "when": when}]}, states)[:2] == expected


def test_not_ready() -> None:
    now = "2026-12-01T09:30:00.000000Z"
    assert order.not_ready(entry("a"), now, {}, False) is None
    assert (order.not_ready(entry("a"), now, {}, True) or "")[0] == "drained"
    assert (order.not_ready(entry("a", hold=True), now, {}, False) or "")[0] == "hold"
    assert (order.not_ready(entry("a", not_before="2026-12-01T09:30:01.000000Z"), now, {}, False) or "")[0] == "backoff"
    assert order.not_ready(entry("a", not_before="2026-12-01T09:29:59.000000Z"), now, {}, False) is None
