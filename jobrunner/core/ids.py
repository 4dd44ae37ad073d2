"""Ids of jobs, sweeps and schedules: short, easy to type and to read aloud."""

from __future__ import annotations

import hashlib

# No 0/o, 1/l/i: an id is read from a screen and typed by people. 23 letters come first, then 31 signs each.
_FIRST = "abcdefghjkmnpqrstuvwxyz"
_REST = "abcdefghjkmnpqrstuvwxyz23456789"
LENGTH = 10
_ALLOWED = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")


def new_id(entropy: bytes) -> str:
    """An id of ten signs made from at least eight random bytes; the same bytes give the same id."""
    if len(entropy) < 8:
        raise ValueError("an id needs at least eight random bytes")
    number = int.from_bytes(hashlib.sha256(entropy).digest(), "big")
    number, first = divmod(number, len(_FIRST))
    signs = [_FIRST[first]]
    for _ in range(LENGTH - 1):
        number, place = divmod(number, len(_REST))
        signs.append(_REST[place])
    return "".join(signs)


def is_id(text: str) -> bool:
    """True for what can be a whole id: 8 to 16 of `a-z0-9`, first a letter."""
    return 8 <= len(text) <= 16 and "a" <= text[0] <= "z" and _ALLOWED.issuperset(text)
