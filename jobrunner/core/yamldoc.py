"""YAML 1.2 files as nodes that know where they stand.

A scalar without quotes keeps its text as it is written, so that `5e-5` or `007` can arrive unchanged where words are
wanted, and becomes a number where a number is wanted. Only the core schema of YAML 1.2 is known: `on` and `no` are
words, `1_000` and `2024-01-01` are text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Literal

from jobrunner.core.errors import Problem
from jobrunner.core.values import dataclass

Path = tuple[str | int, ...]

MAX_CHARACTERS = 1 << 20
MAX_DEPTH = 40
MAX_NODES = 100_000

# U+0085 may stand in YAML 1.2, but would reach us as a blank: refused, so that no text is changed unseen.
# (Told by what is refused: to compile what is allowed takes ten times as long, in every command.)
_FORBIDDEN = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]{1,40}\Z")
_OCTAL = re.compile(r"0o[0-7]{1,40}\Z")
_HEX = re.compile(r"0x[0-9a-fA-F]{1,40}\Z")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?\Z")
_INF = re.compile(r"([-+]?)\.(?:inf|Inf|INF)\Z")
_NAN = frozenset({".nan", ".NaN", ".NAN"})
_TAGS: dict[str, tuple[type, ...]] = {
    "tag:yaml.org,2002:null": (type(None),),
    "tag:yaml.org,2002:bool": (bool,),
    "tag:yaml.org,2002:int": (int,),
    "tag:yaml.org,2002:float": (float, int),
}
_STRING_TAGS = frozenset({"tag:yaml.org,2002:str", "!"})
_LIST_TAGS = frozenset({"", "!", "tag:yaml.org,2002:seq"})
_MAP_TAGS = frozenset({"", "!", "tag:yaml.org,2002:map"})


@dataclass(frozen=True)
class Mark:
    """A place in a file: line and column, both counted from 1."""

    line: int
    column: int


@dataclass(frozen=True)
class Node:
    """One value of a document. `origin` names the option that it came from; empty for what stands in the file."""

    kind: Literal["scalar", "list", "map"]
    mark: Mark | None = None
    origin: str = ""
    text: str = ""
    plain: bool = False
    tag: str = ""
    items: tuple[Node, ...] = ()
    pairs: tuple[tuple[Node, Node], ...] = ()
    size: int = 1

    def child(self, step: str | int) -> Node | None:
        """The value under a key or index, or None."""
        if self.kind == "list" and isinstance(step, int):
            return self.items[step] if 0 <= step < len(self.items) else None
        return next((value for key, value in self.pairs if key.text == step), None)

    def key(self, step: str | int) -> Node | None:
        """The node of a key itself."""
        return next((key for key, _ in self.pairs if key.text == step), None)


class _Refused(Exception):
    """Parsing cannot go on."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def decode(data: bytes, file: str) -> str | Problem:
    """The text of a file: UTF-8, with or without a byte order mark. Anything else is a Problem with its place."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return Problem(file, 1, 1, "the file is UTF-16; save it as UTF-8")
    try:
        return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8", "replace")
        line, column = _place(before, len(before))
        return Problem(file, line, column, f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8")


def parse(text: str, file: str) -> tuple[Node | None, list[Problem]]:
    """The root node of the one document in `text`, and every problem found. No node where parsing had to stop."""
    text = text.removeprefix("\ufeff")
    if len(text) > MAX_CHARACTERS:
        return None, [Problem(file, 1, 1, f"the file is longer than {MAX_CHARACTERS} characters")]
    bad = _FORBIDDEN.search(text)
    if bad:
        line, column = _place(text, bad.start())
        sign = f"U+{ord(bad.group()):04X}"
        return None, [Problem(file, line, column, f"the control character {sign} cannot stand in YAML; escape it")]
    composer = _Composer(file)
    try:
        return composer.document(text), composer.problems
    except _Refused as refused:
        return None, [*composer.problems, refused.problem]


def scalar(node: Node) -> Any:
    """What a scalar means by the core schema: None, a bool, an int, a float or its text."""
    return node.text if not node.plain else _resolve(node.text)


def _resolve(text: str) -> Any:
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _INT.match(text):
        return int(text)
    if _OCTAL.match(text) or _HEX.match(text):
        return int(text, 0)
    if len(text) <= 60 and _FLOAT.match(text):
        return float(text)
    infinite = _INF.match(text)
    if infinite:
        return float(infinite.group(1) + "inf")
    return float("nan") if text in _NAN else text


def _place(text: str, offset: int) -> tuple[int, int]:
    before = text[:offset].replace("\r\n", "\n").replace("\r", "\n")
    return before.count("\n") + 1, len(before) - (before.rfind("\n") + 1) + 1


def _mark(mark: Any) -> Mark:
    return Mark(mark.line + 1, mark.column + 1)


class _Composer:
    """Builds nodes from ruamel.yaml's events: duplicate keys and foreign tags refused, aliases bounded."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.problems: list[Problem] = []
        self._anchors: dict[str, Node | None] = {}
        self._events: Iterator[Any] = iter(())

    def document(self, text: str) -> Node | None:
        from ruamel.yaml import YAML
        from ruamel.yaml.error import MarkedYAMLError, YAMLError

        self._events = iter(YAML(typ="safe", pure=True, plug_ins=[]).parse(text))
        try:
            next(self._events)
            return self._one()
        except MarkedYAMLError as error:
            raise _Refused(self._syntax(error)) from None
        except (YAMLError, ValueError) as error:
            raise _Refused(Problem(self.file, 1, 1, f"not YAML: {str(error).splitlines()[0]}")) from None

    def _one(self) -> Node | None:
        start = next(self._events)
        if type(start).__name__ == "StreamEndEvent":
            self.problems.append(Problem(self.file, 1, 1, "the file is empty"))
            return None
        if start.version not in (None, (1, 2)):
            self._say(_mark(start.start_mark), "this says that it is another version of YAML; YAML 1.2 is read here")
        root = self._node(next(self._events), 0)
        next(self._events)
        after = next(self._events)
        if type(after).__name__ != "StreamEndEvent":
            self._say(_mark(after.start_mark), "a second document begins here; a file holds one")
        return root

    def _say(self, mark: Mark | None, message: str, suggestion: str = "") -> None:
        line, column = (mark.line, mark.column) if mark else (None, None)
        self.problems.append(Problem(self.file, line, column, message, suggestion))

    def _stop(self, mark: Mark, message: str) -> _Refused:
        return _Refused(Problem(self.file, mark.line, mark.column, message))

    def _node(self, event: Any, depth: int) -> Node:
        mark = _mark(event.start_mark)
        if depth > MAX_DEPTH:
            raise self._stop(mark, f"more than {MAX_DEPTH} levels inside one another")
        kind = type(event).__name__
        if kind == "AliasEvent":
            return self._alias(event, mark)
        if event.anchor is not None:
            self._anchors[event.anchor] = None
        if kind == "ScalarEvent":
            node = self._scalar(event, mark)
        elif kind == "SequenceStartEvent":
            node = self._list(event, mark, depth)
        else:
            node = self._map(event, mark, depth)
        if node.size > MAX_NODES:
            raise self._stop(mark, f"more than {MAX_NODES} values once every alias (*name) is followed")
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return node

    def _alias(self, event: Any, mark: Mark) -> Node:
        if event.anchor not in self._anchors:
            raise self._stop(
                mark, f"*{event.anchor} names no anchor (&{event.anchor}) above; put text with '*' in quotes"
            )
        node = self._anchors[event.anchor]
        if node is None:
            raise self._stop(mark, f"*{event.anchor} stands inside what it names")
        return replace(node, mark=mark)

    def _scalar(self, event: Any, mark: Mark) -> Node:
        tag = event.tag or ""
        plain = event.style is None and (not tag or tag in _TAGS)
        if tag in _TAGS:
            plain = True
            if not isinstance(_resolve(event.value), _TAGS[tag]):
                self._say(mark, f"{event.value!r} is not what its tag says")
        elif tag and tag not in _STRING_TAGS:
            self._say(mark, f"the tag {tag} is not known here; remove it")
        return Node("scalar", mark, text=self._text(event.value, mark), plain=plain, tag=tag)

    def _text(self, value: str, mark: Mark) -> str:
        """The text with JSON's surrogate pairs joined; half a pair is no character and a problem."""
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            try:
                return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
            except UnicodeDecodeError:
                self._say(mark, "this text holds half a character (a lone surrogate), which no file can hold")
                return value.encode("utf-8", "replace").decode("utf-8")
        return value

    def _list(self, event: Any, mark: Mark, depth: int) -> Node:
        if (event.tag or "") not in _LIST_TAGS:
            self._say(mark, f"the tag {event.tag} is not known here; remove it")
        items: list[Node] = []
        while type(following := next(self._events)).__name__ != "SequenceEndEvent":
            items.append(self._node(following, depth + 1))
        return Node("list", mark, items=tuple(items), size=1 + sum(item.size for item in items))

    def _map(self, event: Any, mark: Mark, depth: int) -> Node:
        if (event.tag or "") not in _MAP_TAGS:
            self._say(mark, f"the tag {event.tag} is not known here; remove it")
        pairs: dict[str, tuple[Node, Node]] = {}
        while type(following := next(self._events)).__name__ != "MappingEndEvent":
            key = self._node(following, depth + 1)
            value = self._node(next(self._events), depth + 1)
            if self._key_is_good(key, pairs):
                pairs[key.text] = (key, value)
        return Node("map", mark, pairs=tuple(pairs.values()), size=1 + sum(v.size + 1 for _, v in pairs.values()))

    def _key_is_good(self, key: Node, pairs: dict[str, tuple[Node, Node]]) -> bool:
        if key.kind != "scalar":
            self._say(key.mark, f"a {_KINDS[key.kind]} cannot be a key; put text with brackets in quotes")
            return False
        if key.plain and key.text == "<<":
            self._say(key.mark, "merge keys (<<) are not part of YAML 1.2; write the keys out, or use an alias for one")
            return False
        if key.text in pairs:
            first = pairs[key.text][0].mark
            where = f" (first on line {first.line})" if first else ""
            self._say(key.mark, f"the key {key.text!r} stands here a second time{where}")
            return False
        return True

    def _syntax(self, error: Any) -> Problem:
        mark = error.problem_mark or error.context_mark
        message = _explain(error.problem or error.context or "not YAML")
        if error.context_mark is not None and "end of stream" in (error.problem or ""):
            mark = error.context_mark
        if mark is None:
            return Problem(self.file, 1, 1, message)
        return Problem(self.file, mark.line + 1, mark.column + 1, message)


_KINDS = {"list": "list", "map": "mapping", "scalar": "word"}
_SAID = (
    (r"found character '\\t'", "a tab stands here; YAML wants spaces"),
    (r"found character '(.+)' that cannot start", r"a word cannot begin with \1 here; put it in quotes"),
    (
        "mapping values are not allowed",
        "a ':' that does not fit here; put text with ': ' in quotes, or mend the indent",
    ),
    ("unexpected end of stream", "the quote that opens here is never closed"),
    ("found '<stream end>'|got '<stream end>'", "the file ends inside brackets that are never closed"),
    ("expected <block end>", "this line does not fit what stands above it; look at the indent"),
    (
        "unknown escape character '(.+)'",
        r"a backslash and \1 mean nothing in double quotes; double it, or use single quotes",
    ),
    ("could not find expected ':'", "a key without ':'; write `key: value`"),
    ("expected ',' or '[]}]'", "a ',' or closing bracket is missing before this"),
)


def _explain(said: str) -> str:
    """ruamel.yaml's word for a fault, as a person would say it."""
    for pattern, words in _SAID:
        found = re.search(pattern, said)
        if found:
            return found.expand(words)
    return f"not YAML: {said}"
