"""File names as bytes, as text from which the same bytes come again, and as something to show."""

from __future__ import annotations


def to_text(name: bytes) -> str:
    """UTF-8; bytes that are none become lone surrogates."""
    return name.decode("utf-8", "surrogateescape")


def to_bytes(name: str) -> bytes:
    """The bytes that `to_text` was given."""
    return name.encode("utf-8", "surrogateescape")


def shown(name: str) -> str:
    """A name for a message: what is no printable text in it is escaped."""
    return name if name.isprintable() else ascii(name)[1:-1]
