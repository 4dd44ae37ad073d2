"""Waiting for a condition, never for a second."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], seconds: float = 10.0, what: str = "the condition") -> T:
    """Poll until `condition()` is true, and return what it gave; AssertionError after `seconds`."""
    ends = time.monotonic() + seconds
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > ends:
            raise AssertionError(f"{what} did not come true within {seconds} s (last: {found!r})")
        time.sleep(0.01)
