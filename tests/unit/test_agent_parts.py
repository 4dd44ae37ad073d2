"""Ranges of a content that two links bring: what is there already is passed over, what leaves a gap is refused."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from jobrunner.agent import blobs, parted, parts, spare
from jobrunner.agent.files import AgentError
from jobrunner.agent.layout import Layout


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


@pytest.fixture
def layout(tmp_path: Path) -> Any:
    return Layout(os.fsencode(tmp_path), "i0123456789abcd")  # type: ignore[no-untyped-call]


def part_of(layout: Any, data: bytes, age: float = 0.0) -> Path:
    """A part that holds a plain beginning of a content, of that age in days."""
    path = Path(os.fsdecode(blobs.part_of(layout, hashlib.sha256(data).hexdigest())))  # type: ignore[no-untyped-call]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data[: len(data) // 2])
    at = time.time() - age * 86400
    os.utime(path, (at, at))
    return path


def test_what_was_given_up_goes_after_a_day_and_what_goes_on_stays(layout: Any) -> None:
    young, old, live = (part_of(layout, bytes([number]) * 1000, age) for number, age in enumerate((0.9, 1.1, 1.1)))
    other = old.with_name(".tmp-0123456789abcdef")
    other.write_bytes(b"x")
    os.utime(other, (0, 0))
    content = old.with_name("f" * 64)
    content.write_bytes(b"x")
    os.utime(content, (0, 0))
    with live.open("r+b") as keeper:
        fcntl.flock(keeper, fcntl.LOCK_EX)
        parts.sweep(layout)  # type: ignore[no-untyped-call]
        assert [path.exists() for path in (young, old, live, other, content)] == [True, False, True, False, True]
    parts.sweep(layout)  # type: ignore[no-untyped-call]
    assert not live.exists() and young.exists()


class Keeper:
    """The side of a client that waits for a keeper's answer; `then` happens when it has heard what is lacking."""

    def __init__(self, layout: Any, then: Any) -> None:
        self.layout, self.then = layout, then

    def send_json(self, message: dict[str, Any]) -> None:
        if "lack" in message:
            self.then()

    def gone(self) -> bool:
        return True


def keep(layout: Any, data: bytes, then: Any) -> Any:
    request = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "keep": True}
    return parts.run(Keeper(layout, then), request)  # type: ignore[no-untyped-call]


def test_the_name_of_a_part_that_is_anothers_by_now_is_left_alone(layout: Any) -> None:
    data = os.urandom(1000)
    path = part_of(layout, data)

    def fill_and_replace() -> None:
        with path.open("r+b") as stream:
            parted.Parted(stream.fileno(), 1000).put(500, data[500:])  # type: ignore[no-untyped-call]
        path.rename(path.with_name("was"))
        path.write_bytes(b"another's")

    with pytest.raises(AgentError, match="taken away"):
        keep(layout, data, fill_and_replace)
    assert path.read_bytes() == b"another's" and len(list(path.parent.iterdir())) == 2


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_where_the_disk_is_full_the_room_is_given_back(
    layout: Any, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    data = os.urandom(1000)
    path = part_of(layout, data)

    def fail(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(parted, "write_at", fail)
    for then in (lambda: keep(layout, data, None), lambda: parts._take(Channel([]), os.fsencode(path), 1000)):  # type: ignore[no-untyped-call]
        with pytest.raises(OSError):
            then()
        assert path.exists() is (number == errno.EIO)
        path.write_bytes(data[:500])


def test_what_is_there_needs_no_room_again(layout: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blobs, "PARTED", 100_000)
    data = os.urandom(200_000)
    digest = hashlib.sha256(data).hexdigest()
    assert blobs.gathered(layout, digest, 200_000) == 0  # type: ignore[no-untyped-call]
    part_of(layout, data)
    assert 100_000 <= blobs.gathered(layout, digest, 200_000) <= 110_000  # type: ignore[no-untyped-call]
    assert blobs.gathered(layout, digest, 99_999) == 0  # type: ignore[no-untyped-call]


def test_no_room_for_a_spare_process_is_no_trouble(monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    one: Any = spare.Spare()  # type: ignore[no-untyped-call]
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", full)
        one.make(lambda: None)
    assert not one.descriptors() and one.give(["x"], []) is None
