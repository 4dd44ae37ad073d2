"""`serve`: a tick whenever something is due, until somebody ends it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from datetime import datetime, timezone

from jobrunner.core.duetimes import instant
from jobrunner.core.errors import JobrunnerError
from jobrunner.service.clock import now
from jobrunner.service.session import Session
from jobrunner.service.tick import TickResult, tick

LIVE_S = 15.0
"""While jobs live they are looked at this often: sweeps go on, waiting trials move, models are promoted."""

IDLE_S = 300.0
"""Without live jobs, unless something is due before."""

SLICE_S = 5.0
"""A computer that slept does not count those hours as slept here: the clock is looked at again after so long."""


def serve(
    open_session: Callable[[], AbstractContextManager[Session]],
    *,
    every: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[TickResult]:
    """What each tick did, for ever. Each has a session of its own, so that changed hosts files count.

    `every` is how many seconds lie between two ticks at most (default: 15 while jobs live, else 300). A tick that
    cannot even begin (a locked ledger, a hosts file with a fault) is a result with that error; the next comes anyway.
    """
    while True:
        try:
            with open_session() as session:
                result = tick(session)
        except JobrunnerError as error:
            result = TickResult(at=now(), errors=[error])
        yield result
        begun = time.monotonic()
        while (left := _left(result, every, time.monotonic() - begun)) > 0:
            sleep(min(left, SLICE_S))


def _left(result: TickResult, every: float | None, waited: float) -> float:
    """Seconds until the next tick, by the clock as it is now."""
    longest = every if every is not None else LIVE_S if result.live or result.busy or result.errors else IDLE_S
    left = longest - waited
    if result.next_at is not None:
        left = min(left, (instant(result.next_at) - datetime.now(timezone.utc)).total_seconds())
    return left
