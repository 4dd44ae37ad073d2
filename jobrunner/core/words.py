"""Faults in people's words: what was found, what would be right, and the nearest valid word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from pydantic_core import ErrorDetails, PydanticCustomError

from jobrunner.core.devices import kinds
from jobrunner.core.values import dataclass

Path = tuple[str | int, ...]

# What people write, and what they mean.
SYNONYMS = {
    **dict.fromkeys(("gpus", "npus", "mlus", "num_cards", "num_gpus", "accelerators", "devices", "resources"), "cards"),
    **dict.fromkeys(("environment", "envs", "environ", "variables"), "env"),
    **dict.fromkeys(("cmd", "run", "exec"), "command"),
    **dict.fromkeys(("time_limit", "walltime", "time"), "timeout"),
    **dict.fromkeys(("depends_on", "dependencies", "needs", "depends"), "after"),
    **dict.fromkeys(("arguments", "argv", "parameters_list"), "args"),
    **dict.fromkeys(("retries", "restart"), "retry"),
    **dict.fromkeys(("working_dir", "workdir", "source", "src"), "code"),
    **dict.fromkeys(("cron",), "schedule"),
    **dict.fromkeys(("params", "space"), "parameters"),
    **dict.fromkeys(("volumes",), "mounts"),
    **dict.fromkeys(("interval", "delay"), "backoff"),
    **dict.fromkeys(("accelerator", "device_type", "type"), "device"),
    **dict.fromkeys(("minimize", "minimise"), "min"),
    **dict.fromkeys(("maximize", "maximise"), "max"),
}


@dataclass(frozen=True)
class Fault:
    """One thing that is wrong with a value at a path; `on_key` when it is the key itself."""

    path: Path
    message: str
    suggestion: str = ""
    on_key: bool = False


def refuse(message: str, suggestion: str = "", at: Path = ()) -> NoReturn:
    """Refuse the value that is being validated, or the part of it under `at`."""
    refuse_all([Fault(at, message, suggestion)])


def refuse_all(faults: Sequence[Fault]) -> NoReturn:
    """Refuse the value that is being validated for several reasons at once."""
    raise PydanticCustomError(
        "faults", "{text}", {"text": "; ".join(f.message for f in faults), "faults": list(faults)}
    )


def nearest(word: str, choices: Iterable[str]) -> str:
    """The valid word that somebody who wrote `word` most likely meant; empty if none is near."""
    known = list(choices)
    plain = word.strip().lower().replace("-", "_").replace(" ", "_")
    for candidate in (plain, SYNONYMS.get(plain, "")):
        if candidate in known:
            return candidate
    by_lower = {choice.lower(): choice for choice in known}
    close = difflib.get_close_matches(plain, list(by_lower), n=1, cutoff=0.6)
    return by_lower[close[0]] if close else ""


def found(value: Any) -> str:
    """How a value is named in a message: short, and never more than a glance of a long text."""
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return f"the number {value}"
    if isinstance(value, str):
        return repr(value if len(value) <= 60 else value[:57] + "…")
    return "a mapping" if isinstance(value, dict) else "a list"


def dotted(path: Path) -> str:
    """A path as people write it: `retry.max`, `args[2]`."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def one_of(words: Iterable[str]) -> str:
    """`a, b or c`."""
    known = list(words)
    return known[0] if len(known) == 1 else f"{', '.join(known[:-1])} or {known[-1]}"


def faults_of(errors: Sequence[ErrorDetails], keys_at: Any) -> list[Fault]:
    """pydantic's errors as faults. `keys_at(path)` gives the keys that may stand in the mapping at a path."""
    faults: list[Fault] = []
    for error in errors:
        faults.extend(_faults(error, keys_at))
    return faults


def _labelled(path: Path, fault: Fault, on_key: bool) -> Fault:
    """A fault that a check found in a single value, told with the value's path (a fault between keys tells its own)."""
    whole = path + fault.path
    label = f"{dotted(path[:-1] if on_key else whole)}: " if path[: -1 if on_key else None] else ""
    message = fault.message if fault.message.startswith(label) else label + fault.message
    return Fault(whole, message, fault.suggestion, on_key or fault.on_key)


def _faults(error: ErrorDetails, keys_at: Any) -> list[Fault]:
    # Steps that begin with ~ name a branch of a union, not a key of the file.
    path: Path = tuple(step for step in error["loc"] if not str(step).startswith("~"))
    on_key = bool(path) and path[-1] == "[key]"
    if on_key:
        path = path[:-1]
    kind, context = error["type"], error.get("ctx", {})
    if kind == "faults":
        inner: list[Fault] = context["faults"]
        return [_labelled(path, f, on_key) for f in inner]
    label = dotted(path)
    if kind == "wanted":
        return [Fault(path, f"{label}: {error['msg']}; found {found(error['input'])}")]
    if kind == "extra_forbidden":
        key = str(path[-1])
        known = keys_at(path[:-1])
        within = f" in {dotted(path[:-1])}" if path[:-1] else ""
        return [Fault(path, f"the key {key!r} is not known{within}", nearest(key, known), on_key=True)]
    if kind == "missing":
        hint = f"; say which kind of card: {', '.join(kinds())}, or cpu for none" if label == "device" else ""
        return [Fault(path[:-1], f"{label} is missing{hint}", on_key=True)]
    return [
        Fault(path, f"{label}: {_said(kind, context, error['input'])}", _near(kind, context, error["input"]), on_key)
    ]


_WANTED = {
    "string_type": "a text is wanted here",
    "int_type": "a whole number is wanted here",
    "int_from_float": "a whole number is wanted here",
    "float_type": "a number is wanted here",
    "finite_number": "a finite number is wanted here",
    "bool_type": "true or false is wanted here",
    "list_type": "a list is wanted here",
    "tuple_type": "a list is wanted here",
    "dict_type": "a mapping (key: value) is wanted here",
    "model_type": "a mapping (key: value) is wanted here",
    "model_attributes_type": "a mapping (key: value) is wanted here",
}


def _said(kind: str, context: dict[str, Any], value: Any) -> str:
    what = found(value)
    if kind == "literal_error":
        return f"found {what}; it must be {one_of(_expected(context))}"
    if kind in ("greater_than_equal", "greater_than", "less_than_equal", "less_than"):
        limit = next(iter(context.values()))
        bound = {"greater_than_equal": "at least", "greater_than": "more than", "less_than_equal": "at most"}.get(
            kind, "less than"
        )
        return f"found {what}; it must be {bound} {limit}"
    if kind == "too_short":
        return "the list is empty"
    if kind == "string_type" and isinstance(value, bool | int | float):
        return f"found {what}; a text is wanted here: put it in quotes"
    if kind in ("list_type", "tuple_type") and isinstance(value, str):
        return f"found {what}; a list is wanted here: put it in brackets, [{value if len(value) < 40 else '…'}]"
    if value is None:
        return f"has no value; {_WANTED.get(kind, 'a value is wanted here')}, or remove the key"
    return f"found {what}; {_WANTED.get(kind, 'that cannot be')}"


def _expected(context: dict[str, Any]) -> list[str]:
    return re.findall(r"'([^']*)'", str(context.get("expected", "")))


def _near(kind: str, context: dict[str, Any], value: Any) -> str:
    if kind == "literal_error" and isinstance(value, str):
        return nearest(value, _expected(context))
    return ""
