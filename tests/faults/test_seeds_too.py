"""Scenarios with fixed seeds, several at a time: the other half of them, on another worker."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.faults.play import Story
from tests.faults.seeds import HALVES

pytestmark = [pytest.mark.needs_sshd, pytest.mark.needs_tmux]


@pytest.mark.parametrize("seed", HALVES[1])
def test_whatever_happens(played: Callable[[int], Story], seed: int) -> None:
    """No duplicate start, no wrong verdict, no lost or doubled byte, nothing damaged, nothing left behind."""
    assert played(seed).rows
