"""Tables: one model, written plainly (aligned, whole, no colours) or for a terminal (fitted to its width, coloured)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from jobrunner.cli.words import pad, shorten, visible, width
from jobrunner.core.values import dataclass

if TYPE_CHECKING:
    from rich.text import Text

GAP = "  "
_FIRST = 100  # added to what an empty column `leaves` by
_COMFORTABLE, _NARROWEST = 8, 4  # columns that a shortened cell keeps: while others can be left out, and at the end


@dataclass(frozen=True)
class Column:
    """A column: its heading, and what happens on a narrow terminal.

    `shrinks`: its cells may be shortened. `leaves`: it may be left out, the column with the highest number first.
    """

    title: str
    right: bool = False
    shrinks: bool = False
    leaves: int = 0


@dataclass(frozen=True)
class Cell:
    """Text (any; made harmless by the table) and the colour it has on a terminal."""

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
        lines = [[column.title for column in self.columns], *([cell.text for cell in row] for row in self.rows)]
        widths = self._natural_widths()
        return "".join(self._plain_line(line, widths) for line in lines)

    def fitted(self, columns: int) -> Text:
        """The table for a terminal so many columns wide."""
        from rich.text import Text

        widths = fit(self._columns_by_worth(), self._natural_widths(), columns)
        heads = [Cell(column.title, "bold") for column in self.columns]
        text = Text(no_wrap=True)
        for line, row in enumerate([heads, *self.rows]):
            text.append("\n" if line else "")
            shown = [
                (pad(shorten(cell.text, room), room, right=column.right), cell.style)
                for cell, column, room in zip(row, self.columns, widths, strict=True)
                if room is not None
            ]
            for number, (piece, style) in enumerate(shown):
                text.append(GAP if number else "").append(piece, style)
        return text

    def _columns_by_worth(self) -> list[Column]:
        """The columns; one that may be left out, or shortened, and tells nothing in any row is the first to leave."""
        empty = [
            bool(self.rows) and all(row[i].text in ("", "-") for row in self.rows) for i in range(len(self.columns))
        ]
        return [
            replace(column, leaves=_FIRST + column.leaves) if none and (column.leaves or column.shrinks) else column
            for column, none in zip(self.columns, empty, strict=True)
        ]

    def _natural_widths(self) -> list[int]:
        texts = [[column.title, *(row[i].text for row in self.rows)] for i, column in enumerate(self.columns)]
        return [max(map(width, column)) for column in texts]

    def _plain_line(self, line: list[str], widths: list[int]) -> str:
        padded = [
            pad(text, columns, right=column.right)
            for text, columns, column in zip(line, widths, self.columns, strict=True)
        ]
        return GAP.join(padded).rstrip() + "\n"


def fit(columns: Sequence[Column], natural: Sequence[int], limit: int) -> list[int | None]:
    """Widths that fit into `limit` if that is possible: shorten, then leave columns out (None), then shorten more."""
    kept = set(range(len(columns)))
    while True:
        widths = _shrink(columns, natural, kept, limit, _COMFORTABLE)
        movable = [i for i in kept if columns[i].leaves]
        if _total(widths, kept) <= limit or not movable:
            break
        kept.remove(max(movable, key=lambda i: columns[i].leaves))
    if _total(widths, kept) > limit:
        widths = _shrink(columns, natural, kept, limit, _NARROWEST)
    return [widths[i] if i in kept else None for i in range(len(columns))]


def _shrink(columns: Sequence[Column], natural: Sequence[int], kept: set[int], limit: int, least: int) -> list[int]:
    """Take from the widest column that may be shortened, again and again, until the rest fits or none can give more."""
    widths = list(natural)
    while _total(widths, kept) > limit:
        able = [i for i in kept if columns[i].shrinks and widths[i] > least]
        if not able:
            break
        widths[max(able, key=lambda i: widths[i])] -= 1
    return widths


def _total(widths: Sequence[int], kept: set[int]) -> int:
    return sum(widths[i] for i in kept) + len(GAP) * (len(kept) - 1)
