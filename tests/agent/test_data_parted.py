"""Files that arrive in ranges: what is there is known after any cut, and nothing is believed that is not."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from jobrunner.agent import parted

SIZE = 100_003


@pytest.fixture
def handle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(parted, "CHUNK", 1000)
    handle = os.open(tmp_path / "part", os.O_RDWR | os.O_CREAT, 0o600)
    yield handle
    os.close(handle)


def test_whatever_came_before_a_cut_is_known_after_it(handle: int) -> None:
    """Random pieces of random chunks, the file opened anew now and then as after a kill; at last it is whole."""
    content, dice, came = os.urandom(SIZE), random.Random(5), 0
    while True:
        part = parted.Parted(handle, SIZE)
        assert part.there == came and part.reached <= came
        for at, end in dice.sample(part.missing(), min(20, len(part.missing()))):
            piece = content[at : dice.randint(at + 1, end)]
            assert part.put(at, piece)
            assert not part.put(at, piece)  # twice is once
            came += len(piece)
        if not part.missing():
            break
    assert part.reached == SIZE
    part.finish()
    assert os.pread(handle, SIZE + 1, 0) == content


@pytest.mark.parametrize("there", [0, 999, 1000, 45_678, SIZE])
def test_a_plain_beginning_is_gone_on_from_and_made_again(handle: int, there: int) -> None:
    content = os.urandom(SIZE)
    os.pwrite(handle, content[:there], 0)
    part = parted.Parted(handle, SIZE)
    assert part.there == part.reached == there
    for at, end in part.missing()[1:]:
        assert part.put(at, content[at:end])
    assert part.shorten() == (SIZE if there == SIZE or len(part.missing()) == 0 else there)
    assert os.fstat(handle).st_size == part.reached


@pytest.mark.parametrize("damage", [b"JRparts2", b"\0" * 8])
def test_counts_that_are_none_are_not_believed(handle: int, damage: bytes) -> None:
    part = parted.Parted(handle, SIZE)
    assert part.put(0, b"x" * 1000)
    os.pwrite(handle, damage, SIZE)
    assert parted.Parted(handle, SIZE).there == 0
    os.pwrite(handle, (5000).to_bytes(8, "big"), SIZE + 24)  # more than a chunk holds
    assert parted.Parted(handle, SIZE).there == 0


def test_what_does_not_follow_or_is_too_long_is_not_written(handle: int) -> None:
    part = parted.Parted(handle, SIZE)
    assert not part.put(5, b"later")
    assert not part.put(0, b"x" * 1001)
    assert not part.put(SIZE + 10, b"x")
    assert part.there == 0 and os.pread(handle, 10, 0) == bytes(10)


def test_what_is_finished_is_not_written_to_any_more(handle: int) -> None:
    late, part = parted.Parted(handle, 1500), parted.Parted(handle, 1500)
    assert late.put(0, b"a" * 10)
    part.reread(0)
    assert part.put(10, b"b" * 990) and part.put(1000, b"c" * 500)
    part.finish()
    late.reread(10)
    assert not late.put(10, b"x") and os.pread(handle, 2000, 0) == b"a" * 10 + b"b" * 990 + b"c" * 500
