"""Files are asked for ahead: in order, not too much at once, and what then is wanted otherwise does no harm."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jobrunner.service import download
from jobrunner.service.data import EXCESS, _Asking, _Moved
from jobrunner.service.download import AHEAD_BYTES, save
from tests.unit.test_download_save import Cut, Host, sha


class Stream:
    """A channel whose agent answers each `get` in order, with a sign of life before; `most`: asked for at once."""

    def __init__(self, host: Host) -> None:
        self.files = list(host.files.values())
        self.coming: deque[tuple[bytes, bytes]] = deque()
        self.gets: list[tuple[int, int]] = []
        self.waiting = self.most = 0
        self.done = False

    def send_json(self, message: dict[str, Any]) -> None:
        if "done" in message:
            self.done = True
            return
        for index in message.get("each", ()):
            self.send_json({"get": index, "offset": 0})
        if "each" in message:
            return
        index, offset = message["get"], message["offset"]
        data = self.files[index]
        self.gets.append((index, offset))
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        self.coming.append((b"J", b'{"tick": true}'))
        self.coming.extend((b"B", data[at : at + 500]) for at in range(offset, len(data), 500))
        self.coming.append((b"E", b""))
        self.coming.append((b"J", b'{"tick": true}'))
        self.coming.append((b"J", json.dumps({"sha256": sha(data)}).encode()))

    def add_json(self, message: dict[str, Any]) -> None:
        self.send_json(message)  # it goes out at the latest when an answer is waited for

    def frame(self) -> tuple[bytes, bytes]:
        return self.coming.popleft()

    def pieces(self, most: int) -> Iterator[memoryview]:
        assert most >= EXCESS
        while (frame := self.frame())[0] != b"E":
            if frame[0] == b"B":
                yield memoryview(frame[1])

    def await_json(self, key: str) -> dict[str, Any]:
        while key not in (message := self.read_json()):
            assert "tick" in message
        return message

    def message(self, payload: bytes) -> dict[str, Any]:
        return json.loads(payload)

    def read_json(self) -> dict[str, Any]:
        kind, payload = self.frame()
        assert kind == b"J"
        message = self.message(payload)
        self.waiting -= "sha256" in message
        return message


def fetched(host: Host, to: Path) -> Stream:
    stream, moved = Stream(host), _Moved()
    moved.expect(host.listing())
    asking = _Asking(stream, host.listing(), moved)  # type: ignore[arg-type]
    done = save(host.listing(), asking, to, None, asking.ahead)
    assert not done.refused and [item.path for item in done.saved] == list(host.files)
    assert {path: (to / path).read_bytes() for path in host.files} == host.files
    assert not stream.coming, "everything that was asked for has been heard"
    assert moved.taken() and not moved.taken()
    return stream


def test_small_files_are_asked_for_ahead_and_each_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download, "AHEAD_FILES", 64)
    host = Host({f"f{number:03}": bytes([number % 251]) * (number * 13) for number in range(300)})
    stream = fetched(host, tmp_path)
    assert stream.gets == [(number, 0) for number in range(300)]
    assert 64 <= stream.most <= 64 + 32


def test_big_files_are_not(tmp_path: Path) -> None:
    host = Host({f"big{number}": bytes([number]) * (AHEAD_BYTES + 1) for number in range(3)})
    assert fetched(host, tmp_path).most == 1


def test_a_part_is_gone_on_with_at_its_byte(tmp_path: Path) -> None:
    host = Host({f"f{number}": bytes([65 + number]) * 5000 for number in range(6)})
    host.cut_at = 3000
    with pytest.raises(Cut):
        save([host.listing()[2]], lambda index, offset: host.fetch(2, offset), tmp_path)
    assert [path.stat().st_size for path in tmp_path.glob(".*.part")] == [3000]
    stream = fetched(host, tmp_path)
    assert stream.gets == [(0, 0), (1, 0), (2, 3000), (3, 0), (4, 0), (5, 0)]


def test_a_part_that_proves_wrong_is_asked_for_again_behind_what_was_asked_already(tmp_path: Path) -> None:
    host = Host({f"f{number}": bytes([65 + number]) * 5000 for number in range(4)})
    host.cut_at = 3000
    with pytest.raises(Cut):
        save([host.listing()[1]], lambda index, offset: host.fetch(1, offset), tmp_path)
    [part] = tmp_path.glob(".*.part")
    part.write_bytes(b"?" * 3000)
    stream = fetched(host, tmp_path)
    assert stream.gets == [(0, 0), (1, 3000), (1, 0), (2, 0), (3, 0)]


def test_files_that_come_unasked_are_taken_in_their_order_and_those_refused_are_heard(tmp_path: Path) -> None:
    names = ["../up", "a", "b", "c/../d", "e", "../last"]
    host = Host({name: name.encode() * 100 for name in names})
    stream, moved = Stream(host), _Moved()
    stream.send_json({"each": [0, 1, 2, 3]})
    asking = _Asking(stream, host.listing(), moved, 4)  # type: ignore[arg-type]
    done = save(host.listing(), asking, tmp_path, None, asking.ahead, None, 4)
    assert [item.path for item in done.saved] == ["a", "b", "e"] and len(done.refused) == 3
    assert stream.gets == [(0, 0), (1, 0), (2, 0), (3, 0), (4, 0)]
    asking.ahead([5])
    asking.finish()
    assert stream.done and not stream.coming


def test_bytes_that_come_again_and_again_get_no_pull_on() -> None:
    moved = _Moved()
    assert not moved.taken()
    for size in (1000, "x", None):
        moved.expect([{"path": "a", "size": size}])
    told = []
    for _ in range(8):
        moved.add(300)
        told.append(moved.taken())
    assert told == [True] * 7 + [False], "twice its size, not more"
    moved.expect([{"size": 5000}])  # it has grown
    moved.add(1)
    assert moved.taken() and not moved.taken()
