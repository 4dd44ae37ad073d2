"""The values of a spec's `metrics`: where a number is to be found. Pure.

A text is a regular expression over the lines of the log, `{json: KEY}` a key of log lines that are JSON objects,
`{file: PATH, key: KEY}` a key of a file of such lines, `{tensorboard: DIR, tag: TAG}` a scalar of TensorBoard's event
files. They stay plain values: so they are written into a request and read on the host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainValidator
from pydantic_core import PydanticCustomError

from jobrunner.core.fields import GLOB_PATTERN, Shape, check_glob, check_line, check_regex
from jobrunner.core.words import Fault, found, nearest, refuse, refuse_all

METRICS_MOST = 100
"""More metrics than this are refused: each is looked for in each line."""

DEFAULT_FILE = "metrics.jsonl"
STEP_WORDS = ("step", "global_step", "iteration", "epoch")
"""Metrics of these names count the steps of the others on the same line, in this order."""

_FORMS = {"json": ("json",), "tensorboard": ("tensorboard", "tag"), "file": ("file", "key")}
_HINT = "write a regular expression, {json: KEY}, {file: PATH, key: KEY} or {tensorboard: DIR, tag: TAG}"
_LONGEST = 1000

MetricSource = str | dict[str, str]


def form_of(source: MetricSource) -> str:
    """Which form a good value has: `regex`, `json`, `file` or `tensorboard`."""
    if isinstance(source, str):
        return "regex"
    return next(form for form in _FORMS if form in source)


def check_source(value: Any) -> MetricSource:
    """Where one metric comes from, with defaults filled in."""
    if isinstance(value, str):
        return _short(check_regex(value))
    if not isinstance(value, Mapping):
        refuse(f"found {found(value)}; {_HINT}")
    given = dict(value)
    form = "file" if "key" in given else next((form for form in _FORMS if form in given), None)
    if form is None:
        known = [key for keys in _FORMS.values() for key in keys]
        if not given:
            refuse(f"the mapping is empty; {_HINT}")
        refuse_all([Fault((str(key),), f"the key {key!r} is not known; {_HINT}", nearest(str(key), known), on_key=True)
                    for key in given])  # fmt: skip
    if form == "file":
        given.setdefault("file", DEFAULT_FILE)
    faults = list(_key_faults(form, given))
    read: dict[str, str] = {}
    for key in _FORMS[form]:
        if key not in given:
            continue
        try:
            read[key] = _short((check_glob if key in ("file", "tensorboard") else check_line)(given[key]))
        except PydanticCustomError as error:
            faults += [Fault((key, *f.path), f.message, f.suggestion) for f in (error.context or {})["faults"]]
    return refuse_all(faults) if faults else read


def _key_faults(form: str, given: Mapping[str, Any]) -> list[Fault]:
    """Keys that do not belong to the form, and those that it lacks."""
    keys = _FORMS[form]
    faults = []
    for key in given:
        if key not in keys:
            other = any(key in others for others in _FORMS.values())
            text = f"{key!r} and {form!r} exclude each other" if other else f"the key {key!r} is not known here"
            faults.append(Fault((str(key),), f"{text}; {_HINT}", "" if other else nearest(str(key), keys), on_key=True))
    missing = [key for key in keys if key not in given]
    if missing:
        faults.append(Fault((form,), f"{missing[0]} is missing: {_HINT}", on_key=True))
    return faults


def _short(text: str) -> str:
    if len(text) > _LONGEST:
        refuse(f"a text of {len(text)} characters is too long; {_LONGEST} are the most")
    return text


def _schema() -> dict[str, Any]:
    path = {"type": "string", "pattern": GLOB_PATTERN, "maxLength": _LONGEST}
    word = {"type": "string", "pattern": r"\S", "minLength": 1, "maxLength": _LONGEST}

    def mapping(required: list[str], **properties: Any) -> dict[str, Any]:
        return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}

    return {
        "anyOf": [
            {"type": "string", "format": "regex", "pattern": r"\(", "maxLength": _LONGEST},
            mapping(["json"], json={**word, "description": "A key of log lines that are JSON objects (a.b: deeper)."}),
            mapping(
                ["key"],
                file={**path, "default": DEFAULT_FILE, "description": "A file of JSON lines in work/ or out/."},
                key={**word, "description": "The key in its lines (a.b: deeper)."},
            ),
            mapping(
                ["tensorboard", "tag"],
                tensorboard={**path, "description": "The folder of the event files, in work/ or out/."},
                tag={**word, "description": "The scalar's tag."},
            ),
        ]
    }  # fmt: skip


Metric = Annotated[str | dict[str, str], PlainValidator(check_source), Shape(_schema)]
