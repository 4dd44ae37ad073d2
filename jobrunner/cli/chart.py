"""Curves as text: dots of Braille where there is one curve or colour, letters where there is neither. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from jobrunner.cli.words import pad, shorten, width
from jobrunner.core.values import dataclass

COLORS = ("cyan", "yellow", "green", "magenta", "red", "blue", "bright_black")
_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))  # of a Braille character, by column and row
_BLANK = 0x2800


@dataclass(frozen=True)
class Line:
    """One curve: points of x and y in their order. What is no finite number breaks it."""

    label: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Piece:
    """A part of a line of text, in one style."""

    text: str
    style: str = ""


Row = list[Piece]


@dataclass(frozen=True)
class Look:
    """What the output can show: its size in characters, whether it has colours, whether it has Braille."""

    columns: int = 80
    rows: int = 15
    color: bool = False
    braille: bool = True


@dataclass(frozen=True)
class Axis:
    """The axis along the bottom of a scatter: numbers, or places 0, 1, … that are called by `words`."""

    log: bool = False
    words: tuple[str, ...] = ()


def chart(title: str, lines: Sequence[Line], look: Look, *, log: bool = False) -> list[Row]:
    """The rows of a chart: a title, the curves with their axes, and which is which.

    With `log` the values go by their logarithms; those that have none are left out.
    """
    shown = [Line(line.label, _scaled(line.points, log)) for line in lines]
    finite = [point for line in shown for point in line.points if all(map(math.isfinite, point))]
    rows: list[Row] = [[Piece(shorten(title, look.columns), "bold")]]
    if not finite:
        return [*rows, [Piece("  no finite values" + (" above 0" if log else ""))], *_legend(lines, look)]
    xs, ys = _ends(x for x, _ in finite), _ends(y for _, y in finite)
    labels = [brief(10**y if log else y) for y in (ys[1], (ys[0] + ys[1]) / 2, ys[0])]
    margin = max(map(len, labels))
    letters = len(lines) > 1 and not look.color
    canvas = _Canvas(max(10, look.columns - margin - 2), max(3, look.rows), xs, ys)
    for number, line in enumerate(shown):
        canvas.draw(line.points, number, every=not letters)
    rows += _framed(canvas, labels, look, letters=letters)
    left, right = brief(xs[0]), brief(xs[1])
    gap = max(1, canvas.columns - len(left) - len(right))
    rows.append([Piece(" " * (margin + 2) + left + " " * gap + right)])
    return rows + _legend(lines, look)


def scatter(
    title: str, points: Sequence[tuple[float, float]], look: Look, *, across: Axis, log: bool = False
) -> list[Row]:
    """The rows of a scatter: a dot for each point, and a mark for the first one, which is the best.

    With `log` the values go by their logarithms. Points that are no finite numbers are left out, and counted.
    """
    shown = [(x if not across.log else math.log10(x) if x > 0 else math.nan, y) for x, y in points]
    shown = _scaled(shown, log)
    finite = [point for point in shown if all(map(math.isfinite, point))]
    rows: list[Row] = [[Piece(shorten(title, look.columns), "bold")]]
    if not finite:
        return [*rows, [Piece("  no finite values")]]
    xs = (-0.5, len(across.words) - 0.5) if across.words else _ends(x for x, _ in finite)
    ys = _ends(y for _, y in finite)
    labels = [brief(10**y if log else y) for y in (ys[1], (ys[0] + ys[1]) / 2, ys[0])]
    canvas = _Canvas(max(10, look.columns - max(map(len, labels)) - 2), max(3, look.rows), xs, ys)
    for point in reversed(finite):
        canvas.draw([point], 0, every=False)
    if shown and all(map(math.isfinite, shown[0])):
        canvas.mark(shown[0], "◆" if look.braille else "@")
    rows += _framed(canvas, labels, look, letters=False)
    margin = max(map(len, labels)) + 2
    rows.append([Piece(" " * margin + _below(across, xs, canvas.columns))])
    left = len(shown) - len(finite)
    sign = "◆" if look.braille else "@"
    rows.append([Piece(f"{' ' * margin}{sign} best" + (f"; {left} not finite, not drawn" if left else ""))])
    return rows


def _below(across: Axis, xs: tuple[float, float], columns: int) -> str:
    """What stands under a scatter: the ends of a range, or each kind under its place as far as there is room."""
    if not across.words:
        left, right = (brief(10**x if across.log else x) for x in xs)
        return left + " " * max(1, columns - len(left) - len(right)) + right
    room = max(2, columns // len(across.words))
    if room < 4:
        ends = shorten(across.words[0], columns // 2 - 1), shorten(across.words[-1], columns // 2 - 1)
        return ends[0] + " " * max(1, columns - width(ends[0]) - width(ends[1])) + ends[1]
    cells = (shorten(word, room - 1) for word in across.words)
    return "".join(" " * ((room - width(word)) // 2) + pad(word, room - (room - width(word)) // 2) for word in cells)


def _framed(canvas: _Canvas, labels: Sequence[str], look: Look, *, letters: bool) -> list[Row]:
    """The rows of a canvas behind its axis, with its greatest, middle and least value."""
    margin, axis = max(map(len, labels)), "│" if look.braille else "|"
    by_row = {0: labels[0], canvas.rows // 2: labels[1], canvas.rows - 1: labels[2]}
    return [
        [Piece(f"{by_row.get(at, ''):>{margin}} {axis}"), *canvas.row(at, look, letters)] for at in range(canvas.rows)
    ]


def brief(value: float) -> str:
    """A number in a few characters: `0.0123`, `1.2e-05`, `1200`."""
    return f"{value:.4g}"


def _scaled(points: Iterable[tuple[float, float]], log: bool) -> list[tuple[float, float]]:
    if not log:
        return list(points)
    return [(x, math.log10(y) if y > 0 and math.isfinite(y) else math.nan) for x, y in points]


def _ends(values: Iterable[float]) -> tuple[float, float]:
    """The least and the greatest; a little apart if they are the same."""
    known = list(values)
    low, high = min(known), max(known)
    if low == high:
        room = abs(low) * 0.05 or 0.5
        return low - room, high + room
    return low, high


def _legend(lines: Sequence[Line], look: Look) -> list[Row]:
    """Which curve is which, with its last value, and what of it could not be drawn."""
    rows: list[Row] = []
    for number, line in enumerate(lines):
        style = COLORS[number % len(COLORS)] if look.color else ""
        mark = "──" if look.color and look.braille else _letter(number) if len(lines) > 1 else ""
        odd = [y for _, y in line.points if not math.isfinite(y)]
        told = [f"last {brief(line.points[-1][1])}"] if line.points else []
        told += [f"{sum(map(math.isnan, odd))} nan"] if any(map(math.isnan, odd)) else []
        told += [f"{sum(map(math.isinf, odd))} inf"] if any(map(math.isinf, odd)) else []
        rows.append([Piece(f"  {mark} " if mark else "  ", style), Piece(f"{line.label}: {', '.join(told)}")])
    return rows


def _letter(number: int) -> str:
    return chr(ord("a") + number % 26)


class _Canvas:
    """Dots, two a column and four a row of characters; of each character the curve that came last."""

    def __init__(self, columns: int, rows: int, xs: tuple[float, float], ys: tuple[float, float]) -> None:
        self.columns, self.rows = columns, rows
        self._xs, self._ys = xs, ys
        self._dots: dict[tuple[int, int], int] = {}
        self._owner: dict[tuple[int, int], int] = {}
        self._marks: dict[tuple[int, int], str] = {}

    def mark(self, point: tuple[float, float], sign: str) -> None:
        """Put a character of its own where a point is."""
        x, y = self._place(*point)
        self._marks[x // 2, y // 4] = sign

    def draw(self, points: Sequence[tuple[float, float]], number: int, *, every: bool) -> None:
        """One curve. `every`: with the lines between its points; else the points alone."""
        before: tuple[int, int] | None = None
        for x, y in points:
            if not (math.isfinite(x) and math.isfinite(y)):
                before = None
                continue
            here = self._place(x, y)
            for dot in _between(before, here) if before is not None and every else [here]:
                self._set(dot, number)
            before = here

    def _place(self, x: float, y: float) -> tuple[int, int]:
        wide, high = self.columns * 2 - 1, self.rows * 4 - 1
        return _share(x, self._xs, wide), high - _share(y, self._ys, high)

    def _set(self, dot: tuple[int, int], number: int) -> None:
        cell = dot[0] // 2, dot[1] // 4
        self._dots[cell] = self._dots.get(cell, 0) | _DOTS[dot[0] % 2][dot[1] % 4]
        self._owner[cell] = number

    def row(self, at: int, look: Look, letters: bool) -> Row:
        """One row of characters, as pieces of one colour each."""
        pieces: Row = []
        text, style = "", ""
        for column in range(self.columns):
            number = self._owner.get((column, at))
            sign, color = " ", style
            if number is not None:
                color = COLORS[number % len(COLORS)] if look.color else ""
                dots = chr(_BLANK + self._dots[column, at]) if look.braille else "*"
                sign = _letter(number) if letters else dots
            if (column, at) in self._marks:
                sign, color = self._marks[column, at], "bold yellow" if look.color else ""
            if color != style and text:
                pieces.append(Piece(text, style))
                text = ""
            text, style = text + sign, color
        return [*pieces, Piece(text.rstrip(), style)]


def _share(value: float, ends: tuple[float, float], most: int) -> int:
    """Where a value lies between the ends, in steps; halves first, so that no difference is too big for a float."""
    span = ends[1] / 2 - ends[0] / 2
    return min(most, max(0, round((value / 2 - ends[0] / 2) / span * most))) if span else 0


def _between(begin: tuple[int, int], end: tuple[int, int]) -> list[tuple[int, int]]:
    """The dots of a straight line."""
    steps = max(abs(end[0] - begin[0]), abs(end[1] - begin[1]), 1)
    return [
        (round(begin[0] + (end[0] - begin[0]) * at / steps), round(begin[1] + (end[1] - begin[1]) * at / steps))
        for at in range(steps + 1)
    ]


def plain(rows: Iterable[Row]) -> list[str]:
    """The rows without styles."""
    return ["".join(piece.text for piece in row).rstrip() for row in rows]


def sparkline(values: Sequence[float], columns: int, *, ascii_only: bool = False) -> str:
    """Values as a line of blocks, at most so many wide; what is not finite is a blank."""
    blocks = "_.,-=+*#" if ascii_only else "▁▂▃▄▅▆▇█"
    if len(values) > columns:
        values = [values[at * (len(values) - 1) // max(1, columns - 1)] for at in range(columns)]
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ""
    ends = _ends(finite) if min(finite) != max(finite) else (finite[0] - 1, finite[0] + 1)
    return "".join(blocks[_share(value, ends, 7)] if math.isfinite(value) else " " for value in values)
