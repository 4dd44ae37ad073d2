"""The catalogue of known failures: its entries, their languages, and the tables that decode vendors' codes.

An entry says which lines show a failure (`patterns`), or which end of a job does (`ends`), what it means and what to
do. Entries are data (`core/data/*.json`, and the user's own file); how they are matched and ranked is in
`catalogue_match`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, Literal, get_args

from jobrunner.core.values import dataclass

Kind = Literal["cause", "symptom", "echo", "envelope", "verdict"]
"""cause: a root cause · symptom: something waited in vain, the cause lies elsewhere · echo: a process tells that
another one has ended · envelope: a wrapper's report, which says nothing by itself · verdict: how a job ended."""

KINDS: tuple[str, ...] = get_args(Kind)
LANGUAGES = ("en", "zh")
ID = re.compile(r"[a-z0-9]+(?:[-_][a-z0-9]+)*\Z")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
_UNSAID = re.compile(" ?[(（]\0[)）]|[:：] ?\0(?=$|[;,；，:：])")

Text = Mapping[str, str]
"""A text by language."""


@dataclass(frozen=True)
class Entry:
    """One known failure.

    `unless`: patterns of lines that are none, though a pattern matches. `near`: patterns of which one has to match
    within some lines. `ends`: how a job has to have ended (`exit 137`, `signal SIGKILL`, `FAILED oom`); with patterns
    as well, either is enough. `decode`: by a pattern's group, the table that explains its value. `weight`: 0 to 9, how
    much a match tells; below 4 only where nothing better matches. `same`: verdicts that say the same already.
    """

    id: str
    kind: Kind
    cause: Text
    fix: Text
    patterns: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    ends: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    decode: Mapping[str, str] = field(default_factory=dict)
    weight: int = 5
    same: tuple[str, ...] = ()


@dataclass(frozen=True)
class Code:
    """What a vendor's code means, and whether it is a cause at all (`kind`; None: as the entry says)."""

    text: Text
    kind: Kind | None = None
    fix: Text = field(default_factory=dict)


@dataclass(frozen=True)
class Catalogue:
    """Entries by id and tables by name. A later one of the same id takes the place of an earlier one."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    tables: Mapping[str, Mapping[str, Code]] = field(default_factory=dict)

    def joined(self, other: Catalogue) -> Catalogue:
        """This catalogue with another one's entries and codes added, which win."""
        tables = {name: {**self.tables.get(name, {}), **other.tables.get(name, {})} for name in other.tables}
        return Catalogue({**self.entries, **other.entries}, {**self.tables, **tables})

    def code(self, table: str, value: str) -> Code | None:
        """What a code means, or None."""
        return self.tables.get(table, {}).get(value)

    @cached_property
    def needles(self) -> list[tuple[Entry, str, str, bool]]:
        """`(entry, pattern, literal, whole case)` of every pattern; the literal stands in whatever it matches."""
        return [(entry, text, *literal_of(text)) for entry in self.entries.values() for text in entry.patterns]

    @property
    def words(self) -> list[str]:
        """The literals of all patterns: a line without any of them matches nothing."""
        return sorted({literal for _, _, literal, _ in self.needles if len(literal) >= 3})


def read(value: Mapping[str, Any]) -> Catalogue:
    """The catalogue in the data of a file that is known to be right (see `catalogue_check` for one that may not be)."""
    entries = {item["id"]: entry_of(item) for item in value.get("entries", ())}
    tables = {
        name: {key: code_of(item) for key, item in codes.items()} for name, codes in value.get("tables", {}).items()
    }
    return Catalogue(entries, tables)


def entry_of(item: Mapping[str, Any]) -> Entry:
    """An entry from its data."""
    return Entry(
        id=item["id"],
        kind=item["kind"],
        cause=text_of(item["cause"]),
        fix=text_of(item.get("fix", "")),
        patterns=_words(item.get("patterns")),
        unless=_words(item.get("unless")),
        near=_words(item.get("near")),
        ends=_words(item.get("ends")),
        devices=_words(item.get("devices")),
        decode=dict(item.get("decode") or {}),
        weight=item.get("weight", 5),
        same=_words(item.get("same")),
    )


def code_of(item: Mapping[str, Any] | str) -> Code:
    """A code from its data: a text, or a mapping of languages with perhaps `kind` and `fix`."""
    if isinstance(item, str):
        return Code(text_of(item))
    return Code(text_of(item), item.get("kind"), text_of(item.get("fix", "")))


def text_of(value: Mapping[str, Any] | str) -> Text:
    """A text by language; one without languages stands for all of them."""
    if isinstance(value, str):
        return dict.fromkeys(LANGUAGES, value)
    return {lang: value[lang] for lang in LANGUAGES if lang in value}


def in_language(text: Text, lang: str) -> str:
    """The text in a language, else in any other that it has."""
    return text.get(lang) or next((text[other] for other in LANGUAGES if text.get(other)), "")


def filled(text: str, values: Mapping[str, str]) -> str:
    """The text with `{word}` replaced by its value. A word without one leaves its brackets or colon out as well."""
    replaced = _PLACEHOLDER.sub(lambda match: values.get(match.group(1)) or "\0", text)
    return _UNSAID.sub("", replaced).replace("\0", "?") if "\0" in replaced else replaced


def _words(value: str | Sequence[str] | None) -> tuple[str, ...]:
    if value is None:
        return ()
    return (value,) if isinstance(value, str) else tuple(value)


def literal_of(pattern: str) -> tuple[str, bool]:
    """`(literal, whole case)`: the longest text that stands in everything the pattern matches ("" if none is sure).

    Only what lies outside groups, sets and alternatives is looked at. Without whole case the literal is lower case
    and to be looked for in lower-case text.
    """
    ignore = pattern.startswith("(?i)")
    best, run = "", ""
    place = 4 if ignore else 0
    while place < len(pattern):
        char, step, literal = _next(pattern, place)
        if char == "|" and not literal:
            return "", True
        following = pattern[place + step : place + step + 1]
        if literal and following in ("?", "*", "{"):
            literal = False
        run = run + char if literal else ""
        best = max(best, run, key=len)
        if following == "+":
            run = ""
        place += step
    return (best.lower(), False) if ignore else (best, True)


def _next(pattern: str, place: int) -> tuple[str, int, bool]:
    """The next piece of a pattern: the character it stands for, its length, and whether it is literal."""
    char = pattern[place]
    if char == "\\":
        escaped = pattern[place + 1 : place + 2]
        return escaped, 2, not (escaped.isalnum() or escaped == "_")
    if char == "[":
        end = pattern.find("]", place + (3 if pattern[place + 1 : place + 2] == "^" else 2))
        return "", (end if end > 0 else len(pattern)) - place + 1, False
    if char == "(":
        return "", _group(pattern, place) - place, False
    if char == "{":
        return "", max(1, pattern.find("}", place) - place + 1), False
    return char, 1, char not in ".^$*+?|)"


def _group(pattern: str, place: int) -> int:
    """Where the group that opens at `place` has ended."""
    depth = 0
    while place < len(pattern):
        char = pattern[place]
        if char == "\\":
            place += 1
        elif char == "[":
            place += _next(pattern, place)[1] - 1
        elif char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if not depth:
                return place + 1
        place += 1
    return place
