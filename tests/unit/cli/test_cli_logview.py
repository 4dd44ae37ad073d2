"""A log on its way to a terminal or a file: harmless whatever the job printed, wherever the pieces were cut."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobrunner.cli.logview import LogView


def shown(*pieces: bytes, terminal: bool = False) -> str:
    view = LogView(terminal=terminal)
    return "".join([*(view.feed(piece) for piece in pieces), view.close()])


@pytest.mark.parametrize(
    ("given_", "expected"),
    [
        (b"plain\n", "plain\n"),
        (b"tab\there\r\n", "tab\there\n"),
        (b"double\r\r\n", "double\n"),
        (b"\r  0%|    |\r 50%|##  |\r100%|####|\nnext\n", "100%|####|\nnext\n"),
        (b"bar\r", "bar"),
        (b"\x1b[31mred\x1b[0m\n", "red\n"),
        (b"\x1b[2J\x1b[1;1Hgone\n", "gone\n"),
        (b"\x1b]0;title\x07text\n", "text\n"),
        (b"\x1b]52;c;cHduZWQ=\x1b\\text\n", "text\n"),
        (b"\x1b]0;never ended\nnext line\n", "\nnext line\n"),
        (b"\x1bP1$r\x1b\\text\n", "text\n"),
        (b"\x1b(Btext\x1b=\n", "text\n"),
        (b"\x1bctext\n", "text\n"),
        ("\x9b31mtext\n".encode(), "text\n"),
        (b"bell\x07 nul\x00 del\x7f\n", "bell nul del\n"),
        (b"1/9\b\b\b2/9\n", "2/9\n"),
        ("训练 ✓\n".encode(), "训练 ✓\n"),
        (b"\xff\xfe bad\n", "\ufffd\ufffd bad\n"),
        ("safe\u202eevil\n".encode(), "safeevil\n"),
        (b"ends in \x1b[3", "ends in "),
        (b"prompt> ", "prompt> "),
    ],
)
def test_what_a_file_gets(given_, expected):
    assert shown(given_) == expected


def test_rubbing_out_what_was_shown_already():
    view = LogView(terminal=True)
    assert [view.feed(piece) for piece in (b"1/9", b"\b\b\b2/9", b"\n")] == ["1/9", "\b\b\b2/9", "\n"]


def test_a_terminal_keeps_colours_and_ends_them():
    assert shown(b"\x1b[1;31mred\n", terminal=True) == "\x1b[1;31mred\n\x1b[0m"
    assert shown(b"\x1b[38:2::1:2:3mx\x1b[m\n", terminal=True) == "\x1b[38:2::1:2:3mx\x1b[m\n\x1b[0m"


def test_a_terminal_gets_no_other_sequence():
    text = shown(b"\x1b[2J\x1b[?1049h\x1b]52;c;eA==\x07\x1b[6n\x1bcok\n", terminal=True)
    assert text == "ok\n"


def test_a_colour_cut_in_two():
    assert shown(b"a\x1b[3", b"1mb\n", terminal=True) == "a\x1b[31mb\n\x1b[0m"


def test_a_prompt_is_shown_at_once():
    assert LogView(terminal=False).feed(b"Continue? ") == "Continue? "
    assert LogView(terminal=True).feed(b"Continue? ") == "Continue? "


def test_a_bar_moves_on_a_terminal_and_is_one_line_in_a_file():
    steps = [b"\r 10%", b"\r 20%", b"\r100%", b"\ndone\n"]
    assert shown(*steps, terminal=False) == "100%\ndone\n"
    view = LogView(terminal=True)
    assert [view.feed(step) for step in steps] == [" 10%", "\r\x1b[K 20%", "\r\x1b[K100%", "\ndone\n"]


def test_a_bar_that_starts_without_a_return():
    assert shown(b" 10%", b"\r 20%", b"\r100%\n") == " 10%\n100%\n"


def test_a_character_cut_in_two():
    data = "训".encode()
    assert shown(data[:1], data[1:]) == "训"


def test_an_endless_sequence_swallows_nothing_for_good():
    text = shown(b"\x1b]" + b"x" * 10_000 + b" END\n")
    assert text.endswith(" END\n")


def test_five_megabytes_in_one_line_are_quick():
    data = b"x" * 5_000_000
    begin = time.perf_counter()
    view = LogView(terminal=False)
    total = sum(len(view.feed(data[i : i + 65536])) for i in range(0, len(data), 65536)) + len(view.close())
    assert total == len(data)
    begin_bar = time.perf_counter()
    bar = shown(*[b"\r" + b"#" * 1000] * 5000)
    assert bar == "#" * 1000
    assert begin_bar - begin < 5 and time.perf_counter() - begin_bar < 5


_PIECES = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.sampled_from(
            [b"\x1b", b"[", b"31m", b"\x1b]0;", b"\x07", b"\r", b"\n", b"\b", b"\x9b", "训".encode(), b"ab"]
        ),
    ),
    max_size=30,
)


@given(_PIECES, st.booleans())
def test_nothing_harmful_gets_through(pieces, terminal):
    text = shown(*pieces, terminal=terminal)
    if terminal:
        text = re.sub(r"\x1b\[[0-9;:]*m|\r\x1b\[K|[\b]", "", text)
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)


@given(_PIECES)
def test_where_a_log_is_cut_changes_nothing_but_unfinished_lines(pieces):
    whole = b"".join(pieces).replace(b"\r", b"").replace(b"\b", b"")
    assert shown(whole) == shown(*(whole[i : i + 1] for i in range(len(whole))))


@given(
    st.lists(
        st.sampled_from([b"plain", b"\n", b"a\tb\n", b"\r", b"bar\r", "é".encode(), b"\xc3", b"\x1b[3", b"1m", b"\b"])
    )
)
def test_plain_pieces_take_the_short_way_to_the_same_text(pieces):
    quick, whole = LogView(terminal=False), LogView(terminal=False)
    for piece in pieces:
        whole._scan(whole._cut + whole._decoder.decode(piece))
        whole._show_unfinished(last=False)
        assert quick.feed(piece) == whole._take()
    assert quick.close() == whole.close()
