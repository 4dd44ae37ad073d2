"""Which waiting trials go to another host, by values."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jobrunner.core.moves import Load, Step, Waiting, plan
from jobrunner.core.placement import Demand, HostFacts

ONE = Demand("npu", 1)
BUSY = HostFacts("a", device="npu", cards=(0, 1), free=(), in_use=2)
IDLE = HostFacts("b", device="npu", cards=(0, 1), free=(0, 1))


def trial(id_: str, host: str = "a", share: int | None = None, **more: object) -> Waiting:
    return replace(Waiting(id_, host, ONE, "s", share, movable=True), **more)  # type: ignore[arg-type]


def moved(waiting: list[Waiting], *hosts: HostFacts, **load: object) -> list[tuple[str, str, int | None]]:
    steps = plan(waiting, {facts.name: facts for facts in hosts}, {"s": Load(**load)})  # type: ignore[arg-type]
    return [(step.id, step.target, step.share) for step in steps]


def test_the_oldest_go_as_far_as_there_is_room() -> None:
    waiting = [trial("x"), trial("y"), trial("z")]
    assert moved(waiting, BUSY, IDLE) == [("x", "b", None), ("y", "b", None)]
    assert plan([trial("x")], {"a": BUSY, "b": IDLE}, {"s": Load()}) == [Step("x", "a", "b")]


@pytest.mark.parametrize(
    "target",
    [
        replace(IDLE, free=()),
        replace(IDLE, device="mlu"),
        replace(IDLE, drained=True),
        replace(IDLE, reachable=False),
        replace(IDLE, max_cards=1, in_use=1),
        replace(IDLE, only_cards=()),
    ],
)
def test_nothing_goes_where_it_would_wait_too(target: HostFacts) -> None:
    assert moved([trial("x")], BUSY, target) == []


def test_what_starts_where_it_is_stays_and_what_waits_there_goes_first() -> None:
    assert moved([trial("x")], replace(BUSY, free=(1,)), IDLE) == []
    own = Waiting("w", "b", ONE)
    assert moved([own, trial("x"), trial("y")], BUSY, IDLE) == [("x", "b", None)]
    wide = Waiting("w", "b", Demand("npu", 2))
    assert moved([wide, trial("x")], BUSY, replace(IDLE, free=(0,))) == [], "cards that a wide job waits for stay its"


def test_only_what_may_move_moves() -> None:
    assert moved([trial("x", movable=False), trial("y", demand=Demand("npu", 1, hosts=("a",)))], BUSY, IDLE) == []
    assert moved([trial("x", demand=Demand("npu", 1, only="a"))], BUSY, IDLE) == []


def test_jobs_without_cards_go_by_their_own_limit() -> None:
    cpu = Demand("cpu", 0)
    full, free = HostFacts("a", cpu_jobs=1, cpu_running=1), HostFacts("b", cpu_jobs=2, cpu_running=1)
    assert moved([trial("x", demand=cpu), trial("y", demand=cpu)], full, free) == [("x", "b", None)]


def test_shares_never_add_up_to_more_than_parallel() -> None:
    waiting = [trial("x", share=1), trial("y", share=1)]
    own = {"live": {"a": 3}, "running": {"a": 1}, "shares": {"a": 1}}
    assert moved(waiting, BUSY, IDLE, parallel=1, **own) == []
    assert moved(waiting, BUSY, IDLE, parallel=2, **own) == [("x", "b", 1)]
    assert moved(waiting, BUSY, IDLE, parallel=3, **own) == [("x", "b", 1), ("y", "b", 2)]
    both = {"live": {"a": 3, "b": 2}, "running": {"a": 1, "b": 2}, "shares": {"a": 1, "b": 2}}
    assert moved(waiting, BUSY, IDLE, parallel=3, **both) == []
    done = {"live": {"a": 3, "b": 0}, "running": {"a": 1}, "shares": {"a": 1, "b": 2}}
    assert moved(waiting, BUSY, IDLE, parallel=3, **done) == [("x", "b", 2), ("y", "b", 2)]


def test_a_trial_that_its_share_holds_up_goes_although_cards_are_free() -> None:
    free = replace(BUSY, free=(1,), in_use=1)
    load = {"parallel": 2, "live": {"a": 2}, "running": {"a": 1}, "shares": {"a": 1}}
    assert moved([trial("x", share=1)], free, IDLE, **load) == [("x", "b", 1)]
