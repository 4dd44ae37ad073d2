"""The kinds of value that specs and hosts files are made of, each with its check and its JSON Schema.

A pattern is written once, for both; those that are needed without any check are in `core.patterns`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, PlainValidator
from pydantic_core import PydanticCustomError

from jobrunner.core import devices
from jobrunner.core.durations import PATTERN as DURATION_PATTERN
from jobrunner.core.durations import Duration, nearest_duration, parse_duration
from jobrunner.core.patterns import ALIAS_FAULT, ALIAS_PATTERN, END, UNSAFE
from jobrunner.core.words import Fault, found, nearest, one_of, refuse, refuse_all

NAME_PATTERN = rf"^(?! )[^{UNSAFE}]{{1,200}}(?<! ){END}"
ENV_PATTERN = rf"^[A-Za-z_][A-Za-z0-9_]*{END}"
TEXT_PATTERN = r"^[^\u0000\ud800-\udfff]*$"
LINE_PATTERN = r"^[^\u0000\ud800-\udfff]*\S[^\u0000\ud800-\udfff]*$"
GLOB_PATTERN = rf"^(?![/~\\])(?![A-Za-z]:[/\\])(?!(?:[\s\S]*/)?\.\.(?:/|$))[^\u0000\n\r\ud800-\udfff]+{END}"
METRIC_PATTERN = rf"^[A-Za-z_][A-Za-z0-9_./-]{{0,99}}{END}"
OBJECTIVE_PATTERN = rf"^[A-Za-z_][A-Za-z0-9_./-]{{0,99}} +(min|max){END}"
IDENTIFIER_PATTERN = rf"^[A-Za-z_][A-Za-z0-9_]{{0,99}}{END}"

LauncherName = Literal["nohup", "tmux"]


class Shape:
    """Annotation: the JSON Schema of a value with a check of its own. (pydantic's own cannot stand in a union.)"""

    def __init__(self, schema: dict[str, Any] | Callable[[], dict[str, Any]]) -> None:
        self.schema = schema

    def __get_pydantic_json_schema__(self, _core: Any, _handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema() if callable(self.schema) else self.schema)


class Model(BaseModel):
    """Base of everything that is read from a file: frozen, no unknown keys, its descriptions go into the schema."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        defer_build=True,
        use_attribute_docstrings=False,
        protected_namespaces=(),
        hide_input_in_errors=True,
    )


def model_keys(model: type[Model], path: tuple[str | int, ...]) -> list[str]:
    """The keys of the model that a path leads to, through optional values, lists and mappings of models."""
    for step in path:
        if isinstance(step, int):
            continue
        field = model.model_fields.get(step)
        inner = _models_in(field.annotation if field else None)
        if inner:
            model = inner[0]
        elif field is not None:
            return []
    return list(model.model_fields)


def _models_in(annotation: Any) -> list[type[Model]]:
    if isinstance(annotation, type) and issubclass(annotation, Model):
        return [annotation]
    return [model for part in getattr(annotation, "__args__", ()) for model in _models_in(part)]


def _want_text(value: Any, what: str) -> str:
    if isinstance(value, str):
        return value
    if value is None:
        refuse(f"{what} has no value; write a text, or remove the key")
    hint = ": put it in quotes" if isinstance(value, bool | int | float) else ""
    return refuse(f"found {found(value)} where {what} is wanted{hint}")


def _want_pattern(value: Any, what: str, pattern: str, otherwise: str) -> str:
    """A text that the pattern fits; `otherwise` is the refusal, where {0!r} is the text and {1} says what was found."""
    text = _want_text(value, what)
    if not re.search(pattern, text):
        refuse(otherwise.format(text, found(text)))
    return text


def check_name(value: Any) -> str:
    """A job's name: any printable text of 1 to 200 characters, without blanks at its ends."""
    text = _want_text(value, "a name")
    if len(text) > 200:
        refuse(f"a name of {len(text)} characters is too long; 200 are the most")
    if text != text.strip(" "):
        refuse(f"the name {text!r} begins or ends with a blank", text.strip(" "))
    if not re.search(NAME_PATTERN, text):
        refuse("the name is empty" if not text else f"the name {text!r} holds a character that cannot be printed")
    return text


def check_alias(value: Any) -> str:
    """A host's name, as the SSH configuration and the hosts file know it."""
    return _want_pattern(value, "a host's name", ALIAS_PATTERN, ALIAS_FAULT)


def check_tag(value: Any) -> str:
    """A tag of a host: one word."""
    otherwise = "{0!r} cannot be a tag: it must be one word"
    return _want_pattern(value, "a tag", ALIAS_PATTERN, otherwise)


def check_env_name(value: Any) -> str:
    """The name of an environment variable."""
    otherwise = "{0!r} cannot be the name of a variable: letters, digits and _ only, and no digit first"
    return _want_pattern(value, "the name of a variable", ENV_PATTERN, otherwise)


def check_free_env_name(value: Any) -> str:
    """The name of a variable that a spec may set: not what jobrunner itself sets for every job."""
    text = check_env_name(value)
    if text in devices.variables():
        refuse(f"{text} may not be set: jobrunner sets it to the job's own cards; say `cards: [1, 3]` to choose them")
    if text.startswith("JOBRUNNER_"):
        refuse(f"{text} may not be set: names that begin with JOBRUNNER_ are set by jobrunner")
    return text


def check_device(value: Any) -> str:
    """A kind of accelerator that the agent knows, or `cpu`."""
    known = devices.names()
    if isinstance(value, str):
        if value in known:
            return value
        refuse(f"found {found(value)}; it must be {one_of(known)}", devices.meant(value) or nearest(value, known))
    return refuse(f"found {found(value)}; it must be {one_of(known)}")


def as_written(value: Any) -> str:
    """The text of a word: texts as they are; numbers and true/false, which reach us from JSON, as YAML writes them."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        if "\0" in value:
            refuse("a text that holds a NUL cannot be given to a program")
        return value
    if value is None:
        refuse("null is no text; write '' for an empty word, or \"null\" in quotes for that word")
    if isinstance(value, dict) and len(value) == 1 and next(iter(value.values())) in (None, ""):
        name = str(next(iter(value)))
        refuse(f"{{{name}}} without quotes is a mapping in YAML; put it in quotes", f'"{{{name}}}"')
    return refuse(f"found {found(value)} where one word is wanted")


def check_line(value: Any) -> str:
    """A text that is not empty."""
    text = _want_text(value, "a text")
    if "\0" in text:
        refuse("a text that holds a NUL cannot be given to a program")
    if not text.strip():
        refuse("the text is empty")
    return text


def check_glob(value: Any) -> str:
    """A path or pattern inside the job's folder: relative, and never out of it."""
    text = _want_text(value, "a path")
    if not text:
        refuse("the path is empty")
    if text[0] in "/~\\" or re.match(r"[A-Za-z]:[/\\]", text):
        refuse(f"{text!r} is not relative: paths here are looked for inside the job's folder")
    if ".." in text.split("/"):
        refuse(f"{text!r} climbs out of the job's folder with '..'")
    if not re.search(GLOB_PATTERN, text):
        refuse("the path holds a newline or another character that no path should hold")
    return text


def check_duration(value: Any) -> Duration:
    """A length of time: 90s, 15m, 12h, 3d."""
    if isinstance(value, str):
        try:
            return parse_duration(value)
        except ValueError as error:
            refuse(f"found {found(value)}, which {error}", nearest_duration(value))
    near = nearest_duration(str(value)) if isinstance(value, int | float) and not isinstance(value, bool) else ""
    return refuse(f"found {found(value)} where a length of time is wanted, such as 90s, 15m, 12h or 3d", near)


def check_positive_duration(value: Any) -> Duration:
    """A length of time that is more than nothing."""
    length = check_duration(value)
    return length if length.seconds else refuse("a time of nothing would end everything at once; leave it out for none")


def check_regex(value: Any) -> str:
    """A regular expression of Python's `re` with at least one group."""
    import warnings

    text = _want_text(value, "a regular expression")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            groups = re.compile(text).groups
    except (re.error, RecursionError, OverflowError) as error:
        refuse(f"{found(text)} is no regular expression: {error}")
    if not groups:
        refuse(f"{found(text)} has no group; put the number that you want in brackets, ([-+.0-9eE]+)")
    return text


def check_metric(value: Any) -> str:
    """The name of a metric."""
    otherwise = "{0!r} cannot be the name of a metric: a letter first, then letters, digits and _ . / -"
    return _want_pattern(value, "the name of a metric", METRIC_PATTERN, otherwise)


def check_objective(value: Any) -> str:
    """`METRIC min` or `METRIC max`."""
    otherwise = "found {1}; write a metric and its direction, such as `val_loss min` or `accuracy max`"
    return _want_pattern(value, "a metric and its direction", OBJECTIVE_PATTERN, otherwise)


def check_command(value: Any) -> str | tuple[str, ...]:
    """A text for bash, or a list of words that no shell reads."""
    if isinstance(value, list | tuple):
        if not value:
            refuse("the list is empty; its first word is the program to start")
        faults, words = [], []
        for place, item in enumerate(value):
            try:
                words.append(as_written(item))
            except PydanticCustomError as error:
                faults += [Fault((place, *f.path), f.message, f.suggestion) for f in (error.context or {})["faults"]]
        if not faults and not words[0]:
            faults = [Fault((0,), "the first word is the program to start; it is empty")]
        return refuse_all(faults) if faults else tuple(words)
    if not isinstance(value, str):
        refuse(f"found {found(value)}; write one text for bash, or a list of words")
    return check_line(value)


def check_cards(value: Any) -> int | tuple[int, ...]:
    """How many cards, or which ones."""
    if isinstance(value, bool) or not isinstance(value, int | list | tuple):
        return refuse(f"found {found(value)}; write how many cards (2), or which ([1, 3])")
    if isinstance(value, int):
        return value if 0 <= value <= 4096 else refuse(f"{value} cards cannot be; write a number from 0 to 4096")
    if not value:
        refuse("an empty list names no card; write 0 for a job without cards, or remove the key")
    return check_indices(value)


def check_indices(value: Any) -> tuple[int, ...]:
    """Distinct numbers of cards, at least one."""
    if not isinstance(value, list | tuple):
        refuse(f"found {found(value)}; write the numbers of the cards as a list, such as [0, 1]")
    if not value:
        refuse("an empty list names no card; remove the key")
    for place, item in enumerate(value):
        if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item <= 4095:
            refuse(f"found {found(item)}; the number of a card is a whole number from 0 on", at=(place,))
        if item in value[:place]:
            refuse(f"card {item} stands here twice", at=(place,))
    return tuple(value)


_INDICES_SCHEMA: dict[str, Any] = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 4095},
    "uniqueItems": True,
    "minItems": 1,
}
CARDS_SCHEMA: dict[str, Any] = {"anyOf": [{"type": "integer", "minimum": 0, "maximum": 4096}, _INDICES_SCHEMA]}

