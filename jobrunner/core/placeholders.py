"""Placeholders: `{lr}`, `{checkpoint}`, `{checkpoint:JOB}` in words of a spec, where `{{` is a brace.

A word is a template where a placeholder can stand: everywhere that they are allowed if the spec has a sweep, always in
`resume_args`, and in `args` and after the first word of a list `command` if the word holds `{checkpoint`. Any other
word is taken as it stands, so that JSON, jinja or `{asctime}` need no escaping. What stays for the host to fill in
(`{checkpoint…}`) follows one rule: a word that holds `{checkpoint` is a template, any other is literal.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from jobrunner.core.values import dataclass

OPEN = "{checkpoint"
_TOKEN = re.compile(r"\{\{|\{([A-Za-z_][A-Za-z0-9_]*)\}|\{checkpoint:([^{}]+)\}")


@dataclass(frozen=True)
class Literal:
    """Text that stands for itself."""

    text: str


@dataclass(frozen=True)
class Parameter:
    """`{name}`: the value of a sweep's parameter."""

    name: str


@dataclass(frozen=True)
class Checkpoint:
    """`{checkpoint}`, or `{checkpoint:JOB}` of another job."""

    job: str | None = None


Part = Literal | Parameter | Checkpoint


def is_template(text: str, *, sweep: bool, resume: bool = False) -> bool:
    """True if placeholders are looked for in this word."""
    return sweep or resume or OPEN in text


def parts_of(text: str) -> list[Part]:
    """The parts of a template: every `{word}` is a Parameter here, known or not; `{{` is a brace."""
    parts: list[Part] = []
    end = 0
    for token in _TOKEN.finditer(text):
        _add(parts, text[end : token.start()])
        end = token.end()
        name, job = token.group(1), token.group(2)
        if job is not None:
            parts.append(Checkpoint(job))
        elif name == "checkpoint":
            parts.append(Checkpoint())
        elif name is not None:
            parts.append(Parameter(name))
        else:
            _add(parts, "{")
    _add(parts, text[end:])
    return parts


def _add(parts: list[Part], text: str) -> None:
    if not text:
        return
    last = parts[-1] if parts else None
    if isinstance(last, Literal):
        parts[-1] = Literal(last.text + text)
    else:
        parts.append(Literal(text))


def find(text: str) -> tuple[list[str], list[str | None]]:
    """`(parameters, checkpoints)` that a template names; None among the checkpoints is the job's own."""
    parts = parts_of(text)
    return (
        [part.name for part in parts if isinstance(part, Parameter)],
        [part.job for part in parts if isinstance(part, Checkpoint)],
    )


def render(parts: Iterable[Part]) -> str:
    """The word for the host: braces doubled only if it must be read as a template there. Parameters stay literal."""
    known = list(parts)
    plain = "".join(part.text if isinstance(part, Literal) else _written(part) for part in known)
    if OPEN not in plain:
        return plain
    return "".join(_written(part) if isinstance(part, Checkpoint) else _escaped(part) for part in known)


def _written(part: Part) -> str:
    if isinstance(part, Parameter):
        return "{" + part.name + "}"
    return "{checkpoint}" if not isinstance(part, Checkpoint) or part.job is None else "{checkpoint:" + part.job + "}"


def _escaped(part: Part) -> str:
    text = part.text if isinstance(part, Literal) else _written(part)
    return text.replace("{", "{{")


def substitute(text: str, values: Mapping[str, str]) -> list[Part]:
    """The parts of a template with the parameters in `values` filled in; a value is never read again."""
    parts: list[Part] = []
    for part in parts_of(text):
        if isinstance(part, Parameter) and part.name in values:
            _add(parts, values[part.name])
        elif isinstance(part, Parameter):
            _add(parts, _written(part))
        elif isinstance(part, Literal):
            _add(parts, part.text)
        else:
            parts.append(part)
    return parts


def fill_words(
    words: Sequence[str],
    values: Mapping[str, str] | None,
    *,
    checkpoints: bool,
    resume: bool = False,
    ids: Mapping[str, str] | None = None,
) -> list[str]:
    """Words with a trial's parameters filled in (`values`; None without a sweep), ready for the host.

    With `checkpoints` the words may hold `{checkpoint…}`, which the host fills in; otherwise it is literal text there.
    `ids` has the id of every job that the spec calls by another word.
    """
    filled: list[str] = []
    for word in words:
        if values is None and not (checkpoints and is_template(word, sweep=False, resume=resume)):
            filled.append(word)
            continue
        parts = [_by_id(part, ids or {}) for part in substitute(word, values or {})]
        filled.append(render(parts) if checkpoints else "".join(_text(part) for part in parts))
    return filled


def _by_id(part: Part, ids: Mapping[str, str]) -> Part:
    return Checkpoint(ids.get(part.job, part.job)) if isinstance(part, Checkpoint) and part.job is not None else part


def _text(part: Part) -> str:
    return part.text if isinstance(part, Literal) else _written(part)
