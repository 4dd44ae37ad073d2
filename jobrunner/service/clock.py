"""The client's clock, as text."""

from __future__ import annotations

from datetime import datetime, timezone


def now() -> str:
    """UTC now, as `2026-12-01T09:30:00.123456Z`."""
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def age_seconds(stamp: str | None) -> float | None:
    """Seconds since a stamp by this machine's clock; None if it cannot be read."""
    if not stamp:
        return None
    try:
        then = datetime.strptime(stamp, "%Y-%m-%dT%H:%M:%S.%fZ").replace(tzinfo=timezone.utc)
    except ValueError:
        return None
    return (datetime.now(timezone.utc) - then).total_seconds()
