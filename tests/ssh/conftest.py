"""Hosts shared by the tests of the transport."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.lab.sshd import LoopbackHost
from jobrunner.transport.link import HostLink
from tests.support.hosts import link_threads, loopback, target_of, test_agent
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHost]:
    """One host for all tests of a file."""
    with loopback(tmp_path_factory.mktemp("host")) as running:
        yield running


@pytest.fixture
def link(host: LoopbackHost) -> Iterator[HostLink]:
    """A link to that host, with the test agent at its other end."""
    with HostLink(target_of(host), image=test_agent()) as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Every test closes what it opened: no thread of a connection outlives it."""
    yield
    eventually(lambda: not link_threads(), 5, f"the end of {link_threads()}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
