"""Rows in and out of tables, in the few forms that the ledger needs: every command writes some, and these cost nothing
to load. Tables and their columns are sqlite_utils' business (schema.py)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal

Conflict = Literal["fail", "ignore", "replace"]
_VERB = {"fail": "INSERT", "ignore": "INSERT OR IGNORE", "replace": "INSERT OR REPLACE"}


class Writer:
    """Changes inside one transaction of `Store.write`. Names of tables and columns come from this package only."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.conn = connection

    def execute(self, sql: str, values: Sequence[Any] = ()) -> sqlite3.Cursor:
        """Run one statement."""
        return self.conn.execute(sql, values)

    def insert(
        self,
        table: str,
        rows: Iterable[Mapping[str, Any]],
        on_conflict: Conflict = "fail",
        conversions: Mapping[str, str] | None = None,
    ) -> None:
        """Insert rows, mappings of column to value. `conversions` are SQL expressions of `?` for some columns."""
        special = tuple(conversions.items()) if conversions else ()
        for row in rows:
            self.conn.execute(_insert(table, tuple(row), on_conflict, special), tuple(row.values()))

    def update(self, table: str, key: str, value: Any, changes: Mapping[str, Any]) -> None:
        """Change some columns, at least one, of the rows that have a value in the column `key`."""
        self.conn.execute(_update(table, tuple(changes), key), (*changes.values(), value))


@lru_cache(maxsize=64)
def _insert(table: str, names: tuple[str, ...], on_conflict: Conflict, special: tuple[tuple[str, str], ...]) -> str:
    conversions = dict(special)
    columns = ", ".join(f'"{name}"' for name in names)
    places = ", ".join(conversions.get(name, "?") for name in names)
    return f'{_VERB[on_conflict]} INTO "{table}" ({columns}) VALUES ({places})'


@lru_cache(maxsize=64)
def _update(table: str, names: tuple[str, ...], key: str) -> str:
    columns = ", ".join(f'"{name}" = ?' for name in names)
    return f'UPDATE "{table}" SET {columns} WHERE "{key}" = ?'
