"""Scenarios with fixed seeds, several at a time: one half of them. `make faults` plays any number of others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults import scenario
from tests.faults.play import Story
from tests.faults.scenario import draw
from tests.faults.seeds import FIXED, HALVES

pytestmark = [pytest.mark.needs_sshd, pytest.mark.needs_tmux]


@pytest.mark.parametrize("seed", HALVES[0])
def test_whatever_happens(played: Callable[[int], Story], seed: int) -> None:
    """No duplicate start, no wrong verdict, no lost or doubled byte, nothing damaged, nothing left behind."""
    assert played(seed).rows


def test_a_seed_is_a_scenario() -> None:
    """The same seed gives the same scenario, and the fixed ones meet every kind of fault."""
    assert len(set(FIXED)) == 40 and sorted(FIXED) == sorted(sum(HALVES, ()))
    drawn = [draw(seed) for seed in FIXED]
    assert drawn == [draw(seed) for seed in FIXED]
    kinds = set().union(*(one.kinds for one in drawn))
    assert kinds >= {*scenario.LINK, *scenario.CLIENT, *scenario.HOST, *scenario.NAMESPACE_HOST, *scenario.CLOCK}, kinds
    assert {one.launcher for one in drawn} == {"nohup", "tmux"} and {one.narrow for one in drawn} == set(
        scenario.NARROW
    )
    assert {one.cards for one in drawn} == {0, 1, 2} and {fault.phase for one in drawn for fault in one.faults} == {
        "submit", "run",
    }  # fmt: skip
    for part in ("retry", "timeout", "pull_fault", "retry_after", "follow", "fresh_host", "ballast", "cancel_at"):
        assert any(getattr(one, part) for one in drawn) and not all(getattr(one, part) for one in drawn), part
