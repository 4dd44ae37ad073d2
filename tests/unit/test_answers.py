"""What a host says is looked at: what tells messages apart is no null, and what it lacks of a file is a part of it."""

from __future__ import annotations

from typing import Any

import pytest

from jobrunner.core.errors import HostError
from jobrunner.service.uplanes import _gaps
from jobrunner.transport import answers


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("collect", {"files": None, "skipped": [], "coming": 0}),
        ("collect", {"files": [], "skipped": None}),
        ("collect", {"files": [], "coming": None}),
        ("collect", {"files": [], "coming": True}),
        ("parts", {"lack": None}),
        ("parts", {"lack": [None]}),
        ("ranges", {"range": None}),
    ],
)
def test_what_tells_messages_apart_is_no_null(op: str, message: dict[str, Any]) -> None:
    assert answers.fault(op, message)


@pytest.mark.parametrize(
    ("op", "message"),
    [
        ("collect", {"files": [{}]}),  # an older agent says no more
        ("collect", {"files": [], "skipped": [], "coming": 0}),
        ("collect", {"sha256": None, "changed": True}),
        ("collect", {"working": True}),
        ("parts", {"lack": [[0, 4], [8, 9]]}),
        ("ranges", {"range": False}),
    ],
)
def test_what_agents_say_is_taken(op: str, message: dict[str, Any]) -> None:
    assert answers.fault(op, message) is None


def test_what_a_host_lacks_of_a_file_is_a_part_of_it() -> None:
    assert _gaps("lab", [], 9) == [] and _gaps("lab", [[0, 4], [4, 9]], 9) == [(0, 4), (4, 9)]
    for lack in (
        [[1]],
        [[1, 2, 3]],
        [[-5, 3]],
        [[9, 3]],
        [[3, 3]],
        [[4, 10]],
        [[0, 10**30]],
        [[4, 9], [0, 4]],
        [[0, 9]] * 2,
    ):
        with pytest.raises(HostError) as caught:
            _gaps("lab", lack, 9)
        assert caught.value.code == "bad_answer"
