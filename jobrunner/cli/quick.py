"""Plain words need no validation library: newer typers load pydantic (80 ms) to turn a text into the same text."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class QuickCoercion:
    """Stands in for typer's own coercion of one parameter: texts, paths and what was not given. Else it hands over."""

    def __init__(self, parameter: Any) -> None:
        self._parameter = parameter
        self._annotation = parameter.type_descriptor.annotation

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        """The value as the function gets it."""
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if self._annotation is str and isinstance(value, str):
            return value
        if self._annotation is Path and isinstance(value, (str, Path)):
            return Path(value)
        if isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
            if self._annotation == list[str]:
                return list(value)
            if self._annotation == list[Path]:
                return [Path(item) for item in value]
        self._parameter._runtime_param = None
        return self._parameter.get_runtime_param().coerce(value, param=param, ctx=ctx)


def quicken(program: Any) -> None:
    """Give every parameter of a program and of its commands the quick coercion, where this typer has such a thing."""
    for parameter in program.params:
        _replace(parameter)
    make_help_option = program.get_help_option

    def get_help_option(context: Any) -> Any:  # made by typer only when it is first asked for
        option = make_help_option(context)
        _replace(option)
        return option

    program.get_help_option = get_help_option
    for inner in getattr(program, "commands", {}).values():
        quicken(inner)


def _replace(parameter: Any) -> None:
    if getattr(parameter, "_runtime_param", parameter) is None and hasattr(parameter, "type_descriptor"):
        parameter._runtime_param = QuickCoercion(parameter)
