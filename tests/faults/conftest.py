"""Scenarios of seeds, played several at a time for the tests of a file."""

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

AT_A_TIME = 2


@pytest.fixture(scope="session")
def agents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a first contact leaves on a host."""
    return prepare(tmp_path_factory.mktemp("agents") / "agents")


@pytest.fixture(scope="module")
def played(
    request: pytest.FixtureRequest, agents: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[int], Story]]:
    """Every seed of the file that was chosen is under way when the first test asks for its story."""
    top = tmp_path_factory.mktemp("faults")
    chosen = [seed for item in request.session.items if item.path == request.path for seed in _seeds(item)]

    def one(seed: int) -> Story:
        story = Play(draw(seed, namespaces=NAMESPACES), top / str(seed), agents).run()
        shutil.rmtree(top / str(seed), ignore_errors=True)
        return story

    with ThreadPoolExecutor(AT_A_TIME) as pool:
        stories: dict[int, Future[Story]] = {seed: pool.submit(one, seed) for seed in chosen}
        yield lambda seed: stories[seed].result()
        for story in stories.values():
            story.cancel()


def _seeds(item: pytest.Item) -> list[int]:
    return [item.callspec.params["seed"]] if "seed" in getattr(item, "fixturenames", ()) else []  # type: ignore[attr-defined]
