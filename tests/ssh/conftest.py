"""Hosts shared by the tests of the transport."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from jobrunner.lab.sshd import LoopbackHost
from jobrunner.transport.link import HostLink
from jobrunner.transport.settings import HostTarget
from tests.support.hosts import end_shared, link_threads, loopback, target_of, test_agent
from tests.support.waiting import eventually


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoopbackHost]:
    """One host for all tests of a file."""
    with loopback(tmp_path_factory.mktemp("host")) as running:
        yield running


@pytest.fixture(params=["fabric", "openssh"])
def transport(request: pytest.FixtureRequest) -> str:
    """What carries the connection: a test that takes this (or `reach`, `link`) runs once over each."""
    return str(request.param)


@pytest.fixture
def reach(transport: str, tmp_path: Path) -> Iterator[Callable[..., HostTarget]]:
    """How a host is reached over that transport; what is shared then is closed in the end."""
    sockets = tmp_path / "shared"

    def target(host: LoopbackHost, **limits: Any) -> HostTarget:
        return replace(target_of(host, sockets=sockets, **limits), transport=transport)

    yield target
    end_shared(sockets)


@pytest.fixture
def link(host: LoopbackHost, reach: Callable[..., HostTarget]) -> Iterator[HostLink]:
    """A link to that host, with the test agent at its other end."""
    with HostLink(reach(host), image=test_agent()) as opened:
        yield opened


@pytest.fixture(autouse=True)
def nothing_is_left_running() -> Iterator[None]:
    """Every test closes what it opened: no thread of a connection outlives it."""
    yield
    eventually(lambda: not link_threads(), 5, f"the end of {link_threads()}")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path
