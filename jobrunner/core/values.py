"""Dataclasses that are finished when they are first used.

To make one, the standard library compiles up to six functions, 0.3 ms. A command defines seventy of them and uses a
third. Here that is done with the first value (or the first look at the fields); from then on nothing is different.
"""

from __future__ import annotations

import dataclasses
import inspect
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(cls=None, /, **options):
        """As `dataclasses.dataclass`, for classes without slots and without a `__new__` of their own."""
        if cls is None:
            return lambda cls: dataclass(cls, **options)
        unfinished = _Unfinished(cls, options)

        def make(kind, /, *_, **__):
            if unfinished.cls is not None:
                unfinished.finish()
            return object.__new__(kind)

        cls.__new__ = make
        cls.__dataclass_fields__ = unfinished
        cls.__signature__ = _Signature()
        return cls


_TURN = threading.RLock()


class _Unfinished:
    """Stands for a class's fields until somebody asks: the standard library does so itself where one inherits."""

    def __init__(self, cls: type, options: dict[str, Any]) -> None:
        self.cls: type | None = cls
        self._options = options

    def finish(self) -> None:
        with _TURN:
            if self.cls is not None:
                dataclasses.dataclass(**self._options)(self.cls)
                self.cls = None

    def __get__(self, value: object, owner: type) -> Any:
        self.finish()
        return owner.__dataclass_fields__  # type: ignore[attr-defined]


class _Signature:
    """What a class is made with, for whoever shows it: `__init__`'s words, not those of the `__new__` above."""

    def __get__(self, value: object, owner: type) -> inspect.Signature:
        dataclasses.fields(owner)
        made = inspect.signature(owner.__init__)  # type: ignore[misc]
        return made.replace(parameters=list(made.parameters.values())[1:])
