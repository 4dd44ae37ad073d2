"""YAML 1.2 files as nodes: what scalars mean, what is refused, and where it stands."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobrunner.core.document import Document
from jobrunner.core.overrides import apply_overrides
from jobrunner.core.yamldoc import decode, parse

REFUSED = [
    ("a: [1,\n", 2, 1, "inside brackets"),
    ("\ta: 1", 1, 1, "tab"),
    ("a:\n\t- 1", 2, 1, "tab"),
    ("a: 1\n b: 2", 2, 3, "':'"),
    ("", 1, 1, "empty"),
    ("# only a comment\n", 1, 1, "empty"),
    ("a: \x01", 1, 4, "U+0001"),
    ("a: 1\nb: x\x00", 2, 5, "U+0000"),
    ("a: 'x\x85y'", 1, 6, "U+0085"),
    ("a: 'x", 1, 4, "never closed"),
    ("---\na: 1\n---\nb: 2\n", 3, 1, "second document"),
    ("a: *zz", 1, 4, "no anchor"),
    ("a: @x", 1, 4, "@"),
    ("a: &x [*x]", 1, 8, "inside what it names"),
    ("a: 1\na: 2", 2, 1, "second time (first on line 1)"),
    ("a: {b: 1, b: 2}", 1, 11, "second time"),
    ("? [1]\n: 2", 1, 3, "cannot be a key"),
    ("<<: {a: 1}", 1, 1, "merge keys"),
    ("a: !!int x", 1, 4, "its tag"),
    ("a: !!python/object:os.system x", 1, 4, "not known"),
    ("a: !!binary eHh4", 1, 4, "not known"),
    ("%YAML 1.1\n---\na: 1", 2, 1, "YAML 1.2"),
    ("[" * 3000, 1, 42, "levels"),
    ('x: "\\ud83d"', 1, 4, "half a character"),
    ("a: b: c", 1, 5, "':'"),
    ('a: "\\q"', 1, 6, "backslash"),
    ("x" * ((1 << 20) + 1), 1, 1, "longer than"),
]


@pytest.mark.parametrize(("text", "line", "column", "word"), REFUSED)
def test_a_refusal_names_the_place(text, line, column, word):
    _, problems = parse(text, "f.yaml")
    assert [(p.file, p.line, p.column) for p in problems] == [("f.yaml", line, column)]
    assert word in problems[0].message


def test_an_alias_bomb_is_refused_quickly():
    lines = ["a: &a [1,1,1,1,1,1,1,1,1,1]"]
    lines += [f"{chr(98 + i)}: &{chr(98 + i)} [{','.join(['*' + chr(97 + i)] * 10)}]" for i in range(20)]
    root, problems = parse("\n".join(lines), "f")
    assert root is None
    assert "alias" in problems[0].message


def test_an_alias_gives_the_value_and_its_own_place():
    document = Document.of("a: &x {k: [1, 2]}\nb: *x\n", "f")
    assert document.data() == {"a": {"k": [1, 2]}, "b": {"k": [1, 2]}}
    assert document.problem_at(("b",), "m").line == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-5", 5e-5),
        ("1.10", 1.1),
        ("007", 7),
        ("0o17", 15),
        ("0x1F", 31),
        ("1_000", "1_000"),
        ("no", "no"),
        ("on", "on"),
        ("2024-01-01", "2024-01-01"),
        ("1:30", "1:30"),
        ("True", True),
        ("null", None),
        ("~", None),
        ("", None),
        ("-.inf", float("-inf")),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("! 5", "5"),
        ("9" * 5000, "9" * 5000),
        ("=", "="),
    ],
)
def test_scalars_follow_the_core_schema_and_keep_their_text(text, value):
    document = Document.of(f"a: {text}\n", "f")
    assert document.problems == []
    found = document.data()["a"]
    assert found == value and type(found) is type(value)
    as_written = document.data(lambda path: True)["a"]
    plain = not text.startswith(("'", "!"))
    assert as_written == (None if value is None else text if plain else value)


@pytest.mark.parametrize("sign", ["\u2028", "\u2029", "\ufeff", "\U0001f600", "\u3000", "é" * 5000])
@pytest.mark.parametrize("quotes", ["'x{}y'", '"x{}y"', "x{}y"])
def test_unusual_signs_arrive(sign, quotes):
    assert Document.of("a: " + quotes.format(sign), "f").data() == {"a": f"x{sign}y"}


def test_nan_is_a_number():
    found = Document.of("a: .nan", "f").data()["a"]
    assert found != found


@pytest.mark.parametrize(
    ("data", "line", "column", "word"),
    [
        (b"a: 1\nb: \xff", 2, 4, "0xff"),
        ("ä: 1\r\n".encode() + b"\xc3", 2, 1, "0xc3"),
        ("a: 1".encode("utf-16"), 1, 1, "UTF-16"),
    ],
)
def test_what_is_not_utf8_is_refused_with_its_place(data, line, column, word):
    problem = decode(data, "f")
    assert (problem.line, problem.column) == (line, column)
    assert word in problem.message


def test_a_byte_order_mark_is_no_part_of_the_text():
    assert decode(b"\xef\xbb\xbfa: 1", "f") == "a: 1"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**15), 10**15) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_json_is_yaml(value):
    document = Document.of(json.dumps({"v": value}), "f")
    # `"<<"` in quotes is a key like any other.
    assert document.problems == []
    assert document.data() == {"v": value}


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=60))
def test_no_text_makes_the_parser_fail(text):
    root, problems = parse(text, "f")
    assert root is not None or problems


@pytest.mark.parametrize(
    ("text", "override", "data"),
    [
        ("a: 1", "a=2", {"a": 2}),
        ("a: 1", "b.c=x y # z", {"a": 1, "b": {"c": "x y # z"}}),
        ("a: [1, 2]", "a.1=3", {"a": [1, 3]}),
        ("a: [1, 2]", "a.2=3", {"a": [1, 2, 3]}),
        ("a: {b: 1}", "a.b={c: [1]}", {"a": {"b": {"c": [1]}}}),
        ("a:", "a.b=1", {"a": {"b": 1}}),
        ("a: 1", "b.0=x", {"a": 1, "b": ["x"]}),
        ("a: 1", "a=", {"a": ""}),
        ("a: 1", "a='007'", {"a": "007"}),
        ("a: 1", "a=null", {"a": None}),
        ("a: &x [1]\nb: *x", "b.0=2", {"a": [1], "b": [2]}),
        ("a: 1", "a=k=v", {"a": "k=v"}),
    ],
)
def test_an_override_is_put_in(text, override, data):
    document = Document.of(text, "f")
    document.root, problems = apply_overrides(document.root, [override])
    assert problems == []
    assert document.data() == data


@pytest.mark.parametrize(
    ("override", "word"),
    [
        ("a", "KEY=VALUE"),
        ("=1", "KEY=VALUE"),
        ("a..b=1", "KEY=VALUE"),
        ("l.7=1", "no place"),
        ("l.x=1", "no place"),
        ("a.b=1", "single value"),
        ("a=[1", "brackets"),
    ],
)
def test_a_bad_override_is_named_instead_of_a_line(override, word):
    root, _ = parse("a: 1\nl: [1]", "f")
    _, problems = apply_overrides(root, [override])
    assert [(p.file, p.line, p.column) for p in problems] == [(f"--set {override}", None, None)]
    assert word in problems[0].message
