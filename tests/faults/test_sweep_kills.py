"""A sweep killed at random points (client, `serve`, `tick`, helpers, hosts): every point runs to its end exactly once.

`make test` plays one sweep with five kills; `make faults` (FULL=1) ten, with a hundred and more.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.faults.sweepkills import SweepPlay

FULL = os.environ.get("FULL") == "1"
pytestmark = pytest.mark.needs_sshd


@pytest.mark.parametrize(
    ("seed", "method", "points", "kills"),
    [(seed, "random" if seed % 3 else "tpe", 40, 12) for seed in range(10)] if FULL else [(5, "grid", 12, 5)],
)
def test_every_point_once(tmp_path: Path, seed: int, method: str, points: int, kills: int) -> None:
    story = SweepPlay(tmp_path, seed, points=points, kills=kills, method=method).run()
    assert len(story.done) >= kills
    print(
        f"{len(story.done)} kills in {story.seconds:.0f} s, {story.moved} moved, {story.retried} tried again: {story.done}"
    )
