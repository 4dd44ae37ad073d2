"""Rows in and out of tables, in the few forms that the ledger needs: every command writes some, and these cost nothing
to load. Tables and their columns are sqlite_utils' business (schema.py)."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
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
        conversions = conversions or {}
        for row in rows:
            columns = ", ".join(f'"{name}"' for name in row)
            places = ", ".join(conversions.get(name, "?") for name in row)
            self.conn.execute(f'{_VERB[on_conflict]} INTO "{table}" ({columns}) VALUES ({places})', tuple(row.values()))
