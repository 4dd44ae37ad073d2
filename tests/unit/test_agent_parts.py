"""Ranges of a content that two links bring: what is there already is passed over, what leaves a gap is refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import parted, parts, spare
from jobrunner.agent.files import AgentError


class Channel:
    """What a client sends on one channel; `between` happens before the second frame of bytes."""

    def __init__(self, frames: list[tuple[bytes, bytes]], between: Any = None) -> None:
        self.frames, self.between = frames, between

    def read_frame(self) -> tuple[bytes, bytes]:
        if self.between is not None and len(self.frames) == 2:
            self.between()
        return self.frames.pop(0)


def place(at: int) -> tuple[bytes, bytes]:
    return b"J", json.dumps({"from": at}).encode()


DONE = (b"J", b'{"done": true}')


def test_what_another_link_has_brought_meanwhile_is_passed_over(tmp_path: Path) -> None:
    data, path = os.urandom(1000), tmp_path / "part"
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    other: Any = parted.Parted(handle, len(data))  # type: ignore[no-untyped-call]
    late = Channel([place(0), (b"B", data[:300]), (b"B", data[300:]), DONE], lambda: other.put(300, data[300:450]))
    other.refresh()
    first = Channel([place(0), (b"B", data[:300]), DONE])
    parts._take(first, os.fsencode(path), len(data))  # type: ignore[no-untyped-call]
    other.refresh()
    parts._take(late, os.fsencode(path), len(data))  # type: ignore[no-untyped-call]
    other.refresh()
    assert other.reached == len(data) and parted.read_at(handle, len(data), 0) == data  # type: ignore[no-untyped-call]
    with pytest.raises(AgentError, match="follow"):
        gap = tmp_path / "gap"
        gap.touch()
        parts._take(Channel([place(500), (b"B", data[500:]), DONE]), os.fsencode(gap), 1000)  # type: ignore[no-untyped-call]
    os.close(handle)


def test_no_room_for_a_spare_process_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    one: Any = spare.Spare()  # type: ignore[no-untyped-call]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", full)
        one.make(lambda: None)
    assert not one.descriptors() and one.give(["x"], []) is None
