"""From what a person types to a job."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.core.errors import NotFoundError, UsageError
from jobrunner.core.jobs import JobRow
from jobrunner.core.states import JobState
from jobrunner.ledger import Ledger


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    jobs = [
        ("k3aaaaaaaa", "train"), ("k3abbbbbbb", "train"), ("m5cccccccc", "k"), ("p7dddddddd", "评估"),
        ("q8eeeeeeee", "p7dd"), ("s9ffffffff", "s9ff"),
    ]  # fmt: skip
    with Ledger(tmp_path / "ledger.db") as opened:
        for number, (id_, name) in enumerate(jobs):
            row = JobRow(id_, name, JobState.STAGING, submitted_at=f"2026-12-01T09:00:{number:02d}.000000Z")
            opened.insert_staging(row, {}, "spec", None, {})
        yield opened


@pytest.mark.parametrize(
    ("word", "id_"),
    [
        ("k3aaaaaaaa", "k3aaaaaaaa"), ("k3aa", "k3aaaaaaaa"), ("k3ab", "k3abbbbbbb"), ("train", "k3abbbbbbb"),
        ("m", "m5cccccccc"), ("评估", "p7dddddddd"), ("p7d", "p7dddddddd"),
        ("k", "m5cccccccc"),  # a name wins over the few first letters of other ids
        ("s9ff", "s9ffffffff"),
    ],
)  # fmt: skip
def test_ids_prefixes_and_names(ledger: Ledger, word: str, id_: str) -> None:
    assert ledger.resolve(word) == id_


def test_what_may_be_several_jobs_lists_them(ledger: Ledger) -> None:
    with pytest.raises(UsageError) as caught:
        ledger.resolve("k3")
    assert "k3aaaaaaaa" in caught.value.message and "k3abbbbbbb" in caught.value.message
    with pytest.raises(UsageError, match="q8eeeeeeee"):
        ledger.resolve("p7dd")


@pytest.mark.parametrize("word", ["tain", "", "%", "k3*", "k3a_", "\udcff", "K3AA", "x\0y"])
def test_what_is_nothing_is_not_found(ledger: Ledger, word: str) -> None:
    with pytest.raises(NotFoundError) as caught:
        ledger.resolve(word)
    assert caught.value.exit_code == 5
    assert ("'train'" in caught.value.message) == (word == "tain")


def test_completion_gives_names_then_ids_newest_first(ledger: Ledger) -> None:
    assert ledger.completion_ids("k") == ["k", "k3abbbbbbb", "k3aaaaaaaa"]
    assert ledger.completion_ids("t") == ["train"]
    assert ledger.completion_ids("zz") == []
    assert len(ledger.completion_ids("", limit=3)) == 3