_WRITTEN_SCHEMA: dict[str, Any] = {"type": ["string", "number", "boolean"], "pattern": TEXT_PATTERN}
_LINE_SCHEMA: dict[str, Any] = {"type": "string", "pattern": LINE_PATTERN}


def _text_schema(pattern: str, **more: Any) -> Shape:
    return Shape({"type": "string", "pattern": pattern, **more})


def _device_schema() -> dict[str, Any]:
    return {"type": "string", "enum": list(devices.names())}


def _free_env_schema() -> dict[str, Any]:
    taken = "|".join(devices.variables())
    return {"type": "string", "pattern": rf"^(?!JOBRUNNER_)(?!(?:{taken})$)[A-Za-z_][A-Za-z0-9_]*{END}"}


Name = Annotated[str, PlainValidator(check_name), _text_schema(NAME_PATTERN)]
Alias = Annotated[str, PlainValidator(check_alias), _text_schema(ALIAS_PATTERN)]
Tag = Annotated[str, PlainValidator(check_tag), _text_schema(ALIAS_PATTERN)]
EnvName = Annotated[str, PlainValidator(check_env_name), _text_schema(ENV_PATTERN)]
FreeEnvName = Annotated[str, PlainValidator(check_free_env_name), Shape(_free_env_schema)]
Device = Annotated[str, PlainValidator(check_device), Shape(_device_schema)]
Written = Annotated[str, PlainValidator(as_written), Shape(_WRITTEN_SCHEMA)]
Line = Annotated[str, PlainValidator(check_line), Shape(_LINE_SCHEMA)]
Command = Annotated[
    str | tuple[str, ...],
    PlainValidator(check_command),
    Shape({"anyOf": [_LINE_SCHEMA, {"type": "array", "items": _WRITTEN_SCHEMA, "minItems": 1}]}),
]
Glob = Annotated[str, PlainValidator(check_glob), _text_schema(GLOB_PATTERN)]
Length = Annotated[Duration, PlainValidator(check_duration), _text_schema(DURATION_PATTERN + r"(?!\n)")]
PositiveLength = Annotated[
    Duration, PlainValidator(check_positive_duration), _text_schema(r"^(?!0+[smhd])[0-9]{1,9}[smhd]$(?!\n)")
]
MetricName = Annotated[str, PlainValidator(check_metric), _text_schema(METRIC_PATTERN)]
Objective = Annotated[str, PlainValidator(check_objective), _text_schema(OBJECTIVE_PATTERN)]
Cards = Annotated[int | tuple[int, ...], PlainValidator(check_cards), Shape(CARDS_SCHEMA)]
Indices = Annotated[tuple[int, ...], PlainValidator(check_indices), Shape(_INDICES_SCHEMA)]
