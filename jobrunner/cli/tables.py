"""Tables: one model, written plainly (aligned, whole, no colours) or by rich on a terminal (fitted, coloured)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from jobrunner.cli.words import pad, visible, width

if TYPE_CHECKING:
    from rich.table import Table as RichTable

GAP = "  "


@dataclass(frozen=True)
class Column:
    """A column: its heading, right-aligned or not, and whether a narrow terminal may shorten it."""

    title: str
    right: bool = False
    shrinks: bool = False


@dataclass(frozen=True)
class Cell:
    """Text (any; made harmless here) and the colour it has on a terminal."""

    text: str
    style: str = ""


@dataclass
class Table:
    """Columns and rows. A cell may be given as plain text."""

    columns: list[Column]
    rows: list[list[Cell]] = field(default_factory=list)

    def add(self, *cells: Cell | str) -> None:
        """Append a row."""
        self.rows.append([Cell(visible(c.text), c.style) if isinstance(c, Cell) else Cell(visible(c)) for c in cells])

    def plain(self) -> str:
        """The table as aligned text, by the width that terminals give to each character."""
        lines = [[column.title for column in self.columns]] + [[cell.text for cell in row] for row in self.rows]
        widths = [max(width(line[i]) for line in lines) for i in range(len(self.columns))]
        return "".join(self._plain_line(line, widths) for line in lines)

    def _plain_line(self, line: list[str], widths: list[int]) -> str:
        padded = [
            pad(text, columns, right=column.right)
            for text, columns, column in zip(line, widths, self.columns, strict=True)
        ]
        return GAP.join(padded).rstrip() + "\n"

    def rich(self) -> RichTable:
        """The table for a terminal: it shortens what may be shortened, and never shows a control character."""
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for column in self.columns:
            table.add_column(
                column.title,
                justify="right" if column.right else "left",
                no_wrap=True,
                overflow="ellipsis",
                min_width=4 if column.shrinks else width(column.title),
                ratio=None,
            )
        for row in self.rows:
            table.add_row(*(Text(cell.text, style=cell.style) for cell in row))
        return table
