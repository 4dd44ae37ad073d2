"""Curves as text."""

import math

from jobrunner.cli.chart import Line, Look, chart, plain, sparkline

DOWN = [(float(step), 1.0 / step) for step in range(1, 21)]
SMALL = Look(columns=40, rows=6)


def test_a_curve_goes_from_its_first_to_its_last_point():
    rows = plain(chart("loss over steps", [Line("job a", DOWN)], SMALL))
    assert rows[0] == "loss over steps"
    assert len(rows) == 1 + 6 + 1 + 1
    assert rows[1].split("│")[0].strip() == "1"
    assert rows[6].split("│")[0].strip() == "0.05"
    assert rows[1].split("│")[1][0] != " "
    assert rows[6].split("│")[1][-1] != " "
    assert rows[7].split() == ["1", "20"]
    assert rows[8] == "  job a: last 0.05"
    assert all(len(row) <= 40 for row in rows)


def test_several_curves_are_told_apart_with_and_without_colour():
    lines = [Line("one", DOWN), Line("two", [(x, 1 - y) for x, y in DOWN])]
    drawn = "\n".join(plain(chart("t", lines, SMALL)))
    assert "a one: last 0.05" in drawn
    assert "a" in drawn.split("one")[0]
    assert "b" in drawn.split("one")[0]
    colored = chart("t", lines, Look(columns=40, rows=6, color=True))
    assert {piece.style for row in colored for piece in row} >= {"cyan", "yellow"}


def test_what_cannot_be_drawn_is_counted_and_breaks_the_line():
    odd = [(1.0, 1.0), (2.0, math.nan), (3.0, math.inf), (4.0, 2.0)]
    assert plain(chart("t", [Line("a", odd)], SMALL))[-1] == "  a: last 2, 1 nan, 1 inf"
    assert "no finite values" in plain(chart("t", [Line("a", [(1.0, math.nan)])], SMALL))[1]
    assert "no finite values above 0" in plain(chart("t", [Line("a", [(1.0, -1.0)])], SMALL, log=True))[1]


def test_extreme_and_equal_values_have_a_place():
    for points in (
        [(0.0, 5.0)],
        [(0.0, -1.7e308), (1.0, 1.7e308)],
        [(1.0, 0.0), (1.0, 0.0)],
        [(0.0, 5e-324), (1e300, 1e-300)],
    ):
        rows = plain(chart("t", [Line("a", points)], SMALL))
        assert any(char >= "\u2801" for row in rows[1:7] for char in row.split("│")[1])


def test_logarithms_and_a_terminal_without_braille():
    rows = plain(chart("t", [Line("a", [(1.0, 1.0), (2.0, 100.0)])], Look(columns=40, rows=5, braille=False), log=True))
    assert rows[1].startswith("100 |")
    assert rows[3].startswith(" 10 |")
    assert "*" in rows[1]
    assert "".join(rows).isascii()


def test_a_sparkline():
    assert sparkline([0, 1, 2, math.nan, 7], 10) == "▁▂▃ █"
    assert len(sparkline(list(range(1000)), 20)) == 20
    assert sparkline([3, 3], 5) == "▅▅"
    assert sparkline([math.nan], 5) == ""
