"""Amounts as people read them: one way for all that is shown."""

from __future__ import annotations


def size(count: float) -> str:
    """Bytes in powers of 1,024: `512 B`, `3.4 MB`, `120 GB`."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TB"


def counted(number: int, noun: str) -> str:
    """`1 host`, `2 hosts`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
