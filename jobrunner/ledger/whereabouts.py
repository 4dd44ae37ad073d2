"""Where jobs are, read before a ledger is opened: for hints only. Nothing is written, and nothing goes wrong aloud."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

MOST_WORDS = 20


def hosts(path: Path, words: Sequence[str] | None, *, live: bool) -> list[str]:
    """The aliases of hosts that have the jobs of these ids or names (None: all of them); with `live` those that are
    not over. [] where the ledger cannot be read."""
    sql = "SELECT DISTINCT host FROM jobs WHERE host IS NOT NULL"
    if live:
        sql += " AND final = 0"
    return [str(row[0]) for row in _read(path, sql, words)]


def has_checkpoint(path: Path, words: Sequence[str], size: int) -> bool:
    """True if one of these jobs is known to have a checkpoint of `size` bytes or more."""
    sql = f"""SELECT 1 FROM jobs WHERE EXISTS (
        SELECT 1 FROM checkpoints WHERE job = jobs.id AND size >= {int(size)} AND COALESCE(removed, 0) = 0)"""
    return bool(_read(path, sql, words))


def _read(path: Path, sql: str, words: Sequence[str] | None) -> list[tuple[object, ...]]:
    known = list(words or [])[:MOST_WORDS]
    if words is not None:
        marks = ", ".join("?" * len(known))
        sql += f" AND (id IN ({marks}) OR name IN ({marks}))"
    with contextlib.suppress(sqlite3.Error, OSError, ValueError):
        if not path.is_file():
            return []
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=0.2)
        try:
            return connection.execute(sql, [*known, *known]).fetchall()
        finally:
            connection.close()
    return []
