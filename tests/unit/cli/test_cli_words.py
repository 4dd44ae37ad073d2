"""Values as people read them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrunner.cli import words
from jobrunner.core.errors import UsageError

NOW = datetime(2026, 12, 1, 9, 30, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0 s"),
        (59.9, "59 s"),
        (60, "1 min"),
        (130, "2 min 10 s"),
        (3600, "1 h"),
        (11100, "3 h 5 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_span(seconds, expected):
    assert words.span(seconds) == expected


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "just now"), (5, "5 s ago"), (300, "5 min ago"), (86400 * 3, "3 d ago"), (-120, "in 2 min")],
)
def test_ago(seconds, expected):
    at = (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    assert words.ago(at, NOW) == expected


def test_unknown_times_are_a_dash():
    assert words.ago(None, NOW) == words.local("nonsense") == words.lasted(None, None, NOW) == "-"


def test_what_still_runs_is_counted_up_to_now():
    assert words.lasted("2026-12-01T09:29:00.000000Z", None, NOW) == "1 min"
    assert words.lasted("2026-12-01T09:29:00.000000Z", "2026-12-01T09:29:05.000000Z", NOW) == "5 s"


@pytest.mark.parametrize(
    ("count", "expected"),
    [(None, "-"), (0, "0 B"), (1023, "1023 B"), (1536, "1.5 kB"), (200 << 20, "200 MB"), (3 << 40, "3.0 TB")],
)
def test_size(count, expected):
    assert words.size(count) == expected


@pytest.mark.parametrize(("cards", "expected"), [([], "-"), ([3], "3"), ([0, 1, 2, 3, 6], "0-3,6"), ([5, 1], "1,5")])
def test_numbers(cards, expected):
    assert words.numbers(cards) == expected


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43200), ("3d", 259200), ("90", 90), ("1h30m", 5400)]
)
def test_duration(text, seconds):
    assert words.duration(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5s", "1y", "\x1b[2J"])
def test_bad_durations_are_refused(text):
    with pytest.raises(UsageError) as caught:
        words.duration(text)
    assert "\x1b" not in caught.value.message and caught.value.remedy


def test_visible_shows_what_would_hide():
    assert words.visible("a\x1b[2Jb\nc\u202ed\t训") == "a\\x1b[2Jb\\nc\\u202ed\\t训"


@given(st.text())
def test_visible_is_one_harmless_line(text):
    result = words.visible(text)
    assert len(result.splitlines()) <= 1 and "\x1b" not in result and "\r" not in result


@pytest.mark.parametrize(("text", "columns"), [("abc", 3), ("训练", 4), ("e\u0301", 1), ("a训b", 4)])
def test_width(text, columns):
    assert words.width(text) == columns
    assert words.width(words.pad(text, 10)) == words.width(words.pad(text, 10, right=True)) == 10
