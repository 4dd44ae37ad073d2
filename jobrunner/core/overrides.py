"""`--set a.b=v`: values from the command line, put into a document as if they stood in the file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jobrunner.core.errors import Problem
from jobrunner.core.yamldoc import Node, parse


class _Cannot(Exception):
    """The override does not fit the document."""


def apply_overrides(root: Node | None, overrides: Sequence[str]) -> tuple[Node | None, list[Problem]]:
    """The document with every `a.b=v` put in, in order, and a problem for each that cannot be.

    A step of the path is a key, or the index of a list's item (the length of the list appends). The value is one
    plain scalar, or YAML in brackets or quotes; nothing after `=` is the empty text.
    """
    problems: list[Problem] = []
    for override in overrides:
        option = f"--set {override if len(override) <= 80 else override[:77] + '…'}"
        path, equals, text = override.partition("=")
        steps = path.split(".")
        if not equals or not all(steps):
            problems.append(Problem(option, None, None, "write it as --set KEY=VALUE or --set KEY.KEY=VALUE"))
            continue
        value, wrong = _value(text, option)
        problems += wrong
        if value is None:
            continue
        try:
            root = _put(root, steps, value, option, [])
        except _Cannot as error:
            problems.append(Problem(option, None, None, str(error)))
    return root, problems


def _value(text: str, option: str) -> tuple[Node | None, list[Problem]]:
    if text[:1] not in ("[", "{", '"', "'"):
        return Node("scalar", origin=option, text=text, plain=bool(text)), []
    node, problems = parse(text, option)
    shown = [Problem(option, None, None, f"its value: {p.message}", p.suggestion) for p in problems]
    return (None if node is None or shown else _from_option(node, option)), shown


def _from_option(node: Node, option: str) -> Node:
    return replace(
        node,
        mark=None,
        origin=option,
        items=tuple(_from_option(item, option) for item in node.items),
        pairs=tuple((_from_option(key, option), _from_option(value, option)) for key, value in node.pairs),
    )


def _put(node: Node | None, steps: list[str], value: Node, option: str, above: list[str]) -> Node:
    """A copy of `node` with `value` at `steps`; containers that are missing are made."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    where = ".".join(above) or "the file"
    if node is None or (node.kind == "scalar" and node.plain and node.text in ("", "~", "null")):
        node = Node("list" if step == "0" and above else "map", mark=node.mark if node else None, origin=option)
    if node.kind == "list":
        if not (step.isascii() and step.isdigit() and len(step) < 7 and int(step) <= len(node.items)):
            raise _Cannot(f"{where} is a list of {len(node.items)}; {step!r} is no place in it")
        place = int(step)
        old = node.items[place] if place < len(node.items) else None
        items = list(node.items)
        items[place : place + 1] = [_put(old, rest, value, option, [*above, step])]
        return replace(node, items=tuple(items))
    if node.kind == "scalar":
        raise _Cannot(f"{where} is the single value {node.text[:40]!r}; set it as a whole, --set {where}='{{…}}'")
    pairs = [(k, _put(v, rest, value, option, [*above, step]) if k.text == step else v) for k, v in node.pairs]
    if node.key(step) is None:
        pairs.append((Node("scalar", origin=option, text=step), _put(None, rest, value, option, [*above, step])))
    return replace(node, pairs=tuple(pairs))
