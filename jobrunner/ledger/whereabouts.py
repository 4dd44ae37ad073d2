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
    known = list(words or [])[:MOST_WORDS]
    if words is not None:
        marks = ", ".join("?" * len(known))
        sql += f" AND (id IN ({marks}) OR name IN ({marks}))"
    with contextlib.suppress(sqlite3.Error, OSError, ValueError):
        if not path.is_file():
            return []
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=0.2)
        try:
            return [str(alias) for (alias,) in connection.execute(sql, [*known, *known])]
        finally:
            connection.close()
    return []
