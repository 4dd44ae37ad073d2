"""One line of an ignore file, matched as git matches it.

Pure and on bytes, because file names are. The translation follows git's own matcher case by case: `**` counts only
as a whole path component, a broken `[` makes a pattern that matches nothing, `!` negates, a final `/` means folders,
a `/` elsewhere ties the pattern to the folder of its file.
"""

from __future__ import annotations

import re
from dataclasses import field

from jobrunner.core.values import dataclass

_SPECIAL = frozenset(b"*?[\\")
_CLASSES: dict[bytes, bytes] = {
    b"alnum": b"0-9A-Za-z", b"alpha": b"A-Za-z", b"blank": b" \\t", b"cntrl": b"\\x00-\\x1f\\x7f", b"digit": b"0-9",
    b"graph": b"!-~", b"lower": b"a-z", b"print": b" -~", b"punct": b"!-/:-@\\[-`{-~", b"space": b" \\t\\n\\r\\f\\v",
    b"upper": b"A-Z", b"xdigit": b"0-9A-Fa-f",
}  # fmt: skip


class _NeverMatches(Exception):
    """The pattern is broken in a way that git answers with "no match"."""


@dataclass(frozen=True)
class Pattern:
    """A rule: `text` as written, `source` where (`.gitignore:3`). Made by `parse_line`."""

    text: str
    source: str
    negated: bool
    folders_only: bool
    by_name: bool
    literal: bytes | None
    suffix: bytes | None
    regex: re.Pattern[bytes] | None = field(repr=False)

    def matches(self, path: bytes, name: bytes, is_folder: bool) -> bool:
        """True for a path (relative to the folder of the ignore file, `/` between parts) with this last part."""
        if self.folders_only and not is_folder:
            return False
        subject = name if self.by_name else path
        if self.literal is not None:
            return subject == self.literal
        if self.suffix is not None:
            return subject.endswith(self.suffix)
        return self.regex is not None and self.regex.fullmatch(subject) is not None


def parse_file(data: bytes, source: str) -> list[Pattern]:
    """The patterns of an ignore file, in order; `source` is its name for reports."""
    if data.startswith(b"\xef\xbb\xbf"):
        data = data[3:]
    rules = []
    for number, line in enumerate(data.split(b"\n"), 1):
        rule = parse_line(line.removesuffix(b"\r"), f"{source}:{number}")
        if rule is not None:
            rules.append(rule)
    return rules


def parse_line(line: bytes, source: str) -> Pattern | None:
    """The rule of one line; None for a comment or nothing."""
    if not line or line.startswith(b"#"):
        return None
    line = _without_final_blanks(line.split(b"\0")[0])
    text = line.decode("utf-8", "backslashreplace")
    negated = line.startswith(b"!")
    body = line[1:] if negated else line
    folders_only = body.endswith(b"/")
    if folders_only:
        body = body[:-1]
    by_name = b"/" not in body
    plain_length = next((place for place, byte in enumerate(body) if byte in _SPECIAL), len(body))
    if not by_name and body.startswith(b"/"):
        body, plain_length = body[1:], plain_length - 1
    literal = body if plain_length == len(body) else None
    suffix = regex = None
    if literal is None:
        rest = body[1:]
        if by_name and body.startswith(b"*") and not _SPECIAL.intersection(rest):
            suffix = rest
        else:
            regex = _compile(body, plain_length)
    elif not body:
        literal = None  # "/" or "!": nothing has an empty name
    return Pattern(text, source, negated, folders_only, by_name, literal, suffix, regex)


def _without_final_blanks(line: bytes) -> bytes:
    """A line without the blanks at its end, unless they are escaped."""
    place, end = 0, None
    while place < len(line):
        char = line[place : place + 1]
        if char == b" ":
            end = place if end is None else end
        else:
            end = None
            if char == b"\\":
                place += 1
        place += 1
    return line if end is None else line[:end]


def _compile(body: bytes, plain_length: int) -> re.Pattern[bytes] | None:
    """The expression for a pattern. Its plain beginning is compared apart, so what follows counts as a beginning."""
    try:
        return re.compile(re.escape(body[:plain_length]) + _translate(body[plain_length:]), re.DOTALL)
    except _NeverMatches:
        return None


def _translate(pattern: bytes) -> bytes:
    out, place = [], 0
    while place < len(pattern):
        char = pattern[place : place + 1]
        if char == b"\\":
            if place + 1 == len(pattern):
                raise _NeverMatches
            out.append(re.escape(pattern[place + 1 : place + 2]))
            place += 2
        elif char == b"?":
            out.append(b"[^/]")
            place += 1
        elif char == b"*":
            piece, place = _stars(pattern, place)
            out.append(piece)
        elif char == b"[":
            piece, place = _brackets(pattern, place)
            out.append(piece)
        else:
            out.append(re.escape(char))
            place += 1
    return b"".join(out)


def _stars(pattern: bytes, start: int) -> tuple[bytes, int]:
    """One or more stars. Two or more between slashes (or the ends) go through folders, all others stay in one."""
    end = start
    while pattern[end : end + 1] == b"*":
        end += 1
    opens = start == 0 or pattern[start - 1 : start] == b"/"
    rest = pattern[end : end + 2]
    if end - start > 1 and opens:
        if rest[:1] == b"/":
            return b"(?:.*/)?", end + 1
        if not rest or rest == b"\\/":
            return b".*", end
    return b"[^/]*", end


def _brackets(pattern: bytes, start: int) -> tuple[bytes, int]:
    """A set of characters. It never matches a slash."""
    place = start + 1
    negated = pattern[place : place + 1] in (b"!", b"^")
    place += negated
    items: list[bytes] = []
    before = b""  # the character that a range may begin with
    first = True
    while first or pattern[place : place + 1] != b"]":
        first = False
        char = pattern[place : place + 1]
        if not char:
            raise _NeverMatches
        if char == b"-" and before and pattern[place + 1 : place + 2] not in (b"", b"]"):
            char, place = _escaped(pattern, place + 1)
            if before <= char:
                items.append(_quote(before) + b"-" + _quote(char))
            before = b""
        elif pattern[place : place + 2] == b"[:" and (found := _named_class(pattern, place)) is not None:
            items.append(found[0])
            place, before = found[1], b""
        else:
            before, place = _escaped(pattern, place)
            items.append(_quote(before))
    inside = b"".join(items)
    if negated:
        return b"[^/" + inside + b"]", place + 1
    return (b"(?!/)[" + inside + b"]" if inside else b"(?!)"), place + 1


def _escaped(pattern: bytes, place: int) -> tuple[bytes, int]:
    """The character at a place, or the one behind a backslash there; and where to go on."""
    if pattern[place : place + 1] == b"\\":
        place += 1
    char = pattern[place : place + 1]
    if not char:
        raise _NeverMatches
    return char, place + 1


def _named_class(pattern: bytes, place: int) -> tuple[bytes, int] | None:
    """`[:alpha:]` and the like; None if it only looks like one."""
    end = pattern.find(b"]", place + 2)
    if end < 0:
        raise _NeverMatches
    if end == place + 2 or pattern[end - 1 : end] != b":":
        return None
    known = _CLASSES.get(pattern[place + 2 : end - 1])
    if known is None:
        raise _NeverMatches
    return known, end + 1


def _quote(char: bytes) -> bytes:
    return b"\\x%02x" % char[0]
