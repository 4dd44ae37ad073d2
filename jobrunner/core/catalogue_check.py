"""A catalogue file that people write: YAML or JSON, checked entry by entry. What is right is used, the rest is told."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from jobrunner.core.catalogue import ID, KINDS, LANGUAGES, Catalogue, Entry, entry_of, read
from jobrunner.core.devices import names
from jobrunner.core.document import Document
from jobrunner.core.errors import Problem
from jobrunner.core.words import Path, found, nearest, one_of

KEYS = ("id", "kind", "patterns", "unless", "near", "ends", "devices", "decode", "weight", "same", "cause", "fix")
TOP = ("v", "entries", "tables")
MOST_CHARACTERS = 2000
Say = Callable[..., None]


def read_user(text: str, file: str) -> tuple[Catalogue, list[Problem]]:
    """The entries and tables of a user's file that are right, and every problem with its line and column."""
    document = Document.of(text, file)
    if document.root is None and [problem.message for problem in document.problems] == ["the file is empty"]:
        return Catalogue(), []
    if document.root is None or document.problems:
        return Catalogue(), document.ordered()
    data = document.data(lambda path: len(path) > 1 and path[0] == "tables" and path[-1] in LANGUAGES)

    def say(path: Path, message: str, suggestion: str = "", on_key: bool = False) -> None:
        document.problems.append(document.problem_at(path, message, suggestion, "catalogue", on_key=on_key))

    catalogue = _checked(data, say)
    return catalogue, document.ordered()


def _checked(data: Any, say: Say) -> Catalogue:
    at: Path = () if isinstance(data, list) else ("entries",)
    if isinstance(data, list):
        data = {"entries": data}
    if not isinstance(data, dict):
        say((), "a catalogue is a mapping with the key `entries`, or a list of entries")
        return Catalogue()
    for key in data:
        if key not in TOP:
            say((key,), f"the key {key!r} is not known", nearest(key, TOP), on_key=True)
    entries: dict[str, Entry] = {}
    items = data.get("entries") or []
    if not isinstance(items, list):
        say(at, f"entries: found {found(items)}; a list is wanted here")
        items = []
    for place, item in enumerate(items):
        entry = check_entry(item, (*at, place), say)
        if entry is not None:
            entries[entry.id] = entry
    return Catalogue(entries, _tables(data.get("tables"), say))


def check_entry(item: Any, at: Path, say: Say) -> Entry | None:
    """The entry in `item`, or None after every fault in it was told."""
    if not isinstance(item, dict):
        say(at, f"found {found(item)}; an entry is a mapping with id, patterns, cause and fix")
        return None
    faults: list[str] = []

    def fault(path: Path, message: str, suggestion: str = "", on_key: bool = False) -> None:
        faults.append(message)
        say((*at, *path), message, suggestion, on_key)

    for key in item:
        if key not in KEYS:
            fault((key,), f"the key {key!r} is not known in an entry", nearest(key, KEYS), on_key=True)
    _check_words(item, fault)
    for key in ("patterns", "unless", "near"):
        _check_patterns(item, key, fault)
    for key in ("cause", "fix"):
        _check_text(item, key, fault)
    if not item.get("patterns") and not item.get("ends"):
        fault((), "an entry needs `patterns` (or `ends`): what shows this failure")
    return None if faults else entry_of({"kind": "cause", **item})


def _check_words(item: dict[str, Any], fault: Say) -> None:
    name = item.get("id")
    if not isinstance(name, str) or not ID.match(name):
        fault(("id",), f"id: found {found(name)}; write a word of a-z, 0-9 and -")
    kind = item.get("kind", "cause")
    if kind not in KINDS:
        fault(("kind",), f"kind: found {found(kind)}; it must be {one_of(KINDS)}", nearest(str(kind), KINDS))
    weight = item.get("weight", 5)
    if not isinstance(weight, int) or isinstance(weight, bool) or not 0 <= weight <= 9:
        fault(("weight",), f"weight: found {found(weight)}; a whole number from 0 to 9 is wanted here")
    devices = item.get("devices", [])
    for place, device in enumerate([devices] if isinstance(devices, str) else devices or []):
        if device not in names():
            fault(("devices", place), f"devices: found {found(device)}; it must be {one_of(names())}")
    decode = item.get("decode", {})
    if not isinstance(decode, dict):
        fault(("decode",), f"decode: found {found(decode)}; write the pattern's group and a table's name: code: acl")


def _check_patterns(item: dict[str, Any], key: str, fault: Say) -> None:
    value = item.get(key)
    if value is None:
        return
    listed = isinstance(value, list)
    for place, pattern in enumerate(value if listed else [value]):
        where: Path = (key, place) if listed else (key,)
        if not isinstance(pattern, str) or not pattern:
            fault(where, f"{key}: found {found(pattern)}; a regular expression is wanted here, in quotes")
            continue
        try:
            matches_nothing = re.compile(pattern).search("") is not None
        except re.error as error:
            fault(where, f"{key}: {pattern!r} is no regular expression: {error}")
            continue
        if matches_nothing:
            fault(where, f"{key}: {pattern!r} matches every line")


def _check_text(item: dict[str, Any], key: str, fault: Say) -> None:
    value = item.get(key)
    if value is None and key == "fix":
        return
    texts = value if isinstance(value, dict) else {"": value}
    for lang, text in texts.items():
        where = (key, lang) if lang else (key,)
        if lang and lang not in LANGUAGES:
            fault(where, f"{key}: the language {lang!r} is not known; write en or zh", on_key=True)
        elif not isinstance(text, str) or not text.strip() or len(text) > MOST_CHARACTERS:
            fault(where, f"{key}: found {found(text)}; a sentence is wanted here, or one for each of en and zh")
    if not texts:
        fault((key,), f"{key}: a sentence is wanted here")


def _tables(value: Any, say: Say) -> dict[str, Any]:
    """Tables of codes: `{table: {code: text, or {en, zh, kind}}}`."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        say(("tables",), f"tables: found {found(value)}; a mapping (key: value) is wanted here")
        return {}
    good: dict[str, Any] = {}
    for name, codes in value.items():
        if not isinstance(codes, dict):
            say(("tables", name), f"tables.{name}: found {found(codes)}; write codes and what they mean")
            continue
        for code, meaning in codes.items():
            if _is_meaning(meaning):
                good.setdefault(name, {})[code] = meaning
            else:
                say(("tables", name, code), f"tables.{name}.{code}: write a text, or one for each of en and zh")
    return dict(read({"tables": good}).tables)


def _is_meaning(value: Any) -> bool:
    if isinstance(value, str):
        return bool(value)
    if not isinstance(value, dict) or not any(lang in value for lang in LANGUAGES):
        return False
    texts = [value[lang] for lang in LANGUAGES if lang in value]
    known = set(value) <= {*LANGUAGES, "kind", "fix"} and value.get("kind", "cause") in KINDS
    return known and all(isinstance(text, str) and text for text in texts)
