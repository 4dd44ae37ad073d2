"""Hosts for whole commands: one a module, with simulated cards, and a client a test."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from tests.support.lab import Client, Lab
from tests.support.quick import QuickClient

os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A host with four simulated NPU cards."""
    with Lab(tmp_path_factory.mktemp("lab")) as host:
        yield host


@pytest.fixture
def client(lab: Lab, tmp_path: Path) -> QuickClient:
    """A laptop that knows the host and has nothing in its ledger; its commands run within the test, `start` apart."""
    return QuickClient(tmp_path / "client", lab)


@pytest.fixture
def program(lab: Lab, tmp_path: Path) -> Client:
    """The same, and each command is a process of its own, as a person starts it."""
    return Client(tmp_path / "client", lab)
