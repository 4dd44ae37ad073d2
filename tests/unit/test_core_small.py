"""Durations, ids and placeholders."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner.core.durations import format_duration, nearest_duration, parse_duration
from jobrunner.core.ids import is_id, new_id
from jobrunner.core.placeholders import Checkpoint, Literal, Parameter, fill_words, find, parts_of, render


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("15m", 900), ("12h", 43200), ("3d", 259200), ("0s", 0)])
def test_a_duration_keeps_its_text(text, seconds):
    found = parse_duration(text)
    assert found == text and found.seconds == seconds


@pytest.mark.parametrize(
    ("text", "near"),
    [
        ("12 hours", "12h"),
        ("90", "90s"),
        ("1.5h", "90m"),
        ("1h30m", "90m"),
        ("2 Days", "2d"),
        ("5 min", "5m"),
        ("90s\n", "90s"),
        ("soon", ""),
        ("-5s", ""),
        ("", ""),
        ("٣s", ""),
        ("99999d", "99999d"),
    ],
)
def test_other_texts_are_refused_with_what_was_meant(text, near):
    with pytest.raises(ValueError):
        parse_duration(text)
    assert nearest_duration(text) == near


@given(st.integers(0, 3650 * 86400))
def test_any_number_of_seconds_can_be_written(seconds):
    assert parse_duration(format_duration(seconds)).seconds == seconds


@given(st.binary(min_size=8, max_size=32))
def test_an_id_is_an_id(entropy):
    made = new_id(entropy)
    assert is_id(made) and len(made) == 10 and made == new_id(entropy)
    assert not set(made) & set("0o1li")


def test_ids_differ_and_need_entropy():
    assert len({new_id(number.to_bytes(8, "big")) for number in range(5000)}) == 5000
    with pytest.raises(ValueError):
        new_id(b"1234567")


@pytest.mark.parametrize(
    "text", ["", "abc", "1abcdefgh", "Abcdefghi", "abcdefg-h", "a" * 17, "../abcdefgh", "abcdefgé"]
)
def test_other_words_are_no_ids(text):
    assert not is_id(text)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("{lr}", [Parameter("lr")]),
        ("--x={lr}!", [Literal("--x="), Parameter("lr"), Literal("!")]),
        ("{{lr}", [Literal("{lr}")]),
        ("{{{lr}", [Literal("{"), Parameter("lr")]),
        ('{"a": {"b": 1}}', [Literal('{"a": {"b": 1}}')]),
        ("{checkpoint}", [Checkpoint()]),
        ("{checkpoint:my job}", [Checkpoint("my job")]),
        ("{checkpoint:}", [Literal("{checkpoint:}")]),
        ("{1} {a b} {}", [Literal("{1} {a b} {}")]),
        ("", []),
    ],
)
def test_parts_of_a_template(text, parts):
    assert parts_of(text) == parts


def test_find_tells_what_is_named():
    assert find("{a}{b}{checkpoint}{checkpoint:j}{{c}") == (["a", "b"], [None, "j"])


WORDS = ["{{x}}", "{lr}", '{"a":1}', "{checkpoint}", "{{checkpoint}", "it's $(id)"]


def test_without_a_sweep_only_checkpoint_makes_a_template():
    assert fill_words(WORDS, None, checkpoints=True) == [*WORDS[:4], "{{checkpoint}", WORDS[5]]
    assert fill_words(WORDS, None, checkpoints=False) == WORDS
    assert fill_words(["{{x", "{x}"], None, checkpoints=True, resume=True) == ["{x", "{x}"]


def test_with_a_sweep_parameters_are_filled_in_once():
    values = {"lr": "{checkpoint}{b}", "b": "2"}
    assert fill_words(["{lr}", "{{lr}", "{b}-{checkpoint}"], values, checkpoints=False) == [
        "{checkpoint}{b}",
        "{lr}",
        "2-{checkpoint}",
    ]
    # The value holds what the host would take for a placeholder: it is escaped, so that it arrives as it is.
    assert host(fill_words(["{lr}"], values, checkpoints=True)[0], "/c.pt") == "{checkpoint}{b}"


def test_a_named_job_becomes_its_id():
    assert fill_words(["{checkpoint:first}"], None, checkpoints=True, ids={"first": "abcdefgh23"}) == [
        "{checkpoint:abcdefgh23}"
    ]


def host(word, own):
    """The host's rule: a word that holds `{checkpoint` is a template, any other is literal."""
    if "{checkpoint" not in word:
        return word
    return "".join(own if isinstance(part, Checkpoint) else part.text for part in parts_of(word))


LITERALS = st.text(alphabet="{}checkpoint:x ", max_size=30).map(Literal)


@settings(max_examples=300)
@given(st.lists(LITERALS | st.just(Checkpoint()), max_size=4))
def test_what_is_rendered_arrives(parts):
    wanted = "".join("/own" if isinstance(part, Checkpoint) else part.text for part in parts)
    assert host(render(parts), "/own") == wanted
