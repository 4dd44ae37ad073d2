"""Forty scenarios with fixed seeds, several at a time; `make faults` plays any number of others."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.faults.agents import prepare
from tests.faults.host import NAMESPACES
from tests.faults.play import Play, Story
from tests.faults.scenario import draw

pytestmark = [pytest.mark.needs_sshd, pytest.mark.needs_tmux]
SEEDS = range(401, 441)
AT_A_TIME = 4


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], Story]]:
    """Every seed that was chosen is under way when the first test asks for its story."""
    top = tmp_path_factory.mktemp("faults")
    agents = prepare(top / "agents")
    chosen = [item.callspec.params["seed"] for item in request.session.items if "seed" in _parameters(item)]

    def one(seed: int) -> Story:
        story = Play(draw(seed, namespaces=NAMESPACES), top / str(seed), agents).run()
        shutil.rmtree(top / str(seed), ignore_errors=True)
        return story

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        stories: dict[int, Future[Story]] = {seed: pool.submit(one, seed) for seed in chosen}
        yield lambda seed: stories[seed].result()
        for story in stories.values():
            story.cancel()


def _parameters(item: pytest.Item) -> dict[str, object]:
    here = item.path == Path(__file__) and hasattr(item, "callspec")
    return dict(item.callspec.params) if here else {}  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_happens(played: Callable[[int], Story], seed: int) -> None:
    """No duplicate start, no wrong verdict, no lost or doubled byte, nothing damaged, nothing left behind."""
    assert played(seed).rows


def test_a_seed_is_a_scenario() -> None:
    """The same seed gives the same scenario, and the fixed ones meet every kind of fault."""
    assert [draw(seed) for seed in SEEDS] == [draw(seed) for seed in SEEDS]
    kinds = set().union(*(draw(seed).kinds for seed in SEEDS))
    from tests.faults import scenario

    assert kinds >= {*scenario.LINK, *scenario.CLIENT, *scenario.HOST, *scenario.NAMESPACE_HOST, *scenario.CLOCK}, kinds
