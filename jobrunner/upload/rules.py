"""Ignore files as layers: which rule decides about a path.

A `Layer` is one kind of ignore file (`.gitignore`, `.jobrunnerignore`) along one way down into a tree: the files met so
far, the deepest last, and those that are valid for the whole tree. The deepest file with a matching line decides, in
it the last line that matches; below an ignored folder nothing is asked any more.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence

from jobrunner.core.values import dataclass
from jobrunner.upload.names import to_text
from jobrunner.upload.patterns import Pattern, parse_file, parse_line

_LARGEST = 32 * 1024 * 1024


@dataclass(frozen=True)
class RuleFile:
    """The rules of one file; `base` is how many bytes of a path come before the folder that they are about."""

    base: int
    patterns: tuple[Pattern, ...]

    def decide(self, path: bytes, name: bytes, is_folder: bool) -> Pattern | None:
        """The last rule that matches, if any."""
        inner = path[self.base :]
        for pattern in reversed(self.patterns):
            if pattern.matches(inner, name, is_folder):
                return pattern
        return None


@dataclass(frozen=True)
class Layer:
    """Ignore files called `name`, from the top of a tree down to one folder. `files` has the deepest last."""

    name: bytes
    files: tuple[RuleFile, ...] = ()

    def enter(self, folder: bytes, prefix: bytes, shown: str, present: bool) -> Layer:
        """The layer inside a folder (on disk at `folder`; paths below it begin with `prefix`)."""
        found = read_rules(os.path.join(folder, self.name), shown, len(prefix)) if present else None
        return self if found is None else Layer(self.name, (*self.files, found))

    def decide(self, path: bytes, name: bytes, is_folder: bool) -> Pattern | None:
        """The rule that decides about a path, negated or not; None if no rule matches."""
        for rules in reversed(self.files):
            pattern = rules.decide(path, name, is_folder)
            if pattern is not None:
                return pattern
        return None


def read_rules(path: bytes, shown: str, base: int) -> RuleFile | None:
    """The rules of an ignore file; None if there is no such file, or it is a link (git does not follow it either)."""
    try:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return None
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        patterns = parse_file(file.read(_LARGEST), shown)
    return RuleFile(base, tuple(patterns)) if patterns else None


def spec_rules(lines: Sequence[str], key: str) -> RuleFile:
    """Patterns of the spec's `code.include` or `code.exclude`, relative to the code's folder."""
    rules = []
    for number, line in enumerate(lines):
        rule = parse_line(line.encode("utf-8", "surrogateescape"), f"{key}[{number}]")
        if rule is not None:
            rules.append(rule)
    return RuleFile(0, tuple(rules))


def may_hold(rules: RuleFile, folder: bytes) -> bool:
    """True if a path below `folder` (relative, without a final slash) might match one of the rules."""
    return any(_may_hold(rule, folder) for rule in rules.patterns if not rule.negated)


def _may_hold(rule: Pattern, folder: bytes) -> bool:
    """By the folders that a pattern names in plain letters before its first special character."""
    if rule.by_name:
        return True
    if rule.literal is not None:
        return rule.literal.startswith(folder + b"/")
    plain = rule.text.lstrip("/")
    for special in "*?[\\":
        plain = plain.split(special)[0]
    start, inside = plain.rpartition("/")[0] + "/", to_text(folder) + "/"
    return start == "/" or inside.startswith(start) or start.startswith(inside)
